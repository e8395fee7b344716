"""An MCP server with the Python SDK, over stdio, or over HTTP on the port of the first argument."""

import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

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


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
