"""The run behind the golden files; `python -m tests.golden.fixed_run` writes them anew.

Until the first release a file is written anew in the commit that changes its format.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support import FixedWorld, MemoryJournal, fixed_agent
from whyloop import Agent, AgentState, ErrorPolicy, ImagePart, TextPart, Usage, Verdict, tool
from whyloop.errors import RateLimitError, ToolExecutionError
from whyloop.events import AgentEvent, ToolCallCompleted
from whyloop.loop.executions import resume_run, start_run
from whyloop.testing import FakeClock, ScriptedModel, call, calls, text
from whyloop.values.messages import Part

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "state_v1.json"
JOURNAL = FOLDER / "journal_v1.jsonl"
AGENT_ID = "session-1"
METADATA = {"customer": {"id": 7, "tags": ["a", "b"]}, "rating": None}


def snapshot(version: int = 1) -> dict[str, Any]:
    """The golden snapshot of a version."""
    document: dict[str, Any] = json.loads((FOLDER / f"state_v{version}.json").read_text(encoding="utf-8"))
    return document


def journal() -> list[str]:
    """The entries of the golden journal."""
    return JOURNAL.read_text(encoding="utf-8").splitlines()


class Recording(MemoryJournal):
    """A journal in memory, with a clock that starts at the same moment every time."""

    def __init__(self) -> None:
        super().__init__(AGENT_ID)
        self.clock = FakeClock(start=datetime(2026, 1, 16, 10, tzinfo=UTC))


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
        instructions="Answer briefly.",
        max_steps=3,
        max_tokens=10_000,
        error_policy=ErrorPolicy.retry_tool_errors(),
    )
    query: list[Part] = [TextPart("Who are they?"), ImagePart(url="https://example.com/a.png")]
    state = await start_run(agent, query, journal.create(agent, METADATA), journal=journal).finish()
    clock.advance(86_400)

    def stop_after_second_step(event: AgentEvent) -> None:
        if isinstance(event, ToolCallCompleted) and event.step_number == 2:
            agent.request_stop("closed for today")

    run = start_run(agent, "And again?", state, journal=journal, handlers=[stop_after_second_step])
    return await run.finish()


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
    agent = Agent(model, [pay, balance], world=world, name="cashier")
    clock.advance(3_600)
    state = await start_run(agent, "Pay them.", state, journal=journal).finish()
    asked = {pending.tool_call_id: pending.id for pending in state.pending_calls}
    clock.advance(60)
    journal.decide(asked["pay_1"], Verdict.APPROVED, "ada", clock.now())
    clock.advance(60)
    journal.decide(asked["pay_2"], Verdict.DENIED, "Grâce", clock.now(), "we know them too little")
    clock.advance(60)
    edited = {"amount": 90, "to": "Again GmbH"}
    state = journal.decide(asked["pay_3"], Verdict.EDITED, "ada", clock.now(), None, edited)
    clock.advance(7_200)
    return await resume_run(agent, state, journal=journal).finish()


if __name__ == "__main__":
    recording = Recording()
    document = asyncio.run(fixed_run(recording)).to_dict()
    GOLDEN.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    JOURNAL.write_text("\n".join(recording.entries) + "\n", encoding="utf-8")
