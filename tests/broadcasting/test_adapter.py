"""From events to envelopes on their way to a transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.broadcasting.support import numbers
from tests.support import echo, scripted
from whyloop import Agent, AgentState, tool
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.errors import ModelError
from whyloop.testing import FakeClock, call

PRESETS = [BroadcastConfig.minimal(), BroadcastConfig.standard(), BroadcastConfig.debug()]


class Kept:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.envelopes: list[Mapping[str, Any]] = []

    def broadcast(self, event: Mapping[str, Any]) -> None:
        self.envelopes.append(event)

    def broadcast_batch(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.envelopes += events


def telling(config: BroadcastConfig | None = None, **options: Any) -> tuple[Agent, Kept]:
    agent = scripted(call("echo", {"value": "x"}), "done", "again", tools=[echo])
    kept = Kept()
    agent.subscribe(AgentEventEnvelopeAdapter(kept, config, **options))
    return agent, kept


def counted(envelopes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the numbered envelopes have the numbers from 1 on, without a gap."""
    found = numbers(envelopes)
    return len(found) > 2 and found == list(range(1, len(found) + 1))


@pytest.mark.parametrize("config", PRESETS)
async def test_numbers_have_no_gap_under_any_preset(config: BroadcastConfig) -> None:
    agent, kept = telling(config)
    await agent.run("go")
    assert counted(kept.envelopes)


async def test_every_execution_is_numbered_from_one() -> None:
    agent, kept = telling()
    first = await agent.run("go")
    before = len(kept.envelopes)
    await agent.run("and now?", state=first)
    assert counted(kept.envelopes[:before])
    assert counted(kept.envelopes[before:])


async def test_a_session_may_be_called_otherwise_than_its_agent() -> None:
    for session_id in (None, "17"):
        agent, kept = telling(session_id=session_id)
        state = await agent.run("go")
        assert {each["session_id"] for each in kept.envelopes} == {session_id or state.agent_id}
        assert {each["agent_id"] for each in kept.envelopes} == {state.agent_id}


async def nested(**options: Any) -> tuple[AgentState, list[Mapping[str, Any]]]:
    """A run whose tool asks another agent, told by one adapter."""
    telling = AgentEventEnvelopeAdapter(kept := Kept(), session_id="17", **options)

    @tool
    async def ask(question: str) -> str:
        inner = await scripted(ModelError("fell over"), event_handler=telling).run(question)
        return f"it {inner.status}"

    outer = scripted(call("ask", {"question": "why?"}), "so", tools=[ask], event_handler=telling)
    return await outer.run("go"), kept.envelopes


async def test_an_agent_inside_a_tool_is_left_out() -> None:
    state, envelopes = await nested()
    assert state.last_response == "so"
    assert {each["agent_id"] for each in envelopes} == {state.agent_id}
    assert counted(envelopes)


async def test_an_agent_inside_a_tool_is_sent_if_that_is_asked_for() -> None:
    _, envelopes = await nested(nested=True)
    assert len({each["agent_id"] for each in envelopes}) == 2
    assert [each["data"]["status"] for each in envelopes if each["event"] == "agent.status"] == [
        "in_progress",
        "in_progress",
        "failed",
        "completed",
    ]


async def test_a_run_that_another_process_resumes_is_numbered_onwards() -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    clock = FakeClock()
    first, second = Kept(), Kept()
    agent = scripted(call("pay"), clock=clock, tools=[pay], event_handler=AgentEventEnvelopeAdapter(first))
    state = await agent.run("pay it")
    state = AgentState.from_dict(state.to_dict())
    before = state.execution.last_seq
    state = state.approve(state.pending_calls[0].id, by="ada", now=clock.now())
    agent = scripted("Done.", clock=clock, tools=[pay], event_handler=AgentEventEnvelopeAdapter(second))
    clock.advance(60)
    state = await agent.resume(state)
    assert numbers(first.envelopes) == list(range(1, before + 1))
    # The decision has a number of its own.
    assert numbers(second.envelopes) == list(range(before + 2, state.execution.last_seq + 1))


async def test_two_adapters_send_the_same() -> None:
    agent, kept = telling()
    other = Kept()
    agent.subscribe(AgentEventEnvelopeAdapter(other))
    await agent.run("go")
    assert kept.envelopes == other.envelopes
