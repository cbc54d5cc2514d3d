"""A session as one immutable value, and the text in which it explains itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from tests.support import (
    START,
    assert_readable,
    at,
    broken,
    echo,
    failed_steps,
    scripted,
    session,
)
from whyloop import (
    AgentState,
    AgentStatus,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    ErrorPolicy,
    Message,
    StopReason,
    Usage,
)
from whyloop.testing import call, text
from whyloop.values.transitions import Queried

FORBID = ContinuationDecision.FORBID_CONTINUATION
REQUEST = ContinuationDecision.REQUEST_CONTINUATION


def outcome(reason: StopReason | None) -> ContinuationOutcome:
    decision = FORBID if reason else REQUEST
    return ContinuationOutcome(decision, "Test", reason, (ContinuationEvaluation("Test", decision, "so"),))


def test_an_empty_session_is_pending_with_nothing_in_it() -> None:
    state = AgentState()
    assert state.status is AgentStatus.PENDING
    assert len(state.messages) == len(state.steps) == state.step_count == 0
    assert state.current_step is None
    assert state.last_continuation_outcome is None
    assert state.stop_reason is None
    assert state.last_response == ""
    assert state.parent_agent_id is None
    assert state.execution_started_at is None
    assert state.usage == Usage()
    assert state.metadata == {}
    assert state.agent_id != AgentState().agent_id
    assert_readable(state)


def test_statuses_have_these_values() -> None:
    values = ["pending", "in_progress", "paused", "completed", "stopped", "failed"]
    assert [status.value for status in AgentStatus] == values
    assert [status.name.lower() for status in AgentStatus] == values


def test_a_state_cannot_be_changed() -> None:
    state = session(steps=1)
    for name in ("status", "messages", "agent_id", "metadata"):
        with pytest.raises(AttributeError):
            setattr(state, name, getattr(state, name))


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (None, "in_progress"),
        (StopReason.COMPLETED, "completed"),
        (StopReason.STEPS_LIMIT_REACHED, "stopped"),
        (StopReason.TOKEN_LIMIT_REACHED, "stopped"),
        (StopReason.TIME_LIMIT_REACHED, "stopped"),
        (StopReason.FINISH_REASON_RECEIVED, "stopped"),
        (StopReason.GUARD_FORBADE, "stopped"),
        (StopReason.USER_REQUESTED, "stopped"),
        (StopReason.ERROR_FORBADE, "failed"),
        (StopReason.RETRY_LIMIT_REACHED, "failed"),
    ],
)
def test_the_status_follows_from_the_outcome(reason: StopReason | None, status: str) -> None:
    before = session(steps=1, tool_calls=1)
    after = before.with_continuation_outcome(outcome(reason))
    assert after.status == status
    assert after.stop_reason is reason
    assert after.last_continuation_outcome == outcome(reason)
    assert after.steps[-1].outcome == outcome(reason)
    assert after.current_step == after.steps[-1]
    assert before.steps[-1].outcome is None


def test_a_query_starts_a_new_execution_with_fresh_counters() -> None:
    before = failed_steps(session(steps=2, tokens=5, seconds=1), 2).with_continuation_outcome(
        outcome(StopReason.ERROR_FORBADE)
    )
    after = Queried(at(99), execution_id="e2", message=Message.user("next")).apply_to(before)
    assert after.execution.id == "e2"
    assert (after.execution.step_count, after.execution.usage, after.execution.active_seconds) == (
        0,
        Usage(),
        0,
    )
    assert after.execution.failures.consecutive == after.execution.failures.total == 0
    assert after.current_step is None
    assert after.last_continuation_outcome is None
    assert after.execution_started_at == at(99)
    assert after.step_count == 4
    assert after.usage == before.usage
    assert after.state_info.started_at == START
    assert after.state_info.cumulative_execution_seconds == 2


def test_mark_execution_started_begins_a_leg() -> None:
    state = session(steps=1, seconds=2)
    marked = state.mark_execution_started(at(50))
    execution = marked.execution
    assert marked.execution_started_at == execution.leg_started_at == execution.updated_at == at(50)
    assert (execution.waiting_seconds, execution.active_seconds) == (48, 2)
    assert execution.started_at == state.execution.started_at
    before = datetime.now(UTC)
    now = state.mark_execution_started().execution_started_at
    assert now is not None
    assert before <= now <= datetime.now(UTC)


def test_when_the_leg_began_in_this_process_does_not_matter_for_equality() -> None:
    state = session(steps=1)
    restored = AgentState.from_dict(state.to_dict())
    assert (state.execution_started_at, restored.execution_started_at) == (START, None)
    assert restored == state


def test_two_states_are_equal_when_everything_stored_is() -> None:
    assert session(steps=2) == session(steps=2)
    assert session(steps=2) != session(steps=3)
    assert session() != "session"


def test_the_messages_of_a_step_can_be_found() -> None:
    state = session(steps=2, tool_calls=1)
    first, second = state.steps
    assert [m.role.value for m in state.messages_of(first)] == ["assistant", "tool"]
    assert state.messages_of(second) == state.messages[3:5]


async def test_the_explanation_names_the_rule_its_reason_its_numbers_and_every_step() -> None:
    agent = scripted(
        call("echo", usage=1200),
        call("broken", usage=34),
        tools=[echo, broken],
        max_steps=2,
        error_policy=ErrorPolicy.retry_tool_errors(),
    )
    state = await agent.run("go")
    lines = state.explain().splitlines()
    assert "Stopped" in lines[0]
    assert "steps_limit" in lines[0]
    assert "StepsLimit" in lines[0]
    assert "2 of 2 steps" in lines[0]
    steps = [line for line in lines if "→" in line]
    assert len(steps) == 2
    assert "echo" in steps[0]
    assert "1,200 tokens" in steps[0]
    assert "continue" in steps[0]
    assert "broken" in steps[1]
    assert "RuntimeError" in steps[1]
    assert "stop (steps_limit)" in steps[1]
    last = state.last_continuation_outcome
    assert last is not None
    for said in last.evaluations:
        assert any(line.split()[0] == said.decision and said.reason in line for line in lines if line.strip())


@pytest.mark.parametrize(
    ("reply", "verb"), [(text("hi"), "Completed"), (text("h", finish_reason="length"), "Stopped")]
)
async def test_the_explanation_begins_with_how_it_ended(reply: object, verb: str) -> None:
    state = await scripted(reply).run("go")  # type: ignore[arg-type]
    assert state.explain().startswith(verb)


async def test_the_explanation_is_about_the_current_query_only() -> None:
    agent = scripted(call("echo"), "one", "two", tools=[echo])
    state = await agent.run("first")
    state = await agent.run("second", state=state)
    explanation = state.explain()
    assert "after 1 step" in explanation
    assert "echo" not in explanation


def test_a_run_that_has_not_ended_explains_its_progress() -> None:
    assert "Nothing has been decided yet" in session().explain()
    going_on = session(steps=1, tool_calls=1).with_continuation_outcome(outcome(None))
    assert going_on.explain().startswith("In progress, after 1 step")


def test_a_paused_run_explains_that_it_is_paused() -> None:
    paused = replace(session(steps=1, tool_calls=1), status=AgentStatus.PAUSED)
    assert paused.explain().startswith("Paused after 1 step")


@pytest.mark.parametrize("status", list(AgentStatus))
def test_a_run_has_ended_when_it_is_completed_stopped_or_failed(status: AgentStatus) -> None:
    assert status.has_ended is (status in ("completed", "stopped", "failed"))


async def test_a_step_knows_its_type() -> None:
    agent = scripted(
        call("echo"), call("broken"), "done", tools=[echo, broken], error_policy=ErrorPolicy.retry_all()
    )
    state = await agent.run("go")
    assert [step.type.value for step in state.steps] == ["tool_execution", "error", "final"]
    assert [step.has_tool_calls for step in state.steps] == [True, True, False]
    assert [step.error_count for step in state.steps] == [0, 1, 0]


def test_entries_of_metadata_are_added_and_replaced() -> None:
    state = AgentState(metadata={"a": 1}).with_metadata(b=2).with_metadata(a=3)
    assert state.metadata == {"a": 3, "b": 2}
