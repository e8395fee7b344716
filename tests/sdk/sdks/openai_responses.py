import openai

from conversation import NotTaken, is_run, only_texts, text_of


def part(piece):
    if "text" in piece:
        return {"type": "input_text", "text": text_of(piece)}
    if image := piece.get("image"):
        if "id" in image:
            return {"type": "input_image", "file_id": image["id"], "detail": "auto"}
        url = image.get("url") or f"data:{image['type']};base64,{image['base64']}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if file := piece.get("file"):
        if "id" in file:
            return {"type": "input_file", "file_id": file["id"]}
        if "url" in file:
            return {"type": "input_file", "file_url": file["url"]}
        data = f"data:{file['type']};base64,{file['base64']}"
        # The service requires a name.
        return {"type": "input_file", "filename": file.get("name", "file"), "file_data": data}
    raise NotTaken(str(piece))


def content(pieces):
    if len(pieces) == 1 and "text" in pieces[0]:
        return text_of(pieces[0])
    return [part(piece) for piece in pieces]


def convert(pieces):
    """Converts an assistant's items from another model, as far as the API supports them."""
    items, calls = [], []
    for piece in pieces:
        if "text" in piece or "refusal" in piece:
            text = piece["refusal"] if "refusal" in piece else text_of(piece)
            items.append({"role": "assistant", "content": text})
        elif "call" in piece and is_run(piece["call"]):
            call = piece["call"]
            items.append({
                "type": "function_call", "call_id": call["id"], "name": call["name"], "arguments": call["arguments"],
            })
            calls.append(call["id"])
    return items, calls


def send(server, conversation, stream):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="the-key", max_retries=0)
    items, calls = [], []
    for message in conversation.messages:
        if "system" in message:
            items.append({"role": "system", "content": message["system"]})
        elif "user" in message:
            items.append({"role": "user", "content": content(message["user"])})
        elif "answer" in message:
            server.answers.append(message["answer"][conversation.api])
            answer = client.responses.create(model=conversation.model, input=items)
            items += answer.output
            calls = [item.call_id for item in answer.output if item.type == "function_call"]
        elif "results" in message:
            for call, result in zip(calls, message["results"], strict=True):
                pieces = result["content"]
                output = "".join(only_texts(pieces))
                if any("image" in piece for piece in pieces):
                    output = [part(piece) for piece in pieces]
                items.append({"type": "function_call_output", "call_id": call, "output": output})
        else:
            [pieces] = message.values()
            more, calls = convert(pieces)
            items += more
    # The service stores nothing, so each request has the complete conversation.
    options = {"store": False, "include": ["reasoning.encrypted_content"]}
    if conversation.system:
        options["instructions"] = "\n\n".join(conversation.system)
    for name in ("parallel_tool_calls", "temperature", "top_p", "max_output_tokens"):
        if conversation.has(name):
            options[name] = conversation.get(name)
    for name in ("frequency_penalty", "presence_penalty", "stop", "seed"):
        if conversation.has(name):
            raise NotTaken(name)
    if conversation.has("reasoning_effort"):
        options["reasoning"] = {"effort": conversation.get("reasoning_effort")}
    if conversation.tools:
        options["tools"] = [tool(each) for each in conversation.tools]
    if conversation.has("tool_choice"):
        choice = conversation.get("tool_choice")
        options["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "name": choice["tool"]}
    if output := conversation.get("output"):
        options["text"] = {"format": {"type": "json_schema", **output}}
    if conversation.metadata:
        options["metadata"] = conversation.metadata
    options |= conversation.provider
    try:
        client.responses.create(model=conversation.model, input=items, stream=stream, **options)
    except openai.BadRequestError:
        pass


def tool(described):
    made = {"type": "function", "name": described["name"], "parameters": described["schema"], "strict": True}
    if "description" in described:
        made["description"] = described["description"]
    return made
