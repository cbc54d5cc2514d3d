"""The run behind the golden snapshot; `python -m tests.golden.fixed_run` writes the file anew.

A file that an older version wrote is kept for ever: a new version of the schema gets a new file.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

from tests.support import fixed_agent
from whyloop import AgentState, ErrorPolicy, ImagePart, TextPart, Usage, tool
from whyloop.errors import RateLimitError, ToolExecutionError
from whyloop.testing import FakeClock, call, calls, text

GOLDEN = Path(__file__).with_name("state_v1.json")


async def fixed_run() -> AgentState:
    """Two queries: a limit that was waited out, a failed tool, several calls, and a steps limit."""
    clock = FakeClock(start=datetime(2026, 1, 16, 10, tzinfo=UTC))

    @tool
    async def search(query: str) -> list[str]:
        clock.advance(0.25)
        if query == "":
            raise ToolExecutionError("an empty query finds nothing")
        return [f"{query} GmbH", f"{query} Ltd"]

    agent = fixed_agent(
        RateLimitError("slow down", retry_after=2, request_id="req-1"),
        calls(
            call("search", {"query": "Ünïted"}),
            call("search", {"query": ""}),
            text="I look both up.",
            usage=Usage(input=120, output=30, cached=100, reasoning=10),
        ),
        text("There are two.", usage=Usage(input=200, output=5)),
        call("search", {"query": "Again"}, usage=Usage(input=50, output=5)),
        call("serach", "{not json"),
        clock=clock,
        tools=[search],
        max_steps=3,
        max_tokens=10_000,
        error_policy=ErrorPolicy.retry_tool_errors(),
    )
    state = await agent.run([TextPart("Who are they?"), ImagePart(url="https://example.com/a.png")])
    clock.advance(86_400)
    state = state.with_metadata(customer={"id": 7, "tags": ["a", "b"]}, rating=None)
    unsubscribe = agent.subscribe(
        lambda event: agent.request_stop("closed for today") if event.step_number == 2 else None
    )
    state = await agent.run("And again?", state=state)
    unsubscribe()
    return state


if __name__ == "__main__":
    document = asyncio.run(fixed_run()).to_dict()
    GOLDEN.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
