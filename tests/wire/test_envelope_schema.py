"""The published schema and the envelopes that are really sent agree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from tests.support import START, at, examples, scripted
from whyloop import (
    AgentStatus,
    ContinuationDecision,
    ErrorType,
    FinishReason,
    Message,
    PendingCall,
    Redaction,
    StopReason,
    Usage,
    Verdict,
    tool,
)
from whyloop.broadcasting import BroadcastConfig, envelope_schema
from whyloop.events import (
    AgentEvent,
    AgentExecutionFailed,
    AgentExecutionFinished,
    AgentExecutionStarted,
    AgentStatusChanged,
    AgentStepCompleted,
    AgentStepStarted,
    ApprovalDecided,
    ApprovalRequested,
    ContinuationEvaluated,
    RetryScheduled,
    StreamChunkReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.testing import call, calls, capture_events, text
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome
from whyloop.wire.envelope import EVENTS, NUMBERED, envelope

SCHEMA = envelope_schema()
_validator = Draft202012Validator(SCHEMA)


def problems(document: dict[str, Any]) -> list[str]:
    """Return the problems of an envelope by the schema."""
    return [error.message for error in _validator.iter_errors(document)]


def good() -> dict[str, Any]:
    event = StreamChunkReceived(
        agent_id="agent",
        parent_agent_id=None,
        execution_id="execution",
        step_number=1,
        time=START,
        seq=1,
        chunk="Hello",
        chunk_index=0,
        is_complete=False,
    )
    written = envelope(event, BroadcastConfig())
    assert written is not None
    return written


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
    assert definitions["agent.retry"]["properties"]["error_type"]["enum"] == list(ErrorType)
    assert definitions["agent.approval.decided"]["properties"]["verdict"]["enum"] == list(Verdict)


def test_the_numbered_envelopes_are_those_of_the_contract() -> None:
    numbered = [name for name in EVENTS if name.startswith(("agent.tool.", "agent.approval."))]
    assert {*numbered, "agent.status", "agent.step.completed", "agent.retry"} == NUMBERED


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"event": "agent.unknown"},
        {"event": "agent.status"},
        {"seq": -1},
        {"seq": "1"},
        {"timestamp": "2026-01-16T10:05:01Z"},
        {"timestamp": "2026-01-16T10:05:01.123456Z"},
        {"agent_id": None},
        {"more": 1},
        {"data": {}},
        {"data": {"kind": "text", "chunk": "Hello", "chunk_index": 0, "is_complete": False, "more": 1}},
        {"data": {"kind": "text", "chunk": None, "chunk_index": 0, "is_complete": False}},
        {"data": {"kind": "music", "chunk": "Hello", "chunk_index": 0, "is_complete": False}},
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
            st.none() | st.sampled_from(StopReason),
        ),
        max_size=3,
    ).map(tuple),
)
names = st.lists(words, max_size=2).map(tuple)
arguments = words | st.dictionaries(words, anything, max_size=5)
costs = st.none() | st.decimals(0, 1000, allow_nan=False, allow_infinity=False, places=6)
usages = st.builds(Usage, input=numbers, output=numbers, cost=costs, reported=st.booleans())
pending_calls = st.lists(st.builds(PendingCall, words, words, words, arguments, words), max_size=2).map(tuple)
_common: dict[str, st.SearchStrategy[Any]] = {
    "agent_id": words,
    "parent_agent_id": st.none(),
    "execution_id": words,
    "step_number": numbers,
    "time": st.floats(0, 1e9).map(at),
    "seq": numbers,
}


class Mine(AgentEvent, frozen=True, kw_only=True):
    """An event of an application."""

    value: Any
    _private: str = "hidden"


def made(event: type[AgentEvent], /, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[AgentEvent]:
    return st.builds(event, **_common, **fields)


status = st.sampled_from(AgentStatus)
reasons = st.sampled_from(StopReason)
events = st.one_of(
    made(
        AgentStatusChanged,
        previous_status=status,
        status=status,
        stop_reason=st.none() | reasons,
        resolved_by=st.none() | words,
        reason=st.none() | words,
        step_count=numbers,
        error_message=st.none() | words,
        last_response=st.none() | words,
        pending_calls=pending_calls,
    ),
    made(AgentStepStarted, message_count=numbers, available_tools=names),
    made(
        StreamChunkReceived,
        chunk=words,
        chunk_index=numbers,
        is_complete=st.booleans(),
        kind=st.sampled_from(["text", "reasoning"]),
    ),
    made(ToolCallStarted, tool=words, tool_call_id=words, args=arguments, changed_by=names),
    made(
        ToolCallCompleted,
        tool=words,
        tool_call_id=words,
        success=st.booleans(),
        error=st.none() | words,
        duration_ms=milliseconds,
        result=words,
        changed_by=names,
    ),
    made(
        ApprovalRequested,
        question_id=words,
        tool=words,
        tool_call_id=words,
        question=words,
        args=arguments,
        changed_by=names,
    ),
    made(
        ApprovalDecided,
        question_id=words,
        tool=words,
        tool_call_id=words,
        verdict=st.sampled_from(Verdict),
        by=words,
        reason=st.none() | words,
    ),
    made(
        RetryScheduled,
        attempt=numbers,
        max_retries=numbers,
        wait_seconds=st.floats(0, 1e6),
        error_type=st.sampled_from(ErrorType),
    ),
    made(
        AgentStepCompleted,
        has_tool_calls=st.booleans(),
        error_count=numbers,
        usage=usages,
        finish_reason=st.none() | st.sampled_from(FinishReason),
        duration_ms=milliseconds,
        outcome=outcomes,
    ),
    made(ContinuationEvaluated, outcome=outcomes),
    made(TokenUsageReported, usage=usages, execution_usage=usages),
    made(AgentExecutionStarted, query=st.none() | st.builds(Message.user, words), resumed=st.booleans()),
    made(AgentExecutionFailed, error=words, stop_reason=reasons, resolved_by=st.none() | words),
    made(
        AgentExecutionFinished,
        status=status,
        stop_reason=reasons,
        resolved_by=st.none() | words,
        reason=st.none() | words,
    ),
    made(Mine, value=anything),
)
configs = st.builds(
    BroadcastConfig,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 50),
    st.integers(0, 200),
    st.sampled_from([None, Redaction()]),
    st.booleans(),
)


@examples(1000)
@given(events, configs)
def test_every_event_has_an_envelope_that_fits_unless_it_is_left_out(
    event: AgentEvent, config: BroadcastConfig
) -> None:
    written = envelope(event, config)
    if written is None:
        assert not isinstance(event, AgentStepStarted)
        seen = envelope(event, BroadcastConfig.debug())
        assert seen is not None
        assert seen["event"] not in NUMBERED
    else:
        assert msgspec.json.decode(msgspec.json.encode(written)) == written
        assert problems(written) == []
        assert written["seq"] == event.seq


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


@examples(200)
@given(replies, st.integers(1, 4), configs)
async def test_every_envelope_of_a_random_run_fits_and_is_numbered(
    script: list[Any], most: int, config: BroadcastConfig
) -> None:
    agent = scripted(*script, "done", *["done"] * most, tools=[look], max_steps=most)
    heard = capture_events(agent)
    await agent.run("go")
    sent = [written for event in heard if (written := envelope(event, config)) is not None]
    assert [problem for each in sent for problem in problems(each)] == []
    last = 0
    for each in sent:
        last += each["event"] in NUMBERED
        assert each["seq"] == last
    assert [each["event"] for each in sent].count("agent.status") == 2
