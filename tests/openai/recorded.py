"""Compares what OpenAI's client reads of our server with what it reads of the recorded answers.

usage: recorded.py CONCENTRIC_OPENAI DIR [--show RECORDING]

Each recording of a provider's answer is read twice: from a server that sends the recorded bytes, and from
our server, whose model reads the same bytes with a provider layer. All fields that the client's types have
are compared, except for those in `LEFT_OUT`; `READINGS` has the answers that ours reads otherwise on purpose.
An unexpected difference and an unused entry are failures.
"""

import base64
import collections
import http.server
import json
import pathlib
import sys
import threading

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState

from check import PIXEL, Server

# The minimum number of conversations.
MINIMUM = 60

# Fields of answers that cannot be equal, with the reasons; `*` matches one step.
OF_THE_RUN = "of the run of our server, and of the response of the provider"
NOT_EVENTS = "a model has no events for them"
LEFT_OUT = {
    "openai-chat": {
        "id": OF_THE_RUN,
        "created": OF_THE_RUN,
        "model": "the name by which the client requested the model",
        "metadata": "of the provider's deployment",
        "service_tier": "that of our server: a model does not have that of its provider",
        "system_fingerprint": "of the provider's deployment",
        "choices/*/logprobs": "requests with `logprobs` are rejected",
        "choices/*/message/annotations": NOT_EVENTS,
        "choices/*/message/audio": "requests for audio are rejected",
        "choices/*/message/tool_calls/*/id": "of the run: the provider layers make ids that are unique in it",
        "usage/prompt_tokens_details/text_tokens": "a model does not count them",
    },
    "openai-responses": {
        "id": OF_THE_RUN,
        "created_at": OF_THE_RUN,
        "completed_at": OF_THE_RUN,
        "model": "the name by which the client requested the model",
        "output/*/id": OF_THE_RUN,
        "output/*/call_id": "of the run: the provider layers make ids that are unique in it",
        "output/*/content/*/annotations": NOT_EVENTS,
        "output/*/content/*/logprobs": "requests with `top_logprobs` are rejected",
        "output/*/namespace": NOT_EVENTS,
        "output/*/phase": NOT_EVENTS,
        "reasoning/context": "a default of the provider",
        "reasoning/effort": "a default of the provider, if the request has none",
        "reasoning/mode": "a default of the provider",
        "reasoning/summary": "the parameter is ignored",
        "text/verbosity": "a default of the provider",
        "tools/*/parameters/additionalProperties": "added by the provider to schemas of strict tools",
    },
}

# The status of our server for the error of a provider: the caller has not chosen the key and the model.
STATUS = {400: 400, 401: 502, 403: 502, 404: 502, 429: 429, 500: 502}

# Fields of recorded requests that our server rejects or ignores, with the reasons in `openai/mod.rs`, and those
# that are set here.
NOT_SENT = {
    "openai-chat": ("model", "stream", "n", "logprobs", "top_logprobs", "web_search_options"),
    "openai-responses": (
        "model", "stream", "background", "include", "previous_response_id", "store", "top_logprobs",
    ),
}

# Items of conversations that our server accepts.
ITEMS = ("message", "function_call", "function_call_output", "reasoning")

# Items of answers that belong to tools that our server rejects: there is no such conversation with it.
OTHER_CALLS = ("custom_tool_call", "local_shell_call", "program", "program_output")

# The fields of a response that are not parameters of its request.
ANSWER = ("error", "incomplete_details", "object", "output", "status", "usage")

# The last events of a streamed response.
ENDS = ("response.completed", "response.incomplete", "response.failed")


class Recorded:
    """A server that answers with the bytes of recordings: the one at `/N/…` with the Nth."""

    def __init__(self, recordings):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length", 0)))
                response = recordings[int(self.path.split("/")[1])]["response"]
                body = response["body"]
                body = base64.b64decode(body) if response["body_encoding"] == "base64" else body.encode()
                self.send_response(response["status"])
                for name, value in response["headers"].items():
                    if name.lower() in ("content-type", "retry-after"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # The client closes its connections.
        self.http.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def load(folder):
    """The recordings of both APIs, in the order of their ids."""
    found = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    return sorted((one for one in found if one["api"] in LEFT_OUT), key=lambda one: one["id"])


def request(recording):
    """The recorded request without the parts that our server rejects."""
    api, recorded = recording["api"], (recording["request"] or {}).get("body")
    history = "messages" if api == "openai-chat" else "input"
    body = {name: it for name, it in (recorded or {}).items() if name not in (*NOT_SENT[api], history, "tools")}
    # Texts that the recordings do not have.
    body = {name: it for name, it in body.items() if it == restored(it)}
    conversation = restored((recorded or {}).get(history) or [{"role": "user", "content": "Hi."}])
    if isinstance(conversation, list):
        conversation = [item for item in conversation if item.get("type", "message") in ITEMS]
    if recorded is None:
        # The tools that the answer calls.
        names = {call["name"] for call in recording["expected"].get("tool_calls") or ()}
        tools = [function(api, name) for name in sorted(names)]
    else:
        tools = [tool for tool in recorded.get("tools") or () if tool["type"] == "function"]
    if tools:
        body["tools"] = tools
    if not tools or not is_choice(body.get("tool_choice")):
        body.pop("tool_choice", None)
    if recording["stream"] and api == "openai-chat":
        body["stream_options"] = {"include_usage": True}
    return {history: conversation, "model": recording["id"], "stream": recording["stream"], "extra_body": body}


def is_choice(choice):
    """Whether a choice of tools is one of OpenAI's API; the services have others, too."""
    return choice in ("auto", "none", "required") or isinstance(choice, dict) and choice["type"] == "function"


def function(api, name):
    tool = {"name": name, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": tool} if api == "openai-chat" else {"type": "function", **tool}


def restored(value):
    """Replaces what the recordings do not have, and media that our server rejects."""
    if isinstance(value, dict):
        return {name: restored(it) for name, it in value.items()}
    if isinstance(value, list):
        return [restored(it) for it in value]
    if isinstance(value, str) and value.startswith(("<elided ", "http://")):
        return PIXEL
    return value


def fields(value):
    """The fields of the client's types that have a value."""
    if isinstance(value, openai.BaseModel):
        named = ((name, getattr(value, name, None)) for name in type(value).model_fields)
        return {name: fields(it) for name, it in named if it is not None}
    if isinstance(value, list):
        return [fields(it) for it in value]
    return value


def read(client, recording):
    """What the client makes of an answer."""
    create = client.chat.completions.create if recording["api"] == "openai-chat" else client.responses.create
    try:
        answer = create(**request(recording))
        if not recording["stream"]:
            return fields(answer)
        if recording["api"] == "openai-chat":
            return chat_stream(answer)
        return response_stream(answer)
    except openai.APIStatusError as error:
        return {"error": {"class": type(error).__name__, "status": error.status_code}}
    except openai.APIError as error:
        return {"error": {"class": type(error).__name__, "status": None}}
    except (AttributeError, RuntimeError, TypeError) as error:
        # The client's own accumulator.
        return {"unreadable": str(error)}


def chat_stream(chunks):
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(chunk)
    # Not `get_final_completion`, which raises an error if a limit has ended the answer.
    return fields(state.current_completion_snapshot)


def response_stream(events):
    state = ResponseStreamState(input_tools=[], text_format=openai.omit)
    last, items = None, {}
    for event in events:
        state.handle_event(event)
        if event.type == "response.output_item.done":
            items[event.output_index] = event.item
        if event.type in ENDS:
            last = event.response
    # The backend of ChatGPT sends items in their own events only.
    return fields(last) | ({} if last.output else {"output": [fields(items[at]) for at in sorted(items)]})


def pruned(value, at=()):
    """A value without what equals no value: empty ones, and counts of zero in the details of a usage."""
    if isinstance(value, dict):
        value = {name: pruned(it, (*at, name)) for name, it in value.items()}
        return {name: it for name, it in value.items() if it is not None} or None
    if isinstance(value, list):
        return [pruned(it, (*at, str(n))) for n, it in enumerate(value)] or None
    is_count = len(at) > 2 and at[0] == "usage"
    return None if value == "" or (is_count and value == 0) else value


def compare(ours, theirs, at=()):
    """Yields the leaves that differ, as (path, ours, theirs)."""
    pair = ours, theirs
    if dict in map(type, pair) and all(it is None or isinstance(it, dict) for it in pair):
        ours, theirs = (it or {} for it in pair)
        for name in sorted(ours.keys() | theirs.keys()):
            yield from compare(ours.get(name), theirs.get(name), (*at, name))
    elif isinstance(ours, list) and isinstance(theirs, list):
        for index in range(max(len(ours), len(theirs))):
            pair = (items[index] if index < len(items) else None for items in (ours, theirs))
            yield from compare(*pair, (*at, str(index)))
    elif ours != theirs:
        yield at, ours, theirs


def differences(recording, ours, theirs, used):
    """Yields the unexpected differences between two answers."""
    if "unreadable" in ours:
        yield f"ours is unreadable: {ours['unreadable']}"
        return
    used |= {reading.__name__ for reading in READINGS if reading(theirs, recording)}
    if "error" in theirs or "error" in ours:
        yield from error_differences(ours, theirs)
        return
    api, sent = recording["api"], request(recording)["extra_body"] if recording["request"] else ()
    for at, one, other in compare(pruned(visible(ours)), pruned(visible(theirs))):
        # The other parameters of a response are defaults of the provider.
        if api == "openai-responses" and at[0] not in (*ANSWER, *LEFT_OUT[api], *sent):
            continue
        left_out = [pattern for pattern in LEFT_OUT[api] if is_in(pattern.split("/"), at)]
        used |= {(api, pattern) for pattern in left_out}
        if not left_out:
            yield f"{'/'.join(at)}: ours {show(one)}, theirs {show(other)}"


def error_differences(ours, theirs):
    ours, theirs = ours.get("error"), theirs.get("error")
    if ours is None or theirs is None:
        yield f"error: ours {show(ours)}, theirs {show(theirs)}"
    elif theirs["status"] is not None and ours["status"] != STATUS.get(theirs["status"]):
        yield f"status: ours {ours['status']}, theirs {theirs['status']}"


def is_in(pattern, at):
    """Whether a path is that of a pattern, or of a field of it."""
    return len(pattern) <= len(at) and all(one in ("*", other) for one, other in zip(pattern, at))


def visible(answer):
    """A response without the items, and the parts of tools, that our server does not show, and with the text of the
    others' reasoning."""
    if answer.get("object") != "response":
        return answer
    output = [dict(item) for item in answer["output"] if item["type"] in ITEMS]
    for item in output:
        if item["type"] == "reasoning":
            parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
            text = "".join(part["text"] for part in parts)
            item.clear()
            item |= {"type": "reasoning", "text": text}
        elif item["type"] == "message":
            item["content"] = [part for part in item["content"] if part.get("text") != ""]
    output = [item for item in output if item.get("text") != "" and item.get("content") != []]
    tools = [
        {name: tool.get(name) for name in ("type", "name", "description", "parameters")}
        for tool in answer.get("tools") or () if tool["type"] == "function"
    ]
    return answer | {"output": output, "tools": tools}


def show(value):
    return json.dumps(value, ensure_ascii=False, default=str)[:200]


def kinds_of(recording, theirs):
    """The kinds that a recording counts as."""
    if "unreadable" in theirs:
        return ["unreadable for the client without our server"]
    if is_of_other_tools(theirs):
        return ["of tools that our server rejects"]
    body = (recording["request"] or {}).get("body") or {}
    kinds = ["conversations", f"{recording['api']} {'streamed' if recording['stream'] else 'whole'}"]
    tags = {"with an error": "error" in theirs, "with images": "req-image" in recording["features"]}
    tags["with a refusal"] = "refusal" in recording["features"]
    tags["with tools"] = bool(body.get("tools") or "tool-call" in recording["features"])
    tags["with structured output"] = bool(body.get("response_format") or (body.get("text") or {}).get("format"))
    return kinds + [name for name, has in tags.items() if has]


def is_of_other_tools(answer):
    """Whether an answer has calls of tools that our server rejects."""
    messages = (choice.get("message") or {} for choice in answer.get("choices") or ())
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    items = answer.get("output") or ()
    return any(it["type"] in OTHER_CALLS for it in items) or any(it["type"] == "custom" for it in calls)


READINGS = []


def reading(function):
    """Declares an answer of a service that ours reads otherwise on purpose: the function changes what the client
    has read of the recorded answer, and returns whether it has."""
    READINGS.append(function)
    return function


def first(answer):
    """The first choice of a chat, and its message."""
    choice = next((choice for choice in answer.get("choices") or () if choice["index"] == 0), None)
    return choice, choice and choice.get("message")


@reading
def a_truncated_stream_is_an_error(answer, recording):
    """The client does not notice that the end of a stream is missing."""
    if "no-terminal-event" not in recording["features"] or "error" in answer:
        return False
    answer.clear()
    answer["error"] = {"class": "", "status": None}
    return True


@reading
def there_is_one_choice(answer, recording):
    """Requests with another `n` are rejected."""
    choices = answer.get("choices") or ()
    if len(choices) < 2:
        return False
    answer["choices"] = [choice for choice in choices if choice["index"] == 0]
    return True


@reading
def the_role_is_sent_once(answer, recording):
    """The client joins the roles of all chunks, which some services repeat or omit."""
    choice, message = first(answer)
    if choice is None or (message or {}).get("role") == "assistant":
        return False
    choice["message"] = (message or {}) | {"role": "assistant"}
    return True


@reading
def the_finish_reason_is_one_of_openais(answer, recording):
    """Services have others, or none."""
    choice, message = first(answer)
    reason = choice and choice.get("finish_reason")
    reasons = {"tool_call": "tool_calls", "eos": "stop", "": "tool_calls", None: "tool_calls"}
    if choice is None or reason not in reasons:
        return False
    choice["finish_reason"] = reasons[reason]
    return True


@reading
def the_content_is_text(answer, recording):
    """Mistral has a list of parts, with the reasoning among them."""
    _, message = first(answer)
    if not message or not isinstance(message.get("content"), list):
        return False
    parts = message["content"]
    message["content"] = "".join(part["text"] for part in parts if part["type"] == "text")
    return True


@reading
def tokens_counted_apart_are_added(answer, recording):
    """xAI counts reasoning, and Mistral audio, apart from the other tokens; OpenAI's counts include them."""
    usage = answer.get("usage") or {}
    apart = (
        ("prompt_tokens", (usage.get("prompt_tokens_details") or {}).get("audio_tokens")),
        ("completion_tokens", (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")),
    )
    for name, count in apart:
        if count and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] + count:
            usage[name] += count
            return True
    return False


@reading
def cached_tokens_are_in_the_details(answer, recording):
    """Some services have them in other fields, which the client's types do not have."""
    raw = (recording["expected"].get("usage") or {}).get("raw") or {}
    count = raw.get("cached_tokens") or raw.get("prompt_cache_hit_tokens")
    usage = answer.get("usage") or {}
    if not count or "prompt_tokens" not in usage or (usage.get("prompt_tokens_details") or {}).get("cached_tokens"):
        return False
    usage["prompt_tokens_details"] = (usage.get("prompt_tokens_details") or {}) | {"cached_tokens": count}
    return True


def main():
    binary, folder, *rest = sys.argv[1:]
    shown = rest[rest.index("--show") + 1] if "--show" in rest else None
    recordings = load(pathlib.Path(folder))
    kinds, failures, used = collections.Counter(), [], set()
    with Recorded(recordings) as recorded, Server([binary, folder]) as server:
        for number, recording in enumerate(recordings):
            if shown not in (None, recording["id"]):
                continue
            theirs = read(client(f"{recorded.url}/{number}"), recording)
            ours = read(client(server.url), recording)
            if shown:
                print(json.dumps({"theirs": theirs, "ours": ours}, indent=1, ensure_ascii=False, default=str))
            kinds.update(kinds_of(recording, theirs))
            if "unreadable" in theirs or is_of_other_tools(theirs):
                continue
            found = differences(recording, ours, theirs, used)
            failures += (f"{recording['id']}: {it}" for it in found)
    if shown is None:
        unused = {(api, path) for api, paths in LEFT_OUT.items() for path in paths}
        unused |= {reading.__name__ for reading in READINGS}
        failures += (f"unused: {it}" for it in sorted(map(str, unused - used)))
        if kinds["conversations"] < MINIMUM:
            failures.append(f"fewer than {MINIMUM} conversations")
    for failure in failures:
        print(failure)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"openai {openai.__version__} for Python, recorded answers: {counts}; {len(failures)} differences")
    sys.exit(1 if failures else 0)


def client(url):
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0)


if __name__ == "__main__":
    main()
