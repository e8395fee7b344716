"""Measures the time that the official SDK of an API takes to read responses, and prints it as JSON.

usage: sdk.py API SAMPLES

Standard input has a line of JSON with the media type and the frame lengths of each response, and then
the bytes of all frames. There is no network: the SDK's HTTP client uses a transport whose response is
ready. The time is CPU time of the process, from the SDK's first read of the body to the last typed
event; imports, the client and the request are excluded.
"""

import importlib.metadata
import json
import sys
import time

MESSAGES = [{"role": "user", "content": "hi"}]


def openai_client(http):
    import httpx2
    import openai

    return openai.OpenAI(api_key="key", max_retries=0, http_client=http(httpx2))


def anthropic_client(http):
    import anthropic
    import httpx2

    return anthropic.Anthropic(api_key="key", max_retries=0, http_client=http(httpx2))


def gemini_client(http):
    import httpx2
    from google import genai

    return genai.Client(api_key="key", http_options=genai.types.HttpOptions(httpx_client=http(httpx2)))


def ollama_client(http):
    import httpx
    import ollama

    # The SDK creates its own HTTP client.
    client = ollama.Client()
    client._client = http(httpx)
    return client


def openai_chat(client, take):
    for chunk in client.chat.completions.create(model="model", messages=MESSAGES, stream=True):
        for choice in chunk.choices:
            if choice.delta.content:
                take(choice.delta.content)


def openai_responses(client, take):
    for event in client.responses.create(model="model", input="hi", stream=True):
        if event.type == "response.output_text.delta":
            take(event.delta)


def anthropic_messages(client, take):
    for event in client.messages.create(model="model", max_tokens=1, messages=MESSAGES, stream=True):
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            take(event.delta.text)


def gemini_generate(client, take):
    for chunk in client.models.generate_content_stream(model="model", contents="hi"):
        for candidate in chunk.candidates or ():
            for part in (candidate.content and candidate.content.parts) or ():
                if part.text and not part.thought:
                    take(part.text)


def ollama_chat(client, take):
    for part in client.chat("model", MESSAGES, stream=True):
        if part.message.content:
            take(part.message.content)


APIS = {
    "openai-chat": ("openai", openai_client, openai_chat),
    "openai-responses": ("openai", openai_client, openai_responses),
    "anthropic-messages": ("anthropic", anthropic_client, anthropic_messages),
    "gemini-generate": ("google-genai", gemini_client, gemini_generate),
    "ollama-chat": ("ollama", ollama_client, ollama_chat),
}


def read_input():
    head = json.loads(sys.stdin.buffer.readline())
    answers = [[sys.stdin.buffer.read(length) for length in lengths] for lengths in head["answers"]]
    return head["media_type"], answers


def main():
    api, samples = sys.argv[1], int(sys.argv[2])
    media_type, answers = read_input()
    package, make, read = APIS[api]
    now, began, frames = time.process_time_ns, 0, []

    def body():
        nonlocal began
        began = now()
        yield from frames

    def http(httpx):
        def answer(_):
            return httpx.Response(200, headers={"content-type": media_type}, content=body())

        return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://upstream.test")

    client = make(http)

    def read_all():
        """Returns the time to read all responses in nanoseconds, and the bytes of text in each."""
        nonlocal frames
        took, texts = 0, []
        for frames in answers:
            text = []
            read(client, text.append)
            took += now() - began
            texts.append(len("".join(text).encode()))
        return took, texts

    _, text = read_all()
    taken = []
    for _ in range(samples):
        took, again = read_all()
        assert again == text
        taken.append(took)
    print(json.dumps({"sdk": f"{package} {importlib.metadata.version(package)}", "ns": taken, "text": text}))


if __name__ == "__main__":
    main()
