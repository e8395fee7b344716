"""Sends the scripted server requests of LangChain.

usage: langchain_check.py URL
"""

import sys
import time
from importlib.metadata import version

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from check import ERRORS, HELLO, LONG, PIXEL, Trip, equal, fails


@tool
def look(city: str) -> str:
    """Looks."""
    return city


def whole(runnable, messages):
    return runnable.invoke(messages)


def streamed(runnable, messages):
    """The sum of the chunks."""
    total = None
    for chunk in runnable.stream(messages):
        total = chunk if total is None else total + chunk
    return total


def text(model):
    for ask in (whole, streamed):
        answer = ask(model, "hello")
        equal((answer.text, answer.usage_metadata["total_tokens"]), (HELLO, 19))
        equal(ask(model, "long").text, LONG)


def tools(model):
    bound = model.bind_tools([look])
    # This client cannot read responses whose calls are not streamed in order, as OpenAI does it.
    parallel = "ordered" if model.use_responses_api else "parallel"
    for ask in (whole, streamed):
        for prompt, rounds, expected in (("rounds", 2, "look=Oslo"), (parallel, 1, "look=Rome;look=Oslo")):
            messages = [HumanMessage(prompt)]
            for _ in range(rounds):
                answer = ask(bound, messages)
                equal(len(answer.tool_calls) > 0, True)
                messages += [answer, *(look.invoke(call) for call in answer.tool_calls)]
            equal(ask(bound, messages).text, expected)


def structured(model):
    parsed = model.with_structured_output(Trip, method="json_schema", strict=True).invoke("parse")
    equal(parsed, Trip(city="Paris", people=2))


def images(model):
    parts = [{"type": "text", "text": "parts"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    equal(whole(model, [HumanMessage(parts)]).text, 'text;image Some("image/png")')


def errors(model):
    for kind, expected, status, code in ERRORS:
        for ask in (whole, streamed):
            fails(lambda: ask(model, f"error {kind}"), expected, status, code)
        # After the head.
        fails(lambda: streamed(model, f"late {kind}"), Exception)


def cancel(model):
    def dropped():
        return int(whole(model, "dropped").text)

    before = dropped()
    stream = model.stream("wait")
    while not next(stream).text:
        pass
    stream.close()
    for _ in range(100):
        if dropped() == before + 1:
            break
        time.sleep(0.05)
    equal(dropped(), before + 1)


def main():
    for responses in (False, True):
        model = ChatOpenAI(
            model="scripted",
            base_url=sys.argv[1],
            api_key="none",
            max_retries=0,
            stream_usage=True,
            use_responses_api=responses,
        )
        for check in (text, tools, structured, images, errors, cancel):
            try:
                check(model)
            except Exception as error:
                error.add_note(f"{check.__name__}, {'responses' if responses else 'chat'}")
                raise
    print(f"langchain-openai {version('langchain-openai')}: all answers are as expected")


if __name__ == "__main__":
    main()
