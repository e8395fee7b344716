"""Each API in the words of its vendor's SDK: what sends a conversation."""

from . import anthropic_messages, gemini_generate, ollama_chat, openai_chat, openai_responses

APIS = {
    "anthropic-messages": anthropic_messages.send,
    "gemini-generate": gemini_generate.send,
    "ollama-chat": ollama_chat.send,
    "openai-chat": openai_chat.send,
    "openai-responses": openai_responses.send,
}

# What the service does not tell from one another is made the same.
NORMAL = {
    "gemini-generate": gemini_generate.normal,
}
