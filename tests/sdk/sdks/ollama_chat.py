import json

import ollama

from conversation import NotTaken, is_run, only_texts, text_of


def user(pieces):
    """Its content is text, and its images are beside it."""
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


def said(pieces):
    """An assistant's message that the API's own model did not write: what the API has words for."""
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
            made, calls = said(pieces)
            messages.append(made)
    asked = dict(conversation.provider)
    if conversation.tools:
        asked["tools"] = [tool(each) for each in conversation.tools]
        if conversation.get("tool_choice") not in (None, "auto", "none"):
            raise NotTaken("tool_choice")
        if conversation.get("tool_choice") == "none":
            del asked["tools"]
        if conversation.has("parallel_tool_calls"):
            raise NotTaken("parallel_tool_calls")
    options = {
        {"max_output_tokens": "num_predict"}.get(name, name): conversation.get(name)
        for name in ("max_output_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop")
        if conversation.has(name)
    }
    if options:
        asked["options"] = options
    if conversation.has("reasoning_effort"):
        asked["think"] = conversation.get("reasoning_effort")
    if output := conversation.get("output"):
        asked["format"] = output["schema"]
    try:
        # A stream is asked for when it is read.
        list(client.chat(conversation.model, messages, stream=stream, **asked))
    except ollama.ResponseError:
        pass


def tool(described):
    function = {"name": described["name"], "parameters": described["schema"]}
    if "description" in described:
        function["description"] = described["description"]
    return {"type": "function", "function": function}
