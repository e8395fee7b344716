import json

import anthropic

from conversation import NotTaken, is_run, only_texts, text_of

# The SDK wants to be told how much the model may write.
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


def said(pieces):
    """An assistant's blocks that the API's own model did not write: what the API has words for."""
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
                # It takes objects only.
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
            blocks, calls = said(pieces)
            messages.append({"role": "assistant", "content": blocks})
    if messages[-1]["role"] == "assistant":
        raise NotTaken("an assistant's message at the end, by the newer models")
    asked = {"max_tokens": conversation.get("max_output_tokens") or MAX_TOKENS}
    if system:
        asked["system"] = system
    for name in ("frequency_penalty", "presence_penalty", "seed"):
        if conversation.has(name):
            raise NotTaken(name)
    # The newest models refuse them.
    for name in ("temperature", "top_p"):
        if conversation.has(name):
            raise NotTaken(name)
    if conversation.has("stop"):
        asked["stop_sequences"] = conversation.get("stop")
    if conversation.has("reasoning_effort"):
        asked["thinking"] = {"type": "adaptive"}
        asked["output_config"] = {"effort": conversation.get("reasoning_effort")}
    if conversation.tools:
        asked["tools"] = [tool(each) for each in conversation.tools]
    choice = {}
    if conversation.has("tool_choice"):
        word = conversation.get("tool_choice")
        choice = {"type": {"required": "any"}.get(word, word)} if isinstance(word, str) else {"type": "tool", "name": word["tool"]}
    if conversation.has("parallel_tool_calls"):
        choice = (choice or {"type": "auto"}) | {"disable_parallel_tool_use": not conversation.get("parallel_tool_calls")}
    if choice:
        asked["tool_choice"] = choice
    if output := conversation.get("output"):
        asked["output_config"] = {"format": {"type": "json_schema", "schema": output["schema"]}}
    if "user_id" in conversation.metadata:
        asked["metadata"] = {"user_id": conversation.metadata["user_id"]}
    # The SDK has no name for some.
    asked["extra_body"] = conversation.provider
    try:
        client.messages.create(model=conversation.model, messages=messages, stream=stream, **asked)
    except anthropic.BadRequestError:
        pass


def tool(described):
    made = {"name": described["name"], "input_schema": described["schema"]}
    if "description" in described:
        made["description"] = described["description"]
    return made
