import openai

from conversation import NotTaken, is_run, only_texts, text_of

FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}


def part(piece):
    if "text" in piece:
        return {"type": "text", "text": text_of(piece)}
    if image := piece.get("image"):
        if "id" in image:
            raise NotTaken("an image under an id")
        url = image.get("url") or f"data:{image['type']};base64,{image['base64']}"
        return {"type": "image_url", "image_url": {"url": url}}
    if audio := piece.get("audio"):
        if "base64" not in audio:
            raise NotTaken("sound that is not in the request")
        return {"type": "input_audio", "input_audio": {"data": audio["base64"], "format": FORMATS[audio["type"]]}}
    if file := piece.get("file"):
        if "id" in file:
            return {"type": "file", "file": {"file_id": file["id"]}}
        if "url" in file:
            raise NotTaken("a document at a URL")
        data = f"data:{file['type']};base64,{file['base64']}"
        # The service requires a name.
        return {"type": "file", "file": {"filename": file.get("name", "file"), "file_data": data}}
    raise NotTaken(str(piece))


def content(pieces):
    if len(pieces) == 1 and "text" in pieces[0]:
        return text_of(pieces[0])
    return [part(piece) for piece in pieces]


def convert(pieces):
    """Converts an assistant's message from another model, as far as the API supports it."""
    message = {"role": "assistant"}
    if texts := only_texts(pieces):
        message["content"] = "".join(texts)
    if refusals := [piece["refusal"] for piece in pieces if "refusal" in piece]:
        message["refusal"] = "".join(refusals)
    calls = [piece["call"] for piece in pieces if "call" in piece and is_run(piece["call"])]
    if calls:
        message["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls
        ]
    return message, [call["id"] for call in calls]


def send(server, conversation, stream):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="the-key", max_retries=0)
    messages, calls = [], []
    if conversation.system:
        messages.append({"role": "system", "content": "\n\n".join(conversation.system)})
    for message in conversation.messages:
        if "system" in message:
            messages.append({"role": "system", "content": message["system"]})
        elif "user" in message:
            messages.append({"role": "user", "content": content(message["user"])})
        elif "answer" in message:
            server.answers.append(message["answer"][conversation.api])
            answer = client.chat.completions.create(model=conversation.model, messages=messages).choices[0].message
            messages.append(answer)
            calls = [call.id for call in answer.tool_calls or []]
        elif "results" in message:
            for call, result in zip(calls, message["results"], strict=True):
                texts = only_texts(result["content"])
                messages.append({"role": "tool", "tool_call_id": call, "content": "".join(texts)})
        else:
            [pieces] = message.values()
            message, calls = convert(pieces)
            messages.append(message)
    options = {
        name: conversation.get(name)
        for name in ("parallel_tool_calls", "temperature", "top_p", "frequency_penalty",
                     "presence_penalty", "stop", "seed", "reasoning_effort")
        if conversation.has(name)
    }
    if conversation.has("max_output_tokens"):
        options["max_completion_tokens"] = conversation.get("max_output_tokens")
    if conversation.tools:
        options["tools"] = [tool(each) for each in conversation.tools]
    if conversation.has("tool_choice"):
        choice = conversation.get("tool_choice")
        options["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "function": {"name": choice["tool"]}}
    if output := conversation.get("output"):
        options["response_format"] = {"type": "json_schema", "json_schema": output}
    if conversation.metadata:
        options["metadata"] = conversation.metadata
    options |= conversation.provider
    if stream:
        options["stream_options"] = {"include_usage": True}
    try:
        client.chat.completions.create(model=conversation.model, messages=messages, stream=stream, **options)
    except openai.BadRequestError:
        pass


def tool(described):
    function = {"name": described["name"], "parameters": described["schema"]}
    if "description" in described:
        function["description"] = described["description"]
    return {"type": "function", "function": function}
