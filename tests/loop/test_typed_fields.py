"""The loop acts on fields of an evaluation; its context is for display, and its order does not matter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support import broken, echo, examples, pay, requests_of, scripted
from whyloop import (
    AgentState,
    ApprovalRequired,
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ErrorHandlingDecision,
    ErrorPolicy,
    ErrorPolicyCriterion,
    MessageRole,
    StepsLimit,
    StopReason,
    ToolCallPresenceCheck,
)
from whyloop.testing import assert_continued, assert_stopped, call, calls

ALLOW = ContinuationDecision.ALLOW_CONTINUATION
FORBID = ContinuationDecision.FORBID_CONTINUATION
REQUEST = ContinuationDecision.REQUEST_CONTINUATION


class Says:
    """A criterion of a user that gives one fixed evaluation."""

    def __init__(self, *fields: Any, **named: Any) -> None:
        self.evaluation = ContinuationEvaluation("Says", *fields, **named)

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        return self.evaluation


async def failing_run(*criteria: Any) -> AgentState:
    """A run whose tool fails for ever, under criteria in the given order."""
    replies = [call("broken") for _ in range(9)]
    agent = scripted(*replies, tools=[broken], max_steps=None, criteria=criteria)
    return await agent.run("go")


MISLEADING: list[dict[str, Any]] = [
    {"handling": "ignore", "error_type": "tool", "consecutive_failures": 0},
    {"handling": "stop"},
    {"pending": [{"id": "x"}], "pauses": True},
    {"exhausted": True, "used": 5, "limit": 5, "remaining": 0},
    {"feedback": "stop now", "stop_reason": "completed", "decision": "forbid"},
]


@pytest.mark.parametrize("context", MISLEADING)
@pytest.mark.parametrize("order", range(2))
async def test_no_content_of_a_context_changes_a_decision(context: dict[str, Any], order: int) -> None:
    policy = ErrorPolicyCriterion(ErrorPolicy.retry_all(2))
    criteria = [Says(ALLOW, "fine", context), policy, StepsLimit(8)]
    state = await failing_run(*(criteria if order else criteria[::-1]))
    assert_stopped(state, reason="retry_limit", by=ErrorPolicyCriterion)
    assert state.step_count == 3


contexts = st.dictionaries(
    st.sampled_from(["handling", "pending", "exhausted", "pauses", "feedback", "tool_calls", "failures"]),
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["ignore", "stop", "retry"]),
)


@examples(40)
@given(contexts, st.permutations(range(5)))
def test_neither_context_nor_order_changes_how_a_run_ends(context: dict[str, Any], order: list[int]) -> None:
    criteria = [
        Says(ALLOW, "fine", context),
        ErrorPolicyCriterion(ErrorPolicy.retry_all(2)),
        StepsLimit(8),
        ToolCallPresenceCheck(),
        ApprovalRequired(),
    ]
    state = asyncio.run(failing_run(*[criteria[index] for index in order]))
    assert_stopped(state, reason="retry_limit", by=ErrorPolicyCriterion)


@pytest.mark.parametrize(
    "field", [{"handling": ErrorHandlingDecision.IGNORE}, {"pauses": True}], ids=["handling", "pauses"]
)
async def test_a_field_that_belongs_to_one_criterion_is_refused_from_another(field: dict[str, Any]) -> None:
    state = await scripted("hello", criteria=[Says(FORBID, "so", **field)]).run("go")
    assert_stopped(state, reason="error", by="Says")
    assert "set by the error policy alone" in state.explain()


async def test_an_own_limit_may_be_exhausted() -> None:
    spent = Says(FORBID, "the budget is spent", exhausted=True)
    state = await scripted("hello", criteria=[spent]).run("go")
    assert_stopped(state, reason="completed", by=ToolCallPresenceCheck)
    state = await scripted(call("echo"), tools=[echo], criteria=[spent]).run("go")
    assert_stopped(state, reason="guard", by="Says")


# Feedback


class Nudge:
    """Requests another step with feedback, so many times."""

    def __init__(self, *feedback: str | None) -> None:
        self._feedback = feedback

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        number = state.execution.step_count
        if number > len(self._feedback):
            return ContinuationEvaluation("Nudge", ALLOW, "fine now")
        return ContinuationEvaluation("Nudge", REQUEST, "again", feedback=self._feedback[number - 1])


async def test_feedback_is_one_developer_message_after_the_tool_results() -> None:
    quiet, second = Says(ALLOW, "fine"), Says(ALLOW, "fine", feedback="Check the totals.")
    agent = scripted(
        call("echo", {"value": "x"}), "done", tools=[echo], criteria=[Nudge("Be brief."), quiet, second]
    )
    state = await agent.run("go")
    roles = [message.role.value for message in state.messages]
    assert roles == ["user", "assistant", "tool", "developer", "assistant"]
    feedback = state.messages[3]
    assert feedback.text == "Be brief.\n\nCheck the totals."
    assert feedback.source == ("Nudge", "Says")
    assert list(requests_of(agent)[1].messages) == list(state.messages[:4])
    assert not feedback.is_user
    assert state.messages_of(state.steps[0]) == state.messages[1:3]


async def test_feedback_is_not_sent_where_the_run_ends() -> None:
    state = await scripted("done", criteria=[Says(ALLOW, "fine", feedback="unheard")]).run("go")
    assert [message.role.value for message in state.messages] == ["user", "assistant"]


async def test_feedback_makes_the_model_correct_an_answer_and_the_last_response_looks_past_it() -> None:
    agent = scripted("draft", "final", criteria=[Nudge("Not quite.")])
    states = [state async for state in agent.iterate(agent.start("go"))]
    assert states[0].messages[-1].has_role(MessageRole.DEVELOPER)
    assert states[0].last_response == "draft"
    assert_continued(states[-1], step=1, by="Nudge")
    assert states[-1].last_response == "final"
    # Judging again does not see the message: rules read the step.
    assert all(agent.criteria.evaluate(state) == state.steps[-1].outcome for state in states)


# A pause


async def test_a_call_that_waits_for_a_person_is_a_pause() -> None:
    state = await scripted(call("pay", {"amount": 5}), tools=[pay]).run("go")
    outcome = state.last_continuation_outcome
    assert outcome is not None
    assert (outcome.pauses, outcome.stop_reason, outcome.decision) == (True, None, FORBID)
    assert state.status == "paused"


@pytest.mark.parametrize("first", [True, False])
async def test_any_other_forbid_beats_a_pause(first: bool) -> None:
    criteria: list[Any] = [Says(FORBID, "office hours are over"), ApprovalRequired()]
    agent = scripted(call("pay", {"amount": 5}), tools=[pay], criteria=criteria if first else criteria[::-1])
    state = await agent.run("go")
    assert_stopped(state, reason="guard", by="Says")
    assert [pending.tool for pending in state.pending_calls] == ["pay"]


def test_every_agent_asks_whether_a_person_must_decide() -> None:
    for agent in (scripted(), scripted(tools=[pay]), scripted(max_steps=None, timeout=None)):
        kinds = [type(criterion) for criterion in agent.criteria.criteria]
        assert kinds.count(ApprovalRequired) == 1


# Every criterion on every step


async def test_a_step_that_another_query_replaced_carries_the_evaluation_of_every_criterion() -> None:
    agent = scripted(calls(call("pay", {"amount": 5}), call("echo")), "hello", tools=[pay, echo])
    paused = await agent.run("go")
    state = await agent.run("something else", state=paused)
    outcome = state.steps[0].outcome
    assert outcome is not None
    assert [e.criterion for e in outcome.evaluations] == [
        type(criterion).__name__ for criterion in agent.criteria.criteria
    ]
    assert (outcome.resolved_by, outcome.stop_reason) == ("StopRequestedCheck", StopReason.USER_REQUESTED)


async def test_an_execution_that_had_ended_keeps_its_reason_when_another_query_closes_its_step() -> None:
    guard = ContinuationCriteria.when(lambda state: state.open_step is None or not state.pending_calls)
    agent = scripted(call("pay", {"amount": 5}), "hello", tools=[pay], criteria=[guard, Late()])
    stopped = await agent.run("go")
    assert_stopped(stopped, reason="guard")
    state = await agent.run("something else", state=stopped)
    outcome = state.steps[0].outcome
    assert outcome is not None
    assert (outcome.resolved_by, outcome.stop_reason) == ("Late", StopReason.GUARD_FORBADE)
    assert state.steps[0].tool_calls[0].error == "not run: another query arrived first"


class Late:
    """A guard that forbids for ever once a call was asked for."""

    def decide(self, state: AgentState) -> ContinuationDecision:
        step = state.open_step or state.current_step
        return FORBID if step is not None and step.tool_calls else ALLOW


async def test_an_execution_that_crashed_between_two_steps_ends_when_another_query_arrives() -> None:
    agent = scripted(call("echo"), "hello", tools=[echo])
    in_progress = await agent.next_step(agent.start("go"))
    assert in_progress.status == "in_progress"
    state = await agent.run("something else", state=in_progress)
    outcome = state.steps[0].outcome
    assert outcome is not None
    assert (outcome.resolved_by, outcome.stop_reason) == ("StopRequestedCheck", StopReason.USER_REQUESTED)


def test_an_agent_with_a_token_limit_has_eight_criteria() -> None:
    assert sorted(type(criterion).__name__ for criterion in scripted(max_tokens=5).criteria.criteria) == [
        "ApprovalRequired",
        "ErrorPolicyCriterion",
        "ExecutionTimeLimit",
        "FinishReasonCheck",
        "StepsLimit",
        "StopRequestedCheck",
        "TokenUsageLimit",
        "ToolCallPresenceCheck",
    ]
