"""The run behind the golden files; `python -m tests.golden.fixed_run` writes the newest of them anew.

A file that an older version wrote is kept for ever and only ever read: a new version of the schema
gets a new file.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support import FixedWorld, fixed_agent
from whyloop import Agent, AgentState, ErrorPolicy, ImagePart, TextPart, Usage, tool
from whyloop.errors import RateLimitError, ToolExecutionError
from whyloop.testing import FakeClock, ScriptedModel, call, calls, text
from whyloop.wire.journal import entry_between

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "state_v2.json"
JOURNAL = FOLDER / "journal_v1.jsonl"
AGENT_ID = "id-2"


def snapshot(version: int) -> dict[str, Any]:
    """The golden snapshot of a version."""
    document: dict[str, Any] = json.loads((FOLDER / f"state_v{version}.json").read_text(encoding="utf-8"))
    return document


def journal() -> list[str]:
    """The entries of the golden journal."""
    return JOURNAL.read_text(encoding="utf-8").splitlines()


class Recording:
    """A journal in memory, on a clock that starts at the same moment every time."""

    def __init__(self) -> None:
        self.clock = FakeClock(start=datetime(2026, 1, 16, 10, tzinfo=UTC))
        self.states: list[AgentState] = []
        self.entries: list[str] = []

    async def record(self, state: AgentState) -> None:
        self.entries.append(entry_between(self.states[-1] if self.states else None, state))
        self.states.append(state)


async def fixed_run(journal: Recording | None = None) -> AgentState:
    """Three queries: the last waited for people, and waits again."""
    journal = journal or Recording()
    return await paused_run(await stopped_run(journal), journal)


async def stopped_run(journal: Recording) -> AgentState:
    """Two queries: a limit that was waited out, a failed tool, several calls, and a request to stop."""
    clock = journal.clock

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
    ).journaled(journal)
    state = await agent.run([TextPart("Who are they?"), ImagePart(url="https://example.com/a.png")])
    clock.advance(86_400)
    state = state.with_metadata(customer={"id": 7, "tags": ["a", "b"]}, rating=None)
    unsubscribe = agent.subscribe(
        lambda event: agent.request_stop("closed for today") if event.step_number == 2 else None
    )
    state = await agent.run("And again?", state=state)
    unsubscribe()
    return state


async def paused_run(state: AgentState, journal: Recording) -> AgentState:
    """Another query: a call that was approved, one denied, one edited, and one that still waits."""
    clock = journal.clock

    @tool(needs_approval=lambda arguments: arguments["amount"] > 100)
    async def pay(amount: int, to: str) -> str:
        clock.advance(0.5)
        return f"paid {amount} to {to}"

    @tool
    async def balance() -> int:
        clock.advance(0.25)
        return 1200

    model = ScriptedModel(
        [
            calls(
                call("pay", {"amount": 500, "to": "Ünïted GmbH"}, id="pay_1"),
                call("pay", {"amount": 700, "to": "Ünïted Ltd"}, id="pay_2"),
                call("pay", {"amount": 9000, "to": "Again GmbH"}, id="pay_3"),
                call("balance", id="balance_1"),
                text="I pay them.",
                usage=Usage(input=300, output=40),
            ),
            calls(
                call("balance", id="balance_2"),
                call("pay", {"amount": 101, "to": "Again Ltd"}, id="pay_4"),
                text="One is left.",
                usage=Usage(input=400, output=20),
            ),
        ]
    )
    world = FixedWorld(model, clock)
    while world.new_id() != state.execution.id:
        pass  # Those ids are taken.
    agent = Agent(model, [pay, balance], world=world).journaled(journal)
    clock.advance(3_600)
    state = await agent.run("Pay them.", state=state)
    clock.advance(60)
    state = state.approve("pay_1", by="ada", now=clock.now())
    await journal.record(state)
    clock.advance(60)
    state = state.deny("pay_2", "we know them too little", by="Grâce", now=clock.now())
    await journal.record(state)
    clock.advance(60)
    state = state.edit("pay_3", {"amount": 90, "to": "Again GmbH"}, by="ada", now=clock.now())
    await journal.record(state)
    clock.advance(7_200)
    return await agent.resume(state)


if __name__ == "__main__":
    recording = Recording()
    document = asyncio.run(fixed_run(recording)).to_dict()
    GOLDEN.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    JOURNAL.write_text("\n".join(recording.entries) + "\n", encoding="utf-8")
