import base64
import json

from google import genai
from google.genai import errors, types

from conversation import NotTaken, is_run, text_of

LEVELS = {"low": types.ThinkingLevel.LOW, "high": types.ThinkingLevel.HIGH}


# Their contents are not the service's.
FOREIGN = ("args", "response", "parametersJsonSchema", "responseJsonSchema")


def normal(value):
    """Converts names to camel case and bytes to standard base64; the service accepts both forms (ProtoJSON)."""
    if isinstance(value, list):
        return [normal(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, item in value.items():
        first, *rest = name.split("_")
        name = first + "".join(word.capitalize() for word in rest)
        made[name] = item if name in FOREIGN else normal(item)
    if "data" in made and "mimeType" in made:
        made["data"] = made["data"].replace("-", "+").replace("_", "/")
    return made


def part(piece):
    if "text" in piece:
        return types.Part(text=text_of(piece))
    for kind in ("image", "audio", "file"):
        if medium := piece.get(kind):
            if "base64" in medium:
                return types.Part.from_bytes(data=base64.b64decode(medium["base64"]), mime_type=medium["type"])
            # The service refers to a file by its URI.
            return types.Part.from_uri(file_uri=medium.get("url") or medium["id"], mime_type=medium["type"])
    raise NotTaken(str(piece))


def convert(pieces):
    """Converts an assistant's parts from another model, as far as the API supports them."""
    parts, calls = [], []
    for piece in pieces:
        if "text" in piece or "refusal" in piece:
            parts.append(types.Part(text=piece["refusal"] if "refusal" in piece else text_of(piece)))
        elif "image" in piece:
            parts.append(part(piece))
        elif "call" in piece and is_run(piece["call"]):
            call = piece["call"]
            try:
                arguments = json.loads(call["arguments"])
            except ValueError:
                arguments = {}
            made = types.FunctionCall(name=call["name"], args=arguments)
            parts.append(types.Part(function_call=made))
            calls.append(made)
    return parts, calls


def result(call, outcome):
    pieces = outcome["content"]
    text = "".join(text_of(piece) for piece in pieces if "text" in piece)
    # `output` and `error` are the service's own keys.
    name = "output" if outcome.get("status", "done") == "done" else "error"
    media = [
        types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(
            mime_type=piece["image"]["type"], data=base64.b64decode(piece["image"]["base64"])))
        for piece in pieces if "image" in piece
    ]
    made = types.FunctionResponse(id=call.id, name=call.name, response={name: text}, parts=media or None)
    return types.Part(function_response=made)


def send(server, conversation, stream):
    client = genai.Client(api_key="the-key", http_options=types.HttpOptions(base_url=server.url))
    contents, calls, system = [], [], list(conversation.system)
    for message in conversation.messages:
        if "system" in message:
            contents.append(types.Content(role="user", parts=[types.Part(text=message["system"])]))
        elif "user" in message:
            contents.append(types.Content(role="user", parts=[part(piece) for piece in message["user"]]))
        elif "answer" in message:
            server.answers.append(message["answer"][conversation.api])
            answer = client.models.generate_content(model=conversation.model, contents=contents)
            contents.append(answer.candidates[0].content)
            calls = answer.function_calls or []
        elif "results" in message:
            parts = [result(*pair) for pair in zip(calls, message["results"], strict=True)]
            contents.append(types.Content(role="user", parts=parts))
        else:
            [pieces] = message.values()
            parts, calls = convert(pieces)
            contents.append(types.Content(role="model", parts=parts))
    config = types.GenerateContentConfig()
    if system:
        config.system_instruction = types.Content(parts=[types.Part(text=text) for text in system])
    if conversation.has("parallel_tool_calls") and conversation.tools:
        raise NotTaken("parallel_tool_calls")
    for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "max_output_tokens"):
        if conversation.has(name):
            setattr(config, name, conversation.get(name))
    if conversation.has("stop"):
        config.stop_sequences = conversation.get("stop")
    if conversation.has("reasoning_effort"):
        level = LEVELS[conversation.get("reasoning_effort")]
        config.thinking_config = types.ThinkingConfig(thinking_level=level, include_thoughts=True)
    if conversation.tools:
        config.tools = [types.Tool(function_declarations=[tool(each) for each in conversation.tools])]
    if conversation.has("tool_choice"):
        choice = conversation.get("tool_choice")
        mode = {"auto": "AUTO", "none": "NONE", "required": "ANY"}.get(choice if isinstance(choice, str) else "", "ANY")
        calling = types.FunctionCallingConfig(mode=mode)
        if isinstance(choice, dict):
            calling.allowed_function_names = [choice["tool"]]
        config.tool_config = types.ToolConfig(function_calling_config=calling)
    if output := conversation.get("output"):
        config.response_mime_type = "application/json"
        config.response_json_schema = output["schema"]
    call = client.models.generate_content_stream if stream else client.models.generate_content
    try:
        for _ in call(model=conversation.model, contents=contents, config=config):
            pass
    except errors.ClientError:
        pass


def tool(described):
    return types.FunctionDeclaration(
        name=described["name"], description=described.get("description"), parameters_json_schema=described["schema"])
