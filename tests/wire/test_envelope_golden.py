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
from tests.support import FixedWorld
from tests.wire.test_envelope_schema import problems
from whyloop import Agent, ErrorPolicy, Usage, tool
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.errors import ModelError, ToolExecutionError
from whyloop.events import AgentEvent
from whyloop.testing import FakeClock, ScriptedModel, call, calls, text
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
    """Three executions of a session, completed, stopped by a limit and failed; and one that pauses."""
    clock = FakeClock(start=datetime(2026, 1, 16, 10, 5, 1, 123_456, tzinfo=UTC))
    events: list[AgentEvent] = []

    @tool
    async def search(query: str, types: list[str], limit: int = 3, deep: bool = False) -> list[str]:
        clock.advance(1.2505)
        if query == "":
            raise ToolExecutionError("an empty query finds nothing")
        return [f"{query} number {number} of what was found" for number in range(limit)]

    many = {"query": "dbplus", "types": ["program"], "limit": 4, "deep": True}

    @tool(needs_approval=True)
    async def pay(amount: int, password: str) -> dict[str, str]:
        clock.advance(0.5)
        return {"receipt": "7 of 7", "api_key": "not for everybody"}

    model = ScriptedModel(
        [
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
            call("pay", {"amount": 7, "password": "open sesame"}),
            ModelError("sk-0123456789abcdefghij is no valid key"),
        ]
    )
    world = FixedWorld(model, clock)
    agent = Agent(
        model,
        [search],
        world=world,
        max_steps=3,
        error_policy=ErrorPolicy.retry_tool_errors(),
        event_handler=events.append,
    )
    state = await agent.run("Who are they?")
    clock.advance(60)
    state = await agent.run("And the others?", state=state)
    clock.advance(60)
    await agent.run("And now?", state=state)
    clock.advance(60)
    paying = Agent(model, [pay], world=world, event_handler=events.append)
    state = await paying.run("Pay it.")
    clock.advance(60)
    state = state.approve(state.pending_calls[0].id, by="ada", now=clock.now())
    await paying.resume(state)
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
    assert len(seen) == 4


def test_every_event_is_told_in_the_presets_that_have_it() -> None:
    kinds = {name: {envelope["event"] for envelope in envelopes} for name, envelopes in golden().items()}
    assert kinds["debug"] == set(EVENTS)
    assert kinds["standard"] == set(EVENTS) - {"agent.continuation"}
    assert kinds["minimal"] == set(EVENTS) - {"agent.continuation", "agent.stream.chunk"}


def test_each_status_says_how_it_stands() -> None:
    said = [e["data"] for e in golden()["minimal"] if e["event"] == "agent.status"]
    assert [(data["previous_status"], data["status"], data["stop_reason"]) for data in said] == [
        ("pending", "in_progress", None),
        ("in_progress", "completed", "completed"),
        ("pending", "in_progress", None),
        ("in_progress", "stopped", "steps_limit"),
        ("pending", "in_progress", None),
        ("in_progress", "failed", "error"),
        ("pending", "in_progress", None),
        ("in_progress", "paused", None),
        ("pending", "in_progress", None),
        ("in_progress", "failed", "error"),
    ]


def test_no_envelope_has_a_secret_in_it() -> None:
    written = GOLDEN.read_text(encoding="utf-8")
    assert "[removed]" in written
    assert not any(secret in written for secret in ("open sesame", "not for everybody", "sk-0123"))


if __name__ == "__main__":
    written = json.dumps(told(asyncio.run(fixed_events())), indent=1, ensure_ascii=False)
    GOLDEN.write_text(written + "\n", encoding="utf-8")
