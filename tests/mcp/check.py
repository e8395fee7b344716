"""Calls the toolset that `mcp_tools_server` serves with the client of the Python SDK."""

import asyncio
import subprocess
import sys

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import ElicitResult

COMMAND = sys.argv[1]


def equal(one, other):
    if one != other:
        raise AssertionError(f"{str(one)[:500]!r} instead of {str(other)[:500]!r}")


async def check_agent(client, asked, name):
    """An agent is a tool: its text is progress, its interrupt a question, its typed answer structured content."""
    messages = []

    async def progress(_done, _total, message):
        messages.append(message)

    answer = await client.call_tool("assistant", {"prompt": "count to 100"}, progress_callback=progress)
    words = "".join(f"{number} " for number in range(100))
    equal((answer.is_error, answer.structured_content["words"]), (False, words))
    # 100 words in a second.
    if not 2 <= len(messages) <= 6 or not answer.content[0].text.startswith("".join(messages)):
        raise AssertionError(messages)
    refunded = await client.call_tool("assistant", {"prompt": "refund the order"})
    equal((refunded.is_error, refunded.structured_content["words"], len(asked)), (False, "refunded", 1))
    equal("order_refund" in asked[0], True)
    broken = await client.call_tool("assistant", {"prompt": "break"})
    equal((broken.is_error, "secret" in broken.content[0].text), (True, False))
    if name == "stdio":
        # Over HTTP, this client reads events of at most a MiB.
        long = await client.call_tool("assistant", {"prompt": "write a MiB"})
        equal((long.is_error, len(long.structured_content["words"])), (False, 1 << 20))


async def check(server, mode, name):
    asked = []

    async def approve(_, params):
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approved": len(asked) == 1})

    async with Client(server, mode=mode, elicitation_callback=approve) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        equal(sorted(tools), ["add", "assistant", "broken", "count", "forever", "pixel", "refund", "release"])
        equal(tools["add"].annotations.read_only_hint, True)
        equal(tools["refund"].annotations.destructive_hint, True)
        sum_ = await client.call_tool("add", {"a": 2, "b": 3})
        equal((sum_.is_error, sum_.structured_content, sum_.content[0].text), (False, {"sum": 5}, "5"))
        invalid = await client.call_tool("add", {"a": "two"})
        equal(invalid.is_error, True)
        failed = await client.call_tool("broken", {})
        equal((failed.is_error, failed.content[0].text), (True, "It is broken."))
        pixel = await client.call_tool("pixel", {})
        equal([part.type for part in pixel.content], ["text", "image"])
        steps = []

        async def progress(done, total, message):
            steps.append((done, total, message))

        counted = await client.call_tool("count", {"steps": 5}, progress_callback=progress)
        equal(counted.content[0].text, "counted")
        equal(steps[:1], [(1.0, 5.0, "counting")])
        await check_agent(client, asked, name)
        asked.clear()
        try:
            await client.call_tool("unknown", {})
            raise AssertionError("an unknown tool was called")
        except Exception as error:
            if isinstance(error, AssertionError):
                raise
        try:
            await client.call_tool("forever", {}, read_timeout_seconds=0.3)
            raise AssertionError("the call has ended")
        except Exception as error:
            if isinstance(error, AssertionError):
                raise
        refund = await client.call_tool("refund", {})
        equal((refund.is_error, refund.content[0].text, len(asked)), (False, "refunded", 1))
        denied = await client.call_tool("refund", {})
        equal(denied.is_error, True)
        released = await client.call_tool("release", {})
        equal((released.is_error, len(asked)), (True, 2))
    async with Client(server, mode=mode) as client:
        # The revision 2026-07-28 has an error for it.
        try:
            refund = await client.call_tool("refund", {})
            equal((mode, refund.is_error), ("legacy", True))
            why = refund.content[0].text
        except MCPError as error:
            equal((mode, error.code), ("auto", -32021))
            why = error.message
        equal("requires an approval" in why and "the client cannot ask" in why, True)
    print(f"{name}, {mode}: done")


async def main():
    for mode in ("legacy", "auto"):
        await check(StdioServerParameters(command=COMMAND, args=["stdio"]), mode, "stdio")
    process = subprocess.Popen([COMMAND, "http"], stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        for mode in ("legacy", "auto"):
            await check(url, mode, "http")
    finally:
        process.terminate()
        process.wait(20)


asyncio.run(main())
