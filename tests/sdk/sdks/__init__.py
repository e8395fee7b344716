"""Functions that send a conversation with the SDK of each API's vendor."""

from . import anthropic_messages, gemini_generate, ollama_chat, openai_chat, openai_moderations, openai_responses

APIS = {
    "anthropic-messages": anthropic_messages.send,
    "gemini-generate": gemini_generate.send,
    "ollama-chat": ollama_chat.send,
    "openai-chat": openai_chat.send,
    "openai-moderations": openai_moderations.send,
    "openai-responses": openai_responses.send,
}

# Functions that normalize forms that the service treats alike.
NORMAL = {
    "gemini-generate": gemini_generate.normal,
}
