"""Envelopes that were sent once look the same for ever.

`python -m tests.wire.test_envelope_golden` writes them.
A file that an older version wrote is kept: a new version of the envelope gets a new file.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.golden.fixed_run import FOLDER
from tests.support import fixed_agent
from tests.wire.test_envelope_schema import problems
from whyloop import ErrorPolicy, Usage, tool
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.errors import ModelError, ToolExecutionError
from whyloop.events import AgentEvent
from whyloop.testing import FakeClock, call, calls, text
from whyloop.wire.envelope import EVENTS

GOLDEN = FOLDER / "envelopes_v1.json"
PRESETS = {
    "minimal": BroadcastConfig.minimal(),
    "standard": BroadcastConfig.standard(),
    "debug": BroadcastConfig.debug(),
}
Envelopes = list[dict[str, Any]]
each_preset = pytest.mark.parametrize("name", PRESETS)


async def fixed_events() -> list[AgentEvent]:
    """Three executions of one session: completed, stopped by a limit, and failed."""
    clock = FakeClock(start=datetime(2026, 1, 16, 10, 5, 1, 123_456, tzinfo=UTC))
    events: list[AgentEvent] = []

    @tool
    async def search(query: str, types: list[str], limit: int = 3, deep: bool = False) -> list[str]:
        clock.advance(1.2505)
        if query == "":
            raise ToolExecutionError("an empty query finds nothing")
        return [f"{query} number {number} of what was found" for number in range(limit)]

    many = {"query": "dbplus", "types": ["program"], "limit": 4, "deep": True}
    agent = fixed_agent(
        calls(
            call("search", many),
            call("search", {"query": "", "types": []}),
            text="I look both up.",
            usage=Usage(input=120, output=30),
        ),
        text("There are “four”.\n", usage=Usage(input=200, output=5)),
        call("search", {"query": "Ünïted, with a name that is too long", "types": ["a", "b" * 40]}),
        call("serach", "{not json"),
        call("search", {"query": "x" * 40, "types": []}),
        ModelError("the provider fell over", status=500),
        clock=clock,
        tools=[search],
        max_steps=3,
        error_policy=ErrorPolicy.retry_tool_errors(),
        event_handler=events.append,
    )
    state = await agent.run("Who are they?")
    clock.advance(60)
    state = await agent.run("And the others?", state=state)
    clock.advance(60)
    await agent.run("And now?", state=state)
    return events


def told(events: list[AgentEvent]) -> dict[str, Envelopes]:
    """The envelopes of these events, for each preset."""
    found: dict[str, Envelopes] = {}
    for name, config in PRESETS.items():
        adapter = AgentEventEnvelopeAdapter(Nowhere(), config)
        found[name] = [envelope for event in events if (envelope := adapter.envelope(event))]
    return found


class Nowhere:
    """A transport that takes nothing anywhere."""

    def broadcast(self, event: object) -> None: ...

    def broadcast_batch(self, events: object) -> None: ...


def golden() -> dict[str, Envelopes]:
    document: dict[str, Envelopes] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return document


@each_preset
async def test_the_same_run_is_told_the_same_way_today(name: str) -> None:
    assert told(await fixed_events())[name] == golden()[name]


@each_preset
def test_what_was_told_fits_the_schema(name: str) -> None:
    for envelope in golden()[name]:
        assert problems(envelope) == []


@each_preset
def test_numbers_grow_by_one_within_each_execution(name: str) -> None:
    seen: dict[str, int] = {}
    for envelope in golden()[name]:
        before = seen.setdefault(envelope["execution_id"], 0)
        assert envelope["seq"] == before + 1
        seen[envelope["execution_id"]] += 1
    assert len(seen) == 3


def test_every_event_is_told_in_the_presets_that_have_it() -> None:
    kinds = {name: {envelope["event"] for envelope in envelopes} for name, envelopes in golden().items()}
    assert kinds["debug"] == set(EVENTS)
    assert kinds["standard"] == set(EVENTS) - {"agent.continuation"}
    assert kinds["minimal"] == set(EVENTS) - {"agent.continuation", "agent.stream.chunk"}


def test_the_last_status_of_each_execution_says_how_it_ended() -> None:
    last = {e["execution_id"]: e["data"] for e in golden()["minimal"] if e["event"] == "agent.status"}
    assert [(data["status"], data["stop_reason"]) for data in last.values()] == [
        ("completed", "completed"),
        ("stopped", "steps_limit"),
        ("failed", "error"),
    ]


if __name__ == "__main__":
    written = json.dumps(told(asyncio.run(fixed_events())), indent=1, ensure_ascii=False)
    GOLDEN.write_text(written + "\n", encoding="utf-8")
