"""An MCP server with the Python SDK, over stdio, or over HTTP on the port of the first argument."""

import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)

server = MCPServer("python")
SCHEMA = {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]}


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def broken() -> str:
    """Fails."""
    raise ValueError("it is broken")


@server.tool()
async def seat(ctx: Context) -> str | InputRequiredResult:
    """Asks for a row."""
    if ctx.input_responses is None:
        params = ElicitRequestFormParams(message="Which row?", requested_schema=SCHEMA)
        asked = ElicitRequest(method="elicitation/create", params=params)
        return InputRequiredResult(input_requests={"row": asked}, request_state="opaque")
    if ctx.request_state != "opaque":
        raise ValueError("the state is missing")
    return f"row {ctx.input_responses['row'].content['row']}"


@server.tool()
async def summary(ctx: Context, seat: bool = False) -> str | InputRequiredResult:
    """Needs an answer of the model and the roots, and a row if asked to."""
    if ctx.input_responses is None:
        question = SamplingMessage(role="user", content=TextContent(type="text", text="What is it?"))
        params = CreateMessageRequestParams(messages=[question], max_tokens=100)
        requests = {
            "model": CreateMessageRequest(method="sampling/createMessage", params=params),
            "roots": ListRootsRequest(method="roots/list"),
        }
        if seat:
            form = ElicitRequestFormParams(message="Which row?", requested_schema=SCHEMA)
            requests["row"] = ElicitRequest(method="elicitation/create", params=form)
        return InputRequiredResult(input_requests=requests, request_state="opaque")
    answers = ctx.input_responses
    row = answers["row"].content["row"] if seat else "none"
    return f"{answers['model'].content.text}, {answers['roots'].roots[0].uri}, row {row}"


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
