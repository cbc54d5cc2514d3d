"""The envelopes of a fixed run, in a file.

`python -m tests.wire.test_envelope_golden` writes it anew, in the commit that changes the format.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from tests.golden.fixed_run import FOLDER
from tests.support import FixedWorld
from tests.wire.test_envelope_schema import problems
from whyloop import Agent, AgentState, ErrorPolicy, Hook, ToolCall, ToolContext, Usage, Verdict, tool
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ModelError, ToolExecutionError
from whyloop.events import AgentEvent
from whyloop.testing import FakeClock, ScriptedModel, call, calls, text
from whyloop.values.decisions import decide
from whyloop.wire.envelope import EVENTS, NUMBERED, envelope
from whyloop.wire.view import read_back

GOLDEN = FOLDER / "envelopes_v1.json"
PRESETS = {
    "minimal": BroadcastConfig.minimal(),
    "standard": BroadcastConfig.standard(),
    "debug": BroadcastConfig.debug(),
}
Envelopes = list[dict[str, Any]]
each_preset = pytest.mark.parametrize("name", PRESETS)


class Cap(Hook):
    """Pays at most seven."""

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
        assert isinstance(call.arguments, dict)
        return replace(call, arguments={**call.arguments, "amount": min(7, call.arguments["amount"])})


async def fixed_events() -> list[AgentEvent]:
    """Return three executions of a session, completed, stopped by a limit and failed; and one that pauses."""
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
                usage=Usage(input=120, output=30, cost=Decimal("0.0045")),
            ),
            text("There are “four”.\n", usage=Usage(input=200, output=5)),
            call("search", {"query": "Ünïted, with a name that is too long", "types": ["a", "b" * 40]}),
            call("serach", "{not json"),
            call("search", {"query": "x" * 40, "types": []}),
            ModelError("the provider fell over", status=500),
            calls(
                call("pay", {"amount": 90, "password": "open sesame"}),
                call("pay", {"amount": 5, "password": "open sesame"}),
            ),
            ModelError("sk-0123456789abcdefghij is not a valid key"),
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
    paying = Agent(model, [pay], world=world, hooks=Cap(), event_handler=events.append)
    state = await paying.run("Pay it.")
    for verdict, reason in ((Verdict.APPROVED, None), (Verdict.DENIED, "once is enough")):
        clock.advance(60)
        state = _decided(state, verdict, reason, clock, events)
    await paying.resume(state)
    return events


def _decided(
    state: AgentState, verdict: Verdict, reason: str | None, clock: FakeClock, events: list[AgentEvent]
) -> AgentState:
    """Decide the first question, and add the events of that as a session would send them."""
    transitions = decide(state, state.pending_calls[0].id, verdict, "ada", clock.now(), reason)
    events += read_back(state, transitions)
    for transition in transitions:
        state = transition.apply_to(state)
    return state


def written(events: list[AgentEvent]) -> dict[str, Envelopes]:
    """Return the envelopes of these events, for each preset."""
    return {
        name: [each for event in events if (each := envelope(event, config)) is not None]
        for name, config in PRESETS.items()
    }


def golden() -> dict[str, Envelopes]:
    document: dict[str, Envelopes] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return document


@each_preset
async def test_a_recorded_run_has_the_same_envelopes_today(name: str) -> None:
    assert written(await fixed_events())[name] == golden()[name]


@each_preset
def test_recorded_envelopes_fit_the_schema(name: str) -> None:
    for each in golden()[name]:
        assert problems(each) == []


@each_preset
def test_numbers_grow_by_one_within_each_execution_and_all_others_carry_the_last(name: str) -> None:
    seen: dict[str, int] = {}
    for each in golden()[name]:
        last = seen.get(each["execution_id"], 0) + (each["event"] in NUMBERED)
        assert each["seq"] == last
        seen[each["execution_id"]] = last
    assert len(seen) == 4


def test_the_numbered_envelopes_are_the_same_events_under_every_preset() -> None:
    numbered = [
        [
            (each["execution_id"], each["seq"], each["event"])
            for each in envelopes
            if each["event"] in NUMBERED
        ]
        for envelopes in golden().values()
    ]
    assert numbered[0] == numbered[1] == numbered[2]


def test_every_event_is_sent_in_the_presets_that_have_it() -> None:
    kinds = {name: {envelope["event"] for envelope in envelopes} for name, envelopes in golden().items()}
    assert kinds["debug"] == set(EVENTS)
    assert kinds["standard"] == set(EVENTS) - {"agent.continuation", "agent.event"}
    assert kinds["minimal"] == kinds["standard"] - {"agent.stream.chunk"}


def test_each_status_has_its_stop_reason_and_rule() -> None:
    said = [e["data"] for e in golden()["minimal"] if e["event"] == "agent.status"]
    assert all(data["resolved_by"] and data["reason"] for data in said if data["status"] != "in_progress")
    assert [(data["previous_status"], data["status"], data["stop_reason"]) for data in said] == [
        ("pending", "in_progress", None),
        ("in_progress", "completed", "completed"),
        ("pending", "in_progress", None),
        ("in_progress", "stopped", "steps_limit"),
        ("pending", "in_progress", None),
        ("in_progress", "failed", "error"),
        ("pending", "in_progress", None),
        ("in_progress", "paused", None),
        ("paused", "in_progress", None),
        ("in_progress", "failed", "error"),
    ]


def test_no_envelope_has_a_secret_in_it() -> None:
    written = GOLDEN.read_text(encoding="utf-8")
    assert "[removed]" in written
    assert not any(secret in written for secret in ("open sesame", "not for everybody", "sk-0123"))


def test_a_hook_that_changed_a_call_is_named_wherever_the_call_is() -> None:
    shown = [e for e in golden()["debug"] if "changed_by" in e["data"]]
    assert [(e["event"], e["data"]["changed_by"]) for e in shown] == [
        ("agent.approval.requested", ["Cap"]),
        ("agent.tool.started", ["Cap"]),
    ]
    assert {e["data"]["args"]["amount"] for e in shown} == {7}


if __name__ == "__main__":
    document = json.dumps(written(asyncio.run(fixed_events())), indent=1, ensure_ascii=False)
    GOLDEN.write_text(document + "\n", encoding="utf-8")
