"""From events to envelopes: each with its number, for those who are to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.broadcasting.support import seqs
from tests.support import START, echo, scripted
from whyloop import Agent, AgentState, tool
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig, adapter
from whyloop.errors import ModelError
from whyloop.events import AgentExecutionStarted, AgentStepStarted, StreamChunkReceived
from whyloop.testing import call

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


@pytest.mark.parametrize("config", PRESETS)
async def test_numbers_have_no_gap_whatever_is_told(config: BroadcastConfig) -> None:
    agent, kept = telling(config)
    await agent.run("go")
    assert seqs(kept.envelopes) == list(range(1, len(kept.envelopes) + 1))


async def test_every_execution_is_numbered_from_one() -> None:
    agent, kept = telling()
    first = await agent.run("go")
    before = len(kept.envelopes)
    await agent.run("and now?", state=first)
    assert kept.envelopes[before]["seq"] == 1
    assert seqs(kept.envelopes[before:]) == list(range(1, len(kept.envelopes) - before + 1))


async def test_a_session_may_be_called_otherwise_than_its_agent() -> None:
    for session_id in (None, "17"):
        agent, kept = telling(session_id=session_id)
        state = await agent.run("go")
        assert {each["session_id"] for each in kept.envelopes} == {session_id or state.agent_id}
        assert {each["agent_id"] for each in kept.envelopes} == {state.agent_id}


def step(execution: str = "e1") -> AgentStepStarted:
    return AgentStepStarted("agent", None, execution, 1, START, 1, ())


def test_an_execution_that_was_told_elsewhere_is_numbered_onwards() -> None:
    telling = AgentEventEnvelopeAdapter(kept := Kept())
    telling.go_on_from("e1", 41)
    telling(step())
    telling.go_on_from("e1", 7)
    telling(step())
    assert seqs(kept.envelopes) == [42, 43]


async def nested(**options: Any) -> tuple[AgentState, list[Mapping[str, Any]]]:
    """A run whose tool asks another agent, told by one adapter."""
    telling = AgentEventEnvelopeAdapter(kept := Kept(), session_id="17", **options)

    @tool
    async def ask(question: str) -> str:
        inner = await scripted(ModelError("fell over"), event_handler=telling).run(question)
        return f"it {inner.status}"

    outer = scripted(call("ask", {"question": "why?"}), "so", tools=[ask], event_handler=telling)
    return await outer.run("go"), kept.envelopes


async def test_an_agent_within_a_tool_is_not_told() -> None:
    state, envelopes = await nested()
    assert state.last_response == "so"
    assert {each["agent_id"] for each in envelopes} == {state.agent_id}
    assert seqs(envelopes) == list(range(1, len(envelopes) + 1))


async def test_an_agent_within_a_tool_is_told_where_that_is_wanted() -> None:
    _, envelopes = await nested(nested=True)
    assert len({each["agent_id"] for each in envelopes}) == 2
    assert [each["data"]["status"] for each in envelopes if each["event"] == "agent.status"] == [
        "in_progress",
        "in_progress",
        "failed",
        "completed",
    ]


def test_an_event_that_is_not_told_has_no_number() -> None:
    telling = AgentEventEnvelopeAdapter(kept := Kept(), BroadcastConfig.minimal())
    telling(StreamChunkReceived("agent", None, "e1", 1, START, "Hello", 0, False))
    telling(AgentExecutionStarted("agent", None, "e1", 1, START, None, False))
    telling(step())
    assert [(each["seq"], each["event"]) for each in kept.envelopes] == [(1, "agent.step.started")]


def test_the_execution_that_was_silent_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_REMEMBERED", 2)
    telling = AgentEventEnvelopeAdapter(kept := Kept())
    for execution in ("long", "short", "long", "other", "long", "short"):
        telling(step(execution))
    assert [(each["execution_id"], each["seq"]) for each in kept.envelopes] == [
        ("long", 1),
        ("short", 1),
        ("long", 2),
        ("other", 1),
        ("long", 3),
        ("short", 1),
    ]
