"""The published schema and the envelopes that are really sent agree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator

from tests.support import START, at, scripted
from whyloop import AgentStatus, ContinuationDecision, FinishReason, StopReason, Usage, tool
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig, envelope_schema
from whyloop.events import (
    AgentEvent,
    AgentStatusChanged,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    StreamChunkReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.testing import call, calls, capture_events, text
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome
from whyloop.wire.envelope import EVENTS, envelope

SCHEMA = envelope_schema()
_validator = Draft202012Validator(SCHEMA)


def problems(document: dict[str, Any]) -> list[str]:
    """What the schema has against an envelope."""
    return [error.message for error in _validator.iter_errors(document)]


def good() -> dict[str, Any]:
    event = StreamChunkReceived("agent", None, "execution", 1, START, "Hello", 0, False)
    told = envelope(event, 1, BroadcastConfig())
    assert told is not None
    return told


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_knows_every_event_and_every_value_that_there_is() -> None:
    definitions = SCHEMA["$defs"]
    assert set(SCHEMA["properties"]["event"]["enum"]) == set(EVENTS)
    assert definitions["status"]["enum"] == list(AgentStatus)
    assert definitions["stop_reason"]["enum"] == [*StopReason, None]
    assert set(definitions["evaluation"]["properties"]["decision"]["enum"]) == set(ContinuationDecision)
    finish_reasons = definitions["agent.step.completed"]["properties"]["finish_reason"]["enum"]
    assert finish_reasons == [*FinishReason, None]


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"event": "agent.unknown"},
        {"event": "agent.status"},
        {"seq": 0},
        {"seq": "1"},
        {"timestamp": "2026-01-16T10:05:01Z"},
        {"timestamp": "2026-01-16T10:05:01.123456Z"},
        {"agent_id": None},
        {"more": 1},
        {"data": {}},
        {"data": {"chunk": "Hello", "chunk_index": 0, "is_complete": False, "more": 1}},
        {"data": {"chunk": None, "chunk_index": 0, "is_complete": False}},
    ],
)
def test_an_envelope_that_is_not_one_does_not_fit(change: dict[str, Any]) -> None:
    assert problems(good()) == []
    assert problems({**good(), **change})


def test_no_field_may_be_missing() -> None:
    for field in good():
        assert problems({name: value for name, value in good().items() if name != field})


# Whatever a model, a tool or a rule may say, lone surrogates included.
words = st.text(st.characters(exclude_categories=()), max_size=40)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
numbers = st.integers(0, 10**6)
milliseconds = st.floats(0, 1e12)
outcomes = st.builds(
    ContinuationOutcome,
    st.sampled_from(ContinuationDecision),
    words,
    st.none() | st.sampled_from(StopReason),
    st.lists(
        st.builds(
            ContinuationEvaluation,
            words,
            st.sampled_from(ContinuationDecision),
            words,
            st.dictionaries(words, anything, max_size=3),
        ),
        max_size=3,
    ).map(tuple),
)
whose = (words, st.none(), words, numbers, st.floats(0, 1e9).map(at))
usages = st.builds(Usage, input=numbers, output=numbers)
events = st.one_of(
    st.builds(
        AgentStatusChanged,
        *whose,
        st.sampled_from(AgentStatus),
        st.sampled_from(AgentStatus),
        st.none() | st.sampled_from(StopReason),
        numbers,
        st.none() | words,
        st.none() | words,
    ),
    st.builds(AgentStepStarted, *whose, numbers, st.lists(words, max_size=3).map(tuple)),
    st.builds(StreamChunkReceived, *whose, words, numbers, st.booleans()),
    st.builds(ToolCallStarted, *whose, words, words, words | st.dictionaries(words, anything, max_size=5)),
    st.builds(ToolCallCompleted, *whose, words, words, st.booleans(), st.none() | words, milliseconds, words),
    st.builds(
        AgentStepCompleted,
        *whose,
        st.booleans(),
        numbers,
        usages,
        st.none() | st.sampled_from(FinishReason),
        milliseconds,
        outcomes,
    ),
    st.builds(ContinuationEvaluated, *whose, outcomes),
)
configs = st.builds(
    BroadcastConfig,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 50),
    st.integers(0, 200),
    st.booleans(),
)


@settings(max_examples=1000)
@given(events, configs)
def test_whatever_happens_is_told_in_an_envelope_that_fits(
    event: AgentEvent, config: BroadcastConfig
) -> None:
    told = envelope(event, 1, config)
    if told is None:
        assert isinstance(event, StreamChunkReceived | ContinuationEvaluated)
    else:
        assert msgspec.json.decode(msgspec.json.encode(told)) == told
        assert problems(told) == []


@tool
async def look(key: str, more: dict[str, Any] | None = None) -> str:
    """Look something up."""
    if key.startswith("b"):
        raise RuntimeError(key)
    return key * 40


replies = st.lists(
    words.map(text)
    | st.builds(lambda key, more: call("look", {"key": key, "more": more}), words, st.just({}))
    | st.builds(
        lambda keys: calls(*(call("look", {"key": key}) for key in keys)),
        st.lists(words, min_size=1, max_size=3),
    )
    | words.map(lambda name: call(f"no {name}", "{"))
    | st.just(RuntimeError("the model fell over")),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200)
@given(replies, st.integers(1, 4), configs)
async def test_every_envelope_of_a_random_run_fits_and_is_numbered(
    script: list[Any], most: int, config: BroadcastConfig
) -> None:
    agent = scripted(*script, "done", *["done"] * most, tools=[look], max_steps=most)
    heard = capture_events(agent)
    await agent.run("go")
    sent: list[dict[str, Any]] = []

    class Kept:
        def broadcast(self, event: Any) -> None:
            sent.append(event)

        def broadcast_batch(self, events: Any) -> None:
            sent.extend(events)

    adapter = AgentEventEnvelopeAdapter(Kept(), config)
    for event in heard:
        adapter(event)
    assert [each["seq"] for each in sent] == list(range(1, len(sent) + 1))
    assert [problem for each in sent for problem in problems(each)] == []
    assert [each["event"] for each in sent].count("agent.status") == 2
