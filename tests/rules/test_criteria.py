"""All criteria of an agent together, and the objects that may be criteria."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import assert_readable, scripted, session
from whyloop import (
    AgentState,
    AgentStatus,
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    StepsLimit,
    StopReason,
    ToolCallPresenceCheck,
)
from whyloop.errors import ConfigurationError
from whyloop.testing import assert_stopped, call, calls
from whyloop.tools.tool import Tool

FORBID = ContinuationDecision.FORBID_CONTINUATION
REQUEST = ContinuationDecision.REQUEST_CONTINUATION
STOP = ContinuationDecision.ALLOW_STOP
ALLOW = ContinuationDecision.ALLOW_CONTINUATION


class DecidesOnly:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, state: AgentState) -> ContinuationDecision:
        answer: ContinuationDecision = self.answer
        return answer


class Explains:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        answer: ContinuationEvaluation = self.answer
        return answer


class Raises:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        raise self.error


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (FORBID, "DecidesOnly forbade continuation"),
        (REQUEST, "DecidesOnly requested continuation"),
        (ALLOW, "DecidesOnly permits continuation"),
        (STOP, "DecidesOnly allows stop"),
    ],
)
def test_a_criterion_that_only_decides_gets_the_default_reason(
    decision: ContinuationDecision, words: str
) -> None:
    (said,) = ContinuationCriteria(DecidesOnly(decision)).evaluate(session()).evaluations
    assert said == ContinuationEvaluation("DecidesOnly", decision, words)


def test_a_decision_may_be_given_by_its_value() -> None:
    (said,) = ContinuationCriteria(DecidesOnly("allow")).evaluate(session()).evaluations
    assert said.decision is ALLOW


def test_explain_is_preferred_to_decide() -> None:
    class Both:
        def decide(self, state: AgentState) -> ContinuationDecision:
            return FORBID

        def explain(self, state: AgentState) -> ContinuationEvaluation:
            return ContinuationEvaluation("Both", ALLOW, "explained")

    (said,) = ContinuationCriteria(Both()).evaluate(session()).evaluations
    assert said.reason == "explained"
    assert said.decision is ALLOW


def test_every_criterion_is_evaluated_even_after_one_forbade() -> None:
    asked: list[str] = []

    def spy(name: str, decision: ContinuationDecision) -> Any:
        def criterion(state: AgentState) -> ContinuationDecision:
            asked.append(name)
            return decision

        return criterion

    ContinuationCriteria(spy("a", FORBID), spy("b", ALLOW), spy("c", FORBID)).evaluate(session())
    assert asked == ["a", "b", "c"]


def test_a_criterion_that_raises_forbids_in_its_own_name_and_the_others_are_still_asked() -> None:
    outcome = ContinuationCriteria(Raises(KeyError("budget")), StepsLimit(3)).evaluate(session(steps=1))
    broken, steps = outcome.evaluations
    assert broken.criterion == "Raises"
    assert broken.decision is FORBID
    assert broken.stop_reason is StopReason.ERROR_FORBADE
    assert broken.reason.startswith("Raises could not be evaluated: ")
    assert "budget" in broken.reason
    assert steps.decision is ALLOW
    assert outcome.stop_reason is StopReason.ERROR_FORBADE


def test_a_shipped_criterion_that_raises_is_named_too() -> None:
    limit = StepsLimit(3)
    limit.explain = Raises(RuntimeError("unreadable")).explain  # type: ignore[method-assign]
    (said,) = ContinuationCriteria(limit).evaluate(session()).evaluations
    assert said.reason.startswith("StepsLimit could not be evaluated: ")
    assert "unreadable" in said.reason


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_that_cannot_be_printed_is_still_a_forbid() -> None:
    outcome = ContinuationCriteria(Raises(UnprintableError())).evaluate(session())
    assert outcome.stop_reason is StopReason.ERROR_FORBADE


async def test_a_call_that_waits_for_a_person_has_no_result_that_awaits_the_model() -> None:
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    one, both = call("pay", {"amount": 1}), calls(call("pay", {"amount": 1}), call("pay", {"amount": 2}))
    for reply, text in (
        (one, "1 tool call has no result yet"),
        (both, "2 tool calls have no result yet"),
    ):
        state = await scripted(reply, tools=[Tool(pay, needs_approval=True)]).run("go")
        said = state.outcome.evaluation_for(ToolCallPresenceCheck)
        assert said is not None
        assert (said.decision, said.reason) == ("request", text)


async def test_a_run_whose_criterion_raises_ends_failed_with_that_trace() -> None:
    agent = scripted("hello", criteria=Raises(RuntimeError("no database")))
    state = await agent.run("hi")
    assert state.status is AgentStatus.FAILED
    assert_stopped(state, reason="error", by="Raises")
    assert "Raises could not be evaluated" in assert_readable(state)
    outcome = state.last_continuation_outcome
    assert outcome is not None
    assert outcome.evaluation_for(ToolCallPresenceCheck) is not None


@pytest.mark.parametrize(
    "criterion",
    [
        Explains(None),
        Explains("go on"),
        Explains(42),
        Explains(ALLOW),
        Explains(ContinuationEvaluation("E", "perhaps", "odd")),  # type: ignore[arg-type]
        Explains(ContinuationEvaluation("E", ALLOW, None)),  # type: ignore[arg-type]
        Explains(ContinuationEvaluation("E", ALLOW, "odd", None)),  # type: ignore[arg-type]
        Explains(ContinuationEvaluation(None, ALLOW, "odd")),  # type: ignore[arg-type]
        Explains(ContinuationEvaluation("E", FORBID, "odd", {}, "because")),  # type: ignore[arg-type]
        DecidesOnly(None),
        DecidesOnly("perhaps"),
        lambda state: None,
        lambda state: "perhaps",
    ],
    ids=[
        "none",
        "words",
        "number",
        "decision",
        "unknown-decision",
        "no-reason",
        "no-context",
        "no-name",
        "unknown-stop-reason",
        "decides-none",
        "decides-nonsense",
        "function-none",
        "function-nonsense",
    ],
)
async def test_a_criterion_that_answers_nonsense_forbids_and_the_state_can_be_read(criterion: Any) -> None:
    state = await scripted("hello", criteria=[criterion]).run("hi")
    assert_stopped(state, reason="error")
    assert state.status is AgentStatus.FAILED
    assert "could not be evaluated" in assert_readable(state)


async def test_odd_things_in_an_evaluations_context_do_not_break_the_trace() -> None:
    context = {"object": object(), "nan": float("nan"), "set": {1}, "error": ValueError("x")}
    state = await scripted(
        "hello", criteria=Explains(ContinuationEvaluation("E", ALLOW, "fine", context))
    ).run("hi")
    assert_stopped(state, reason="completed")
    assert_readable(state)  # What is evaluated is what is stored.


def test_when_makes_a_criterion_from_a_function() -> None:
    def office_hours(state: AgentState) -> bool:
        return False

    outcome = ContinuationCriteria(ContinuationCriteria.when(office_hours)).evaluate(session())
    assert outcome.resolved_by == "office_hours"
    assert outcome.stop_reason is StopReason.GUARD_FORBADE
    assert outcome.evaluations[0].reason == "office_hours forbade continuation"


@pytest.mark.parametrize(
    ("answer", "decision"), [(True, ALLOW), (False, FORBID), (REQUEST, REQUEST), (STOP, STOP)]
)
def test_when_understands_decisions_and_truth(answer: Any, decision: ContinuationDecision) -> None:
    criterion = ContinuationCriteria.when(lambda state: answer)
    assert ContinuationCriteria(criterion).decide(session()) is decision
    assert criterion.decide(session()) is decision


def test_when_keeps_an_evaluation_as_it_is() -> None:
    said = ContinuationEvaluation("Mine", FORBID, "no", {"used": 1}, StopReason.USER_REQUESTED)
    outcome = ContinuationCriteria(ContinuationCriteria.when(lambda state: said)).evaluate(session())
    assert outcome.evaluations == (said,)
    assert outcome.stop_reason is StopReason.USER_REQUESTED


def test_when_gets_the_state() -> None:
    criteria = ContinuationCriteria(ContinuationCriteria.when(lambda state: state.step_count < 2))
    assert criteria.can_continue(session(steps=1))
    assert not criteria.can_continue(session(steps=2))


def test_is_empty_is_true_without_criteria() -> None:
    assert ContinuationCriteria().is_empty
    assert not ContinuationCriteria(StepsLimit(1)).is_empty


def test_with_criteria_adds_at_the_end_and_leaves_the_first_alone() -> None:
    few = ContinuationCriteria(StepsLimit(3))
    more = few.with_criteria(ToolCallPresenceCheck(), lambda state: True)
    assert len(few.evaluate(session()).evaluations) == 1
    names = [said.criterion for said in more.evaluate(session()).evaluations]
    assert names == ["StepsLimit", "ToolCallPresenceCheck", names[2]]
    assert names[2].startswith("lambda (test_criteria.py:")


@pytest.mark.parametrize("candidate", [42, None, "StepsLimit", object()])
def test_an_object_that_is_not_a_criterion_is_refused(candidate: Any) -> None:
    with pytest.raises(ConfigurationError, match="invalid criterion"):
        ContinuationCriteria(candidate)


def test_a_class_in_place_of_an_instance_is_refused_with_its_name() -> None:
    candidate: Any = ToolCallPresenceCheck
    with pytest.raises(ConfigurationError, match=r"ToolCallPresenceCheck.*instance"):
        ContinuationCriteria(candidate)


def test_two_lambdas_go_by_the_place_where_they_were_written() -> None:
    criteria = ContinuationCriteria(
        lambda state: True,
        lambda state: False,
    )
    first, second = [e.criterion for e in criteria.evaluate(AgentState()).evaluations]
    assert first.startswith("lambda (test_criteria.py:")
    assert first != second


def test_functions_with_one_name_are_numbered() -> None:
    same = [lambda state, allow=allow: allow for allow in (True, False)]
    criteria = ContinuationCriteria(*same).with_criteria(same[0])
    names = [e.criterion for e in criteria.evaluate(AgentState()).evaluations]
    assert names == [names[0], f"{names[0]} 2", f"{names[0]} 3"]
    assert criteria.evaluate(AgentState()).resolved_by == names[1]
