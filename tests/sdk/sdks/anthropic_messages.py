import json

import anthropic

from conversation import NotTaken, is_run, only_texts, text_of

# The SDK requires the token limit.
MAX_TOKENS = 1


def source(medium):
    if "base64" in medium:
        return {"type": "base64", "media_type": medium["type"], "data": medium["base64"]}
    if "url" in medium:
        return {"type": "url", "url": medium["url"]}
    return {"type": "file", "file_id": medium["id"]}


def block(piece):
    if "text" in piece:
        return {"type": "text", "text": text_of(piece)}
    if "image" in piece:
        return {"type": "image", "source": source(piece["image"])}
    if file := piece.get("file"):
        made = {"type": "document", "source": source(file)}
        if "name" in file:
            made["title"] = file["name"]
        return made
    raise NotTaken(str(piece))


def convert(pieces):
    """Converts an assistant's blocks from another model, as far as the API supports them."""
    blocks, calls = [], []
    for piece in pieces:
        if "text" in piece or "refusal" in piece:
            text = piece["refusal"] if "refusal" in piece else text_of(piece)
            blocks.append({"type": "text", "text": text})
        elif "call" in piece and is_run(piece["call"]):
            call = piece["call"]
            try:
                arguments = json.loads(call["arguments"])
            except ValueError:
                # The API accepts only objects.
                arguments = {}
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": arguments})
            calls.append(call["id"])
    return blocks, calls


def send(server, conversation, stream):
    client = anthropic.Anthropic(base_url=server.url, api_key="the-key", max_retries=0)
    messages, calls = [], []
    system = [{"type": "text", "text": text} for text in conversation.system]
    for message in conversation.messages:
        if "system" in message:
            system.append({"type": "text", "text": message["system"]})
        elif "user" in message:
            messages.append({"role": "user", "content": [block(piece) for piece in message["user"]]})
        elif "answer" in message:
            server.answers.append(message["answer"][conversation.api])
            answer = client.messages.create(model=conversation.model, max_tokens=MAX_TOKENS, messages=messages)
            messages.append({"role": "assistant", "content": answer.content})
            calls = [block.id for block in answer.content if block.type == "tool_use"]
        elif "results" in message:
            blocks = []
            for call, result in zip(calls, message["results"], strict=True):
                pieces = result["content"]
                made = {"type": "tool_result", "tool_use_id": call}
                if any("image" in piece for piece in pieces):
                    made["content"] = [block(piece) for piece in pieces]
                else:
                    made["content"] = "".join(only_texts(pieces))
                if result.get("status", "done") != "done":
                    made["is_error"] = True
                blocks.append(made)
            messages.append({"role": "user", "content": blocks})
        else:
            [pieces] = message.values()
            blocks, calls = convert(pieces)
            messages.append({"role": "assistant", "content": blocks})
    if messages[-1]["role"] == "assistant":
        raise NotTaken("an assistant's message at the end, by the newer models")
    options = {"max_tokens": conversation.get("max_output_tokens") or MAX_TOKENS}
    if system:
        options["system"] = system
    for name in ("frequency_penalty", "presence_penalty", "seed"):
        if conversation.has(name):
            raise NotTaken(name)
    # The newest models reject them.
    for name in ("temperature", "top_p"):
        if conversation.has(name):
            raise NotTaken(name)
    if conversation.has("stop"):
        options["stop_sequences"] = conversation.get("stop")
    if conversation.has("reasoning_effort"):
        options["thinking"] = {"type": "adaptive"}
        options["output_config"] = {"effort": conversation.get("reasoning_effort")}
    if conversation.tools:
        options["tools"] = [tool(each) for each in conversation.tools]
    choice = {}
    if conversation.has("tool_choice"):
        word = conversation.get("tool_choice")
        choice = {"type": {"required": "any"}.get(word, word)} if isinstance(word, str) else {"type": "tool", "name": word["tool"]}
    if conversation.has("parallel_tool_calls"):
        choice = (choice or {"type": "auto"}) | {"disable_parallel_tool_use": not conversation.get("parallel_tool_calls")}
    if choice:
        options["tool_choice"] = choice
    if output := conversation.get("output"):
        options["output_config"] = {"format": {"type": "json_schema", "schema": output["schema"]}}
    if "user_id" in conversation.metadata:
        options["metadata"] = {"user_id": conversation.metadata["user_id"]}
    # The SDK has no parameters for some of them.
    options["extra_body"] = conversation.provider
    try:
        client.messages.create(model=conversation.model, messages=messages, stream=stream, **options)
    except anthropic.BadRequestError:
        pass


def tool(described):
    made = {"name": described["name"], "input_schema": described["schema"]}
    if "description" in described:
        made["description"] = described["description"]
    return made
