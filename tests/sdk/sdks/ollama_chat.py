import json

import ollama

from conversation import NotTaken, is_run, only_texts, text_of


def user(pieces):
    """Returns a user message, with its images in a separate field."""
    message = {"role": "user", "content": "".join(only_texts(pieces))}
    images = []
    for piece in pieces:
        if "text" in piece:
            continue
        if "base64" not in piece.get("image", {}):
            raise NotTaken(str(piece))
        images.append(piece["image"]["base64"])
    if images:
        message["images"] = images
    return message


def convert(pieces):
    """Converts an assistant's message from another model, as far as the API supports it."""
    texts = [piece["refusal"] if "refusal" in piece else text_of(piece)
             for piece in pieces if "text" in piece or "refusal" in piece]
    message = {"role": "assistant", "content": "".join(texts)}
    calls = []
    for piece in pieces:
        if "call" in piece and is_run(piece["call"]):
            try:
                arguments = json.loads(piece["call"]["arguments"])
            except ValueError:
                arguments = {}
            calls.append({"function": {"name": piece["call"]["name"], "arguments": arguments}})
    if calls:
        message["tool_calls"] = calls
    return message, [call["function"]["name"] for call in calls]


def send(server, conversation, stream):
    client = ollama.Client(host=server.url)
    messages, calls = [], []
    if conversation.system:
        messages.append({"role": "system", "content": "\n\n".join(conversation.system)})
    for message in conversation.messages:
        if "system" in message:
            messages.append({"role": "system", "content": message["system"]})
        elif "user" in message:
            messages.append(user(message["user"]))
        elif "answer" in message:
            server.answers.append(message["answer"][conversation.api])
            answer = client.chat(conversation.model, messages).message
            messages.append(answer)
            calls = [call.function.name for call in answer.tool_calls or []]
        elif "results" in message:
            for name, result in zip(calls, message["results"], strict=True):
                pieces = result["content"]
                made = {"role": "tool", "tool_name": name, "content": "".join(only_texts(pieces))}
                images = [piece["image"]["base64"] for piece in pieces if "image" in piece]
                if images:
                    made["images"] = images
                messages.append(made)
        else:
            [pieces] = message.values()
            made, calls = convert(pieces)
            messages.append(made)
    arguments = dict(conversation.provider)
    if conversation.tools:
        arguments["tools"] = [tool(each) for each in conversation.tools]
        if conversation.get("tool_choice") not in (None, "auto", "none"):
            raise NotTaken("tool_choice")
        if conversation.get("tool_choice") == "none":
            del arguments["tools"]
        if conversation.has("parallel_tool_calls"):
            raise NotTaken("parallel_tool_calls")
    options = {
        {"max_output_tokens": "num_predict"}.get(name, name): conversation.get(name)
        for name in ("max_output_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop")
        if conversation.has(name)
    }
    if options:
        arguments["options"] = options
    if conversation.has("reasoning_effort"):
        arguments["think"] = conversation.get("reasoning_effort")
    if output := conversation.get("output"):
        arguments["format"] = output["schema"]
    try:
        # The SDK sends the request when the stream is read.
        list(client.chat(conversation.model, messages, stream=stream, **arguments))
    except ollama.ResponseError:
        pass


def tool(described):
    function = {"name": described["name"], "parameters": described["schema"]}
    if "description" in described:
        function["description"] = described["description"]
    return {"type": "function", "function": function}
