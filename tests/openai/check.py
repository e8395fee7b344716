"""Checks the answers of the scripted server, and of the gateway example, with OpenAI's own client."""

import subprocess
import sys
import time

import openai
from pydantic import BaseModel

PIXEL = "data:image/png;base64,iVBORw0KGgo="
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CHAT_TOOLS = [{"type": "function", "function": TOOL}]
RESPONSE_TOOLS = [{"type": "function", **TOOL}]
HELLO = "Hello, world!"
LONG = "\u00e9\n" * (1 << 18) + "x" * (1 << 18)
# Kinds of failures of the scripted model, with the client's error, the status and the code.
ERRORS = (
    ("authentication", openai.InternalServerError, 502, "upstream_authentication"),
    ("invalid_request", openai.BadRequestError, 400, "invalid_request"),
    ("context_window", openai.BadRequestError, 400, "context_length_exceeded"),
    ("rate_limited", openai.RateLimitError, 429, "rate_limit_exceeded"),
    ("overloaded", openai.InternalServerError, 503, "overloaded"),
    ("timeout", openai.InternalServerError, 504, "timeout"),
    ("conflict", openai.ConflictError, 409, "conflict"),
    ("server", openai.InternalServerError, 502, "upstream_server"),
    ("other", openai.InternalServerError, 500, "other"),
)
ODD = '\r\n\0\u2028\u0085"\\\U0001f600'


class Trip(BaseModel):
    city: str
    people: int


class Server:
    """Starts a command that prints its URL, and stops it at the end."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if "http://" in line:
                self.url = line[line.index("http://") :].split()[0]
                return
        raise SystemExit(f"{command} has printed no URL")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)


def equal(one, other):
    if one != other:
        raise AssertionError(f"{str(one)[:500]!r} instead of {str(other)[:500]!r}")


def fails(call, kind, status=None, code=None):
    try:
        call()
    except kind as error:
        if status is not None:
            equal(error.status_code, status)
        if code is not None:
            equal(error.code, code)
        return error
    raise AssertionError(f"no {kind.__name__}")


def user(text):
    return [{"role": "user", "content": text}]


def ask(client, text, **fields):
    return client.chat.completions.create(model="scripted", messages=user(text), **fields)


def respond(client, text, **fields):
    return client.responses.create(model="scripted", input=text, **fields)


def chat_stream(client, messages, **fields):
    """The final completion of a stream, accumulated by the client."""
    with client.chat.completions.stream(model="scripted", messages=messages, **fields) as stream:
        return stream.get_final_completion()


def response_stream(client, input, **fields):
    """The final response of a stream, which must equal the sum of the deltas."""
    text, calls = "", {}
    with client.responses.stream(model="scripted", input=input, **fields) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.function_call_arguments.delta":
                calls[event.output_index] = calls.get(event.output_index, "") + event.delta
        response = stream.get_final_response()
    equal(response.output_text, text)
    made = {at: item.arguments for at, item in enumerate(response.output) if item.type == "function_call"}
    equal(made, calls)
    return response


def text(client):
    answer = ask(client, "hello")
    equal(answer.choices[0].message.content, HELLO)
    equal((answer.model, answer.choices[0].finish_reason), ("scripted", "stop"))
    equal((answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens), (12, 7, 19))
    equal(ask(client, "length").choices[0].finish_reason, "length")
    answer = respond(client, "hello")
    equal((answer.output_text, answer.status, answer.usage.total_tokens), (HELLO, "completed", 19))
    answer = respond(client, "length")
    equal((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    for prompt, expected in (("long", LONG), ("odd", ODD)):
        equal(ask(client, prompt).choices[0].message.content, expected)
        equal(respond(client, prompt).output_text, expected)


def streams(client):
    chunks = list(ask(client, "hello", stream=True, stream_options={"include_usage": True}))
    equal("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), HELLO)
    equal(chunks[-1].usage.total_tokens, 19)
    for prompt, expected in (("hello", HELLO), ("long", LONG), ("odd", ODD)):
        equal(chat_stream(client, user(prompt)).choices[0].message.content, expected)
        equal(response_stream(client, prompt).output_text, expected)


def tools(client):
    for prompt, cities in (("tools", ["Paris"]), ("parallel", ["Rome", "Oslo"])):
        arguments = [f'{{"city":"{city}"}}' for city in cities]
        expected = ";".join(f"look={city}" for city in cities)
        for stream in (False, True):
            def chat(messages):
                if stream:
                    return chat_stream(client, messages, tools=CHAT_TOOLS)
                return client.chat.completions.create(model="scripted", messages=messages, tools=CHAT_TOOLS)

            messages = user(prompt)
            choice = chat(messages).choices[0]
            equal(choice.finish_reason, "tool_calls")
            calls = choice.message.tool_calls
            equal([call.function.arguments for call in calls], arguments)
            messages.append(choice.message)
            for call, city in zip(calls, cities):
                messages.append({"role": "tool", "tool_call_id": call.id, "content": city})
            equal(chat(messages).choices[0].message.content, expected)

            def response(input):
                if stream:
                    return response_stream(client, input, tools=RESPONSE_TOOLS)
                return client.responses.create(model="scripted", input=input, tools=RESPONSE_TOOLS)

            items = user(prompt)
            answer = response(items)
            calls = [item for item in answer.output if item.type == "function_call"]
            equal([call.arguments for call in calls], arguments)
            items += answer.output
            for call, city in zip(calls, cities):
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": city})
            equal(response(items).output_text, expected)


def outputs(client):
    trip = Trip(city="Paris", people=2)
    answer = client.chat.completions.parse(model="scripted", messages=user("parse"), response_format=Trip)
    equal(answer.choices[0].message.parsed, trip)
    answer = client.responses.parse(model="scripted", input="parse", text_format=Trip)
    equal(answer.output_parsed, trip)
    answer = ask(client, "refuse")
    equal((answer.choices[0].message.refusal, answer.choices[0].message.content), ("I refuse.", None))
    equal(chat_stream(client, user("refuse")).choices[0].message.refusal, "I refuse.")
    for answer in (respond(client, "refuse"), response_stream(client, "refuse")):
        equal(answer.output[0].content[0].refusal, "I refuse.")
    parts = [
        {"type": "text", "text": "parts"},
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
    ]
    expected = 'text;image Some("image/png");file Some("a.pdf")'
    equal(ask(client, parts).choices[0].message.content, expected)
    items = [{"role": "user", "content": [
        {"type": "input_text", "text": "parts"},
        {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"},
    ]}]
    equal(client.responses.create(model="scripted", input=items).output_text, expected)


def errors(client):
    for kind, expected, status, code in ERRORS:
        for stream in (False, True):
            fails(lambda: ask(client, f"error {kind}", stream=stream), expected, status, code)
            fails(lambda: respond(client, f"error {kind}", stream=stream), expected, status, code)
        # After the head, each client raises an error.
        error = fails(lambda: list(ask(client, f"late {kind}", stream=True)), openai.APIError)
        equal(error.code, code)
        events = []

        def late():
            for event in respond(client, f"late {kind}", stream=True):
                events.append(event)

        fails(late, Exception)
        equal((events[-1].type, events[-1].response.error.code), ("response.failed", code))
    fails(lambda: client.models.retrieve("none"), openai.NotFoundError, 404, "model_not_found")
    fails(lambda: client.embeddings.create(model="m", input="a"), openai.NotFoundError, 404, "unknown_url")
    fails(lambda: ask(client, "hello", n=2), openai.BadRequestError, 400, "unsupported_parameter")
    fails(lambda: respond(client, "hello", max_output_tokens=0), openai.BadRequestError, 400)
    fails(lambda: respond(client, "hello", background=True, store=False), openai.BadRequestError, 400)
    equal([model.id for model in client.models.list()], ["clerk", "gpt-4o", "scripted"])
    equal(client.models.retrieve("gpt-4o").id, "gpt-4o")


def stored(client):
    def create(text, **fields):
        return client.responses.create(model="scripted", input=text, **fields)

    first = create("tools", tools=RESPONSE_TOOLS)
    call = first.output[-1]
    equal(client.responses.retrieve(first.id), first)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "here"}
    fields = {"tools": RESPONSE_TOOLS, "previous_response_id": first.id}
    second = create([output], **fields)
    equal((second.output_text, second.previous_response_id), ("look=here", first.id))
    with client.responses.stream(model="scripted", input=[output], **fields) as stream:
        third = stream.get_final_response()
    equal(third.output_text, "look=here")
    equal(client.responses.retrieve(third.id).output_text, "look=here")
    client.responses.delete(first.id)
    not_found = (openai.NotFoundError, 404)
    fails(lambda: client.responses.retrieve(first.id), *not_found, "response_not_found")
    fails(lambda: client.responses.delete(first.id), *not_found, "response_not_found")
    fails(lambda: create("hi", previous_response_id=first.id), *not_found, "previous_response_not_found")
    fails(lambda: client.responses.cancel(third.id), openai.BadRequestError, 400)
    fails(lambda: client.responses.retrieve(third.id, stream=True), openai.BadRequestError, 400)
    unstored = create("hello", store=False)
    equal((unstored.store, second.store), (False, True))
    fails(lambda: client.responses.retrieve(unstored.id), *not_found, "response_not_found")


def approvals(client):
    def create(items, **fields):
        return client.responses.create(model="clerk", input=items, **fields)

    def decide(request, approve):
        return {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}

    for approve, store in ((True, True), (False, True), (True, False)):
        with client.responses.stream(model="clerk", input="Pay.", store=store) as stream:
            asked = stream.get_final_response()
        text, request = asked.output
        equal((text.type, request.type, request.name), ("message", "mcp_approval_request", "pay"))
        equal(request.arguments, '{"sum":7}')
        items, fields = [decide(request, approve)], {"previous_response_id": asked.id}
        if not store:
            items = [*user("Pay."), *(item.to_dict() for item in asked.output), *items]
            fields = {"store": False}
        done = create(items, **fields)
        equal("paid 7" in done.output_text, approve)
        fails(lambda: create(items, **fields), openai.ConflictError, 409, "run_ended")
    forged = request.model_copy(update={"id": request.id + "0"})
    fails(lambda: create([decide(forged, True)]), openai.NotFoundError, 404, "run_not_found")
    fails(
        lambda: client.chat.completions.create(model="clerk", messages=user("Pay.")),
        openai.ConflictError,
        409,
        "approval_required",
    )


def keyed(server):
    def client(key):
        return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0)

    key = server.lines[0]
    equal(ask(client(key), "hello").choices[0].message.content, HELLO)
    for wrong in ("sk-no", key[:-1] + ("A" if key[-1] != "A" else "B"), key[:-1]):
        fails(lambda: ask(client(wrong), "hello"), openai.AuthenticationError, 401, "invalid_api_key")


def retries(url):
    """The client repeats a failed request, but not after an effect."""
    attempts = []
    hooks = {"request": [lambda request: attempts.append(request)]}
    with openai.DefaultHttpxClient(event_hooks=hooks) as http:
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=2, http_client=http)
        fails(lambda: ask(client, "error overloaded"), openai.InternalServerError, 503)
        equal(len(attempts), 3)
        for prompt, status in (("effect", 424), ("error authentication", 502)):
            for stream in (False, True):
                attempts.clear()
                fails(lambda: ask(client, prompt, stream=stream), openai.APIStatusError, status)
                equal(len(attempts), 1)


def cancel(client):
    def dropped():
        return int(ask(client, "dropped").choices[0].message.content)

    for run in (ask, respond):
        before = dropped()
        stream = run(client, "wait", stream=True)
        next(iter(stream))
        stream.close()
        for _ in range(100):
            if dropped() == before + 1:
                break
            time.sleep(0.05)
        equal(dropped(), before + 1)


def background(client):
    def poll(response):
        for _ in range(200):
            if response.status not in ("queued", "in_progress"):
                return response
            time.sleep(0.05)
            response = client.responses.retrieve(response.id)
        raise AssertionError(f"{response.status} after 10 seconds")

    def dropped():
        return int(ask(client, "dropped").choices[0].message.content)

    before = dropped()
    stopped = respond(client, "wait", background=True, stream=True)
    id = next(iter(stopped)).response.id
    cancelled = client.responses.cancel(id)
    equal(cancelled.status, "cancelled")
    equal((client.responses.cancel(id), client.responses.retrieve(id)), (cancelled, cancelled))

    live = respond(client, "hello", background=True)
    equal((live.status, live.background, live.output_text), ("in_progress", True, ""))
    done = poll(live)
    equal((done.id, done.status, done.output_text), (live.id, "completed", HELLO))
    equal(client.responses.cancel(done.id).status, "completed")
    continued = respond(client, "hello", previous_response_id=done.id, background=True)
    equal(poll(continued).previous_response_id, done.id)
    failed = poll(respond(client, "error server", background=True))
    equal((failed.status, failed.error.code), ("failed", "upstream_server"))

    # The connection is cut after each event, and the rest is read with another one.
    events = []
    stream = respond(client, "hello", background=True, stream=True)
    while event := next(iter(stream), None):
        stream.close()
        events.append(event)
        id = events[0].response.id
        stream = client.responses.retrieve(id, stream=True, starting_after=event.sequence_number)
    equal([event.sequence_number for event in events], list(range(len(events))))
    equal(events[-1].type, "response.completed")
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), HELLO)
    equal((events[-1].response.output_text, client.responses.retrieve(id).output_text), (HELLO, HELLO))
    equal(list(client.responses.retrieve(id, stream=True)), events)
    equal(response_stream(client, "long", background=True).output_text, LONG)

    # The run has ended, and the stream shows the end that is stored.
    last = list(stopped)[-1]
    equal((last.type, last.response), ("response.failed", cancelled))
    equal(dropped(), before + 1)
    live = respond(client, "wait", background=True)
    client.responses.delete(live.id)
    fails(lambda: client.responses.retrieve(live.id), openai.NotFoundError, 404, "response_not_found")
    fails(lambda: client.responses.cancel(live.id), openai.NotFoundError, 404, "response_not_found")
    fails(lambda: client.responses.retrieve(live.id, stream=True), openai.NotFoundError, 404)


def gateway(url):
    def client(key):
        return openai.OpenAI(base_url=url, api_key=key, max_retries=0)

    ann, eve = client("sk-ann"), client("sk-eve")
    fails(lambda: client("sk-no").models.list(), openai.AuthenticationError, 401, "invalid_api_key")

    def say(client, text):
        return client.chat.completions.create(model="gpt-4o-mini", messages=user(text))

    equal(say(ann, "hi").choices[0].message.content, "primary: hi")
    equal(say(ann, "outage").choices[0].message.content, "secondary: outage")
    # A repeated request costs nothing.
    equal((say(eve, "hi").usage.total_tokens > 0, say(ann, "hi").usage.total_tokens), (True, 0))
    error = fails(
        lambda: [say(ann, f"hi {n}") for n in range(30)], openai.RateLimitError, 429, "rate_limit_exceeded"
    )
    equal(int(error.response.headers["retry-after"]) > 0, True)
    # The quota of one client is not that of the other, and neither is its budget.
    say(eve, "x" * 9000)
    fails(lambda: say(eve, "y"), openai.RateLimitError, 429, "insufficient_quota")


def main():
    scripted, example = sys.argv[1:3]
    with Server([scripted]) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        for check in (text, streams, tools, outputs, errors, stored, approvals, cancel, background):
            check(client)
        retries(server.url)
    with Server([scripted, "keyed"]) as server:
        keyed(server)
    with Server(["env", "PORT=0", example]) as server:
        gateway(server.url)
    print(f"openai {openai.__version__} for Python: all answers are as expected")


if __name__ == "__main__":
    main()
