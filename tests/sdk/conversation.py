"""Provider-neutral conversations, as in `conversations/`."""


class NotTaken(Exception):
    """The SDK or, according to its documentation, the service does not support a part of the conversation."""


class Conversation:
    def __init__(self, described, api, model):
        self.system = described.get("system", [])
        self.messages = described["messages"]
        self.tools = described.get("tools", [])
        self.provider = described.get("provider", {}).get(api, {})
        self.metadata = described.get("metadata", {})
        self.api, self.model = api, model
        self.options = {name: described[name] for name in (
            "tool_choice", "parallel_tool_calls", "output", "max_output_tokens", "temperature", "top_p",
            "frequency_penalty", "presence_penalty", "stop", "seed", "reasoning_effort",
        ) if name in described}

    def get(self, name):
        return self.options.get(name)

    def has(self, name):
        return name in self.options


def text_of(piece):
    return piece["text"] * piece.get("times", 1)


def only_texts(pieces):
    return [text_of(piece) for piece in pieces if "text" in piece]


def is_run(call):
    """Returns whether the loop executes the call."""
    return call.get("executor", "loop") == "loop"
