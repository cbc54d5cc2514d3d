"""The full snapshot: lossless, versioned, and errors that name the path."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.golden.fixed_run import snapshot
from tests.support import (
    START,
    ScriptItem,
    assert_readable,
    broken,
    echo,
    empty_session,
    examples,
    scripted,
    session,
)
from whyloop import AgentState, Backoff, ErrorPolicy, Message, Usage, tool
from whyloop.errors import ModelError, RateLimitError, SnapshotError
from whyloop.stores.listing import summary_of
from whyloop.testing import call, calls, text
from whyloop.values.transitions import Queried
from whyloop.wire.ui import canonical_messages

DOCUMENT = snapshot()


@tool(needs_approval=True)
async def guarded(value: str = "") -> str:
    """Says it back once a person agrees."""
    return value


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
tool_calls = st.builds(
    call,
    st.sampled_from(["echo", "broken", "guarded", "no_such_tool"]),
    st.fixed_dictionaries({"value": words}) | st.dictionaries(words, json_values, max_size=2) | words,
    text=words,
    usage=st.integers(0, 1000),
)
replies: st.SearchStrategy[ScriptItem] = st.one_of(
    st.builds(
        text,
        words,
        finish_reason=st.sampled_from(["stop", "length"]),
        usage=st.builds(Usage, st.integers(0, 9)),
    ),
    tool_calls,
    st.builds(lambda several: calls(*several), st.lists(tool_calls, min_size=2, max_size=3)),
    st.builds(RateLimitError, words, retry_after=st.none() | st.floats(0, 100)),
    st.builds(ModelError, words),
)
policies = st.sampled_from(
    [
        ErrorPolicy.stop_on_any_error(),
        ErrorPolicy.retry_tool_errors(2),
        ErrorPolicy.ignore_tool_errors(),
        ErrorPolicy.retry_all(1),
    ]
)


@examples(60)
@given(st.lists(replies, max_size=6), policies, st.lists(words, min_size=1, max_size=2), json_values)
def test_any_run_survives_a_round_trip(
    script: list[ScriptItem], policy: ErrorPolicy, queries: list[str], note: Any
) -> None:
    async def run() -> None:
        agent = scripted(
            *script,
            *itertools.repeat("the end", 3),
            tools=[echo, broken, guarded],
            error_policy=policy,
            backoff=Backoff(jitter=0),
            max_steps=4,
        )
        state: AgentState | None = None
        for query in queries:
            state = await agent.run(query, state=state)
            assert_readable(state.with_metadata(note=note))
            state = AgentState.from_dict(state.to_dict())

    asyncio.run(run())


@pytest.mark.parametrize("state", [AgentState(), empty_session(), session(), session(steps=3, tool_calls=2)])
def test_a_state_made_by_hand_survives_a_round_trip(state: AgentState) -> None:
    assert_readable(state)


def test_a_snapshot_names_the_version_of_its_schema() -> None:
    assert AgentState().to_dict()["version"] == 1


def test_a_snapshot_is_plain_data() -> None:
    assert json.loads(json.dumps(DOCUMENT, allow_nan=False)) == DOCUMENT


def test_the_execution_clock_is_unset_after_a_restore() -> None:
    state = session(steps=1).mark_execution_started()
    assert state.execution_started_at is not None
    assert datetime.fromisoformat(state.to_dict()["execution_started_at"]) == state.execution_started_at
    assert AgentState.from_dict(state.to_dict()).execution_started_at is None


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_version_is_refused_and_named(version: int) -> None:
    with pytest.raises(SnapshotError, match=f"version {version} is newer") as caught:
        AgentState.from_dict({**DOCUMENT, "version": version})
    assert caught.value.path == "$.version"


@pytest.mark.parametrize("version", [None, "1", 0, -1, 1.0, True])
def test_a_version_that_is_none_is_refused(version: object) -> None:
    with pytest.raises(SnapshotError) as caught:
        AgentState.from_dict({**DOCUMENT, "version": version})
    assert caught.value.path == "$.version"


@pytest.mark.parametrize("data", [None, [], "state", 1])
def test_a_document_that_is_not_an_object_is_refused(data: Any) -> None:
    with pytest.raises(SnapshotError) as caught:
        AgentState.from_dict(data)
    assert caught.value.path == "$"


def changed(path: str, value: object = None, *, missing: bool = False) -> dict[str, Any]:
    """The golden document with one thing in it replaced or removed."""
    document: Any = copy.deepcopy(DOCUMENT)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    inner = document
    for key in parents:
        inner = inner[key]
    if missing:
        del inner[last]
    else:
        inner[last] = value
    return document  # type: ignore[no-any-return]


def in_brackets(path: str) -> str:
    return "$" + "".join(f"[{key}]" if key.isdigit() else f".{key}" for key in path.split("."))


@pytest.mark.parametrize(
    "path",
    [
        "agent_id",
        "parent_agent_id",
        "status",
        "messages",
        "steps",
        "usage",
        "metadata",
        "state_info",
        "execution",
        "last_continuation_outcome",
        "version",
        "open_step",
        "open_step.number",
        "open_step.message.role",
        "open_step.message.tool_calls.1.arguments",
        "open_step.calls",
        "open_step.calls.0.result.content",
        "steps.5.tool_calls.0.approvals.0.by",
        "steps.5.tool_calls.0.approvals.0.at",
        "messages.1.role",
        "messages.1.tool_calls.0.id",
        "messages.1.tool_calls.0.name",
        "messages.1.tool_calls.0.arguments",
        "steps.0.number",
        "steps.0.execution_id",
        "steps.0.started_at",
        "steps.0.outcome.decision",
        "steps.0.outcome.evaluations.0.reason",
        "steps.0.failures.0.message",
        "execution.id",
        "execution.started_at",
        "state_info.started_at",
    ],
)
def test_a_missing_field_is_an_error_that_names_the_path(path: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        AgentState.from_dict(changed(path, missing=True))
    assert caught.value.path == in_brackets(path)
    assert in_brackets(path) in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("agent_id", 7),
        ("status", "sleeping"),
        ("messages", {}),
        ("messages.0.role", "narrator"),
        ("messages.1.content", 5),
        ("messages.1.tool_calls.0.arguments", [1]),
        ("steps.0.number", "one"),
        ("steps.0.number", -1),
        ("steps.1.duration_ms", "long"),
        ("steps.0.started_at", "yesterday"),
        ("steps.0.started_at", "2026-01-16T10:00:00"),
        ("steps.0.failures.0.type", "bad luck"),
        ("steps.2.outcome.stop_reason", "bored"),
        ("usage.input", -5),
        ("usage.input", 1.5),
        ("metadata", []),
        ("execution.active_seconds", -1),
        ("execution.step_count", None),
        ("execution.last_seq", -1),
        ("execution.leg_started_at", "2026-01-16T10:00:00"),
        ("state_info.started_at", None),
        ("last_continuation_outcome.evaluations.0.decision", "perhaps"),
        ("open_step.started_at", "soon"),
        ("open_step.calls.1.question", 1),
        ("open_step.message.tool_calls.1.arguments", None),
        ("steps.5.tool_calls.1.approvals.0.verdict", "perhaps"),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_path(path: str, value: object) -> None:
    with pytest.raises(SnapshotError) as caught:
        AgentState.from_dict(changed(path, value))
    assert caught.value.path == in_brackets(path)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("open_step.calls", [{"started": True}], "$.open_step.calls"),
        ("open_step.calls", [{}, {}, {}], "$.open_step.calls"),
        ("open_step.message.tool_calls", [], "$.open_step.calls"),
        ("open_step.message.role", "user", "$.open_step.message"),
        ("open_step.calls.1.result", {"content": "done"}, "$.open_step.calls[1]"),
        ("open_step.calls.0.arguments", {"amount": 1}, "$.open_step.calls[0]"),
    ],
)
def test_an_open_step_that_contradicts_itself_is_an_error_that_names_the_path(
    path: str, value: object, where: str
) -> None:
    with pytest.raises(SnapshotError) as caught:
        AgentState.from_dict(changed(path, value))
    assert caught.value.path == where


async def test_a_paused_execution_continues_after_a_restore() -> None:
    paid: list[str] = []

    @tool(needs_approval=True)
    async def pay(amount: int, to: str) -> str:
        paid.append(f"{amount} to {to}")
        return "paid"

    state = AgentState.from_dict(DOCUMENT)
    unchanged = await scripted(tools=[pay]).resume(state)
    assert (unchanged.status, unchanged.pending_calls) == (state.status, state.pending_calls)
    assert paid == []
    done = await scripted("Done.", tools=[pay]).resume(state.approve(state.pending_calls[0].id, by="ada"))
    assert (done.last_response, paid) == ("Done.", ["101 to Again Ltd"])
    assert_readable(done)


def test_old_data_without_cumulative_time_has_none_of_it() -> None:
    document = changed("state_info.cumulative_execution_seconds", missing=True)
    assert AgentState.from_dict(document).state_info.cumulative_execution_seconds == 0.0


def test_more_steps_counted_than_kept_is_how_a_slim_state_looks() -> None:
    state = AgentState.from_dict(changed("execution.step_count", 7))
    assert state.execution.step_count == 7
    assert len(state.execution_steps) == len(state.steps) == 6


def test_a_snapshot_error_is_a_value_error_that_names_its_path() -> None:
    error = SnapshotError("Expected `int`", "$.steps[0]")
    assert isinstance(error, ValueError)
    assert str(error) == "Expected `int` (at $.steps[0])"


def test_reading_a_snapshot_does_not_change_it() -> None:
    document = copy.deepcopy(DOCUMENT)
    Queried(START, execution_id="e", message=Message.user("x")).apply_to(AgentState.from_dict(document))
    assert document == DOCUMENT


def test_equal_states_are_not_unequal() -> None:
    state = session(steps=2, tool_calls=1)
    restored = AgentState.from_dict(state.to_dict())
    assert restored == state
    assert (restored != state) is False
    assert restored != session(steps=1)


@pytest.mark.parametrize("cost", ["1E+30", "-1", "NaN", "Infinity", 10**30])
@pytest.mark.parametrize("path", ["usage", "execution.usage", "steps.0.usage"])
@pytest.mark.parametrize("name", ["cost", "known_cost"])
def test_a_cost_that_is_no_amount_of_money_is_an_error_that_names_the_path(
    path: str, name: str, cost: str | int
) -> None:
    with pytest.raises(SnapshotError) as caught:
        AgentState.from_dict(changed(path, {name: cost}))
    assert caught.value.path == in_brackets(path)
    assert "from zero to 1,000,000,000,000,000" in str(caught.value)


def test_the_smallest_and_the_largest_cost_can_be_shown() -> None:
    for cost, shown in (("1E-300", "less than $0.000000000001"), ("1E+15", "$1,000,000,000,000,000.00")):
        state = AgentState.from_dict(changed("execution.usage", {"cost": cost}))
        assert f"cost {shown}" in state.explain()
        assert_readable(state)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("usage.input", 10**5000, "$.usage.input"),
        ("usage.input", 2**63, "$.usage.input"),
        ("metadata", {"a": [{"b": 10**5000}]}, "$.metadata.a[0].b"),
        ("metadata", {"a": object()}, "$.metadata.a"),
        ("metadata", {"a": ["\ud800"]}, "$.metadata.a[0]"),
    ],
    ids=[
        "a number of 5,000 digits",
        "a number of 64 bits",
        "a long number inside",
        "an object",
        "a surrogate",
    ],
)
def test_a_value_that_cannot_be_written_again_is_an_error_that_names_the_path(
    path: str, value: object, where: str
) -> None:
    with pytest.raises(SnapshotError) as caught:
        AgentState.from_dict(changed(path, value))
    assert caught.value.path == where


def test_a_moment_at_the_end_of_the_calendar_can_be_shown() -> None:
    state = AgentState.from_dict(changed("steps.0.started_at", "0001-01-01T00:00:00+23:59"))
    assert_readable(state)
    assert canonical_messages(state)
    assert summary_of(state).agent_id == state.agent_id
