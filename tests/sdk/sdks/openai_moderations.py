import openai

from .openai_chat import part


def send(server, conversation, stream):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="the-key", max_retries=0)
    parts = [part(piece) for message in conversation.messages for piece in message["user"]]
    if all(each["type"] == "text" for each in parts):
        parts = [each["text"] for each in parts]
    try:
        client.moderations.create(model=conversation.model, input=parts)
    except openai.BadRequestError:
        pass
