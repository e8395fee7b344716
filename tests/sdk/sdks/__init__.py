"""Each API in the words of its vendor's SDK: what sends a conversation."""

from . import openai_chat

APIS = {
    "openai-chat": openai_chat.send,
}
