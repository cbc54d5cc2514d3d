"""Decisions, evaluations and outcomes as values."""

from __future__ import annotations

import pytest

from whyloop import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StepsLimit,
    StopReason,
    ToolCallPresenceCheck,
)
from whyloop.errors import SnapshotError

FORBID = ContinuationDecision.FORBID_CONTINUATION
REQUEST = ContinuationDecision.REQUEST_CONTINUATION
STOP = ContinuationDecision.ALLOW_STOP
ALLOW = ContinuationDecision.ALLOW_CONTINUATION

STOPPED = ContinuationOutcome(
    FORBID,
    "StepsLimit",
    StopReason.STEPS_LIMIT_REACHED,
    (
        ContinuationEvaluation("TokenUsageLimit", ALLOW, "5 of 10 tokens used", {"used": 5}),
        ContinuationEvaluation(
            "StepsLimit", FORBID, "Limit reached: 3 of 3 steps used", {}, StopReason.STEPS_LIMIT_REACHED
        ),
        ContinuationEvaluation("Guard", FORBID, "not on Sundays"),
        ContinuationEvaluation("ToolCallPresenceCheck", REQUEST, "1 tool call"),
    ),
)


def test_decisions_have_these_values() -> None:
    assert {d.name: d.value for d in ContinuationDecision} == {
        "FORBID_CONTINUATION": "forbid",
        "REQUEST_CONTINUATION": "request",
        "ALLOW_STOP": "stop",
        "ALLOW_CONTINUATION": "allow",
    }


def test_stop_reasons_are_these_nine() -> None:
    assert {r.name: r.value for r in StopReason} == {
        "COMPLETED": "completed",
        "STEPS_LIMIT_REACHED": "steps_limit",
        "TOKEN_LIMIT_REACHED": "token_limit",
        "TIME_LIMIT_REACHED": "time_limit",
        "RETRY_LIMIT_REACHED": "retry_limit",
        "ERROR_FORBADE": "error",
        "FINISH_REASON_RECEIVED": "finish_reason",
        "GUARD_FORBADE": "guard",
        "USER_REQUESTED": "user_requested",
    }


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (FORBID, "StepsLimit forbade continuation"),
        (REQUEST, "StepsLimit requested continuation"),
        (ALLOW, "StepsLimit permits continuation"),
        (STOP, "StepsLimit allows stop"),
    ],
)
@pytest.mark.parametrize("criterion", ["StepsLimit", StepsLimit])
def test_a_decision_without_a_reason_has_a_default_reason(
    decision: ContinuationDecision, expected: str, criterion: str | type
) -> None:
    said = ContinuationEvaluation.from_decision(criterion, decision)
    assert said == ContinuationEvaluation("StepsLimit", decision, expected)
    assert said.context == {}
    assert said.stop_reason is None


def test_an_evaluation_is_found_by_class_or_by_name() -> None:
    said = STOPPED.evaluation_for(StepsLimit)
    assert said is STOPPED.evaluations[1]
    assert STOPPED.evaluation_for("StepsLimit") is said
    assert STOPPED.evaluation_for(ToolCallPresenceCheck) is STOPPED.evaluations[3]
    assert STOPPED.evaluation_for("Nobody") is None


@pytest.mark.parametrize("order", [1, -1])
def test_the_deciding_one_of_two_criteria_with_one_name_is_found(order: int) -> None:
    allowed = ContinuationEvaluation("StepsLimit", ALLOW, "5 of 20 steps used")
    forbade = ContinuationEvaluation("StepsLimit", FORBID, "50 of 50 steps used in this session")
    said = (allowed, forbade)[::order]
    outcome = ContinuationOutcome(FORBID, "StepsLimit", StopReason.STEPS_LIMIT_REACHED, said)
    assert outcome.evaluation_for(StepsLimit) is forbade
    assert forbade.reason in outcome.explain().splitlines()[0]


def test_the_forbidding_criterion_is_the_first_that_forbade() -> None:
    assert STOPPED.forbidding_criterion() == "StepsLimit"
    assert ContinuationOutcome(ALLOW, "A", None).forbidding_criterion() is None


def test_an_outcome_explains_itself_in_a_few_plain_lines() -> None:
    lines = STOPPED.explain().splitlines()
    assert len(lines) == 5
    assert "steps_limit" in lines[0]
    assert "StepsLimit" in lines[0]
    assert "3 of 3 steps used" in lines[0]
    for line, said in zip(lines[1:], STOPPED.evaluations, strict=True):
        assert said.criterion in line
        assert said.reason in line
        assert said.decision.value in line


def test_an_outcome_that_continues_names_the_rule_that_requested_it() -> None:
    said = ContinuationEvaluation("ToolCallPresenceCheck", REQUEST, "2 tool calls")
    expected = ContinuationOutcome(REQUEST, "ToolCallPresenceCheck", None, (said,)).explain()
    assert expected.splitlines()[0] == "Continued, decided by ToolCallPresenceCheck: 2 tool calls."


def test_a_reason_of_many_lines_does_not_break_the_explanation() -> None:
    said = ContinuationEvaluation("Guard", FORBID, "first\nsecond\n" + "x" * 5000)
    expected = ContinuationOutcome(FORBID, "Guard", StopReason.GUARD_FORBADE, (said,)).explain()
    assert len(expected.splitlines()) == 2
    assert len(expected) < 2000


def test_an_outcome_as_a_dict_has_everything_a_reader_needs() -> None:
    document = STOPPED.to_dict()
    assert document["should_continue"] is False
    assert document["decision"] == "forbid"
    assert document["stop_reason"] == "steps_limit"
    assert document["resolved_by"] == "StepsLimit"
    assert document["evaluations"][0] == {
        "criterion": "TokenUsageLimit",
        "decision": "allow",
        "reason": "5 of 10 tokens used",
        "context": {"used": 5},
    }
    assert ContinuationOutcome.from_dict(document) == STOPPED


def test_an_outcome_that_cannot_be_read_names_the_path() -> None:
    document = STOPPED.to_dict()
    document["evaluations"][1]["decision"] = "perhaps"
    with pytest.raises(SnapshotError) as caught:
        ContinuationOutcome.from_dict(document)
    assert caught.value.path == "$.evaluations[1].decision"


def test_two_outcomes_cannot_be_mixed_up_by_changing_one() -> None:
    with pytest.raises(AttributeError):
        STOPPED.decision = ALLOW  # type: ignore[misc]


def test_an_evaluation_as_a_dict_is_that_of_its_outcome() -> None:
    assert [each.to_dict() for each in STOPPED.evaluations] == STOPPED.to_dict()["evaluations"]


def test_evaluations_resolve_into_an_outcome() -> None:
    said = [
        ContinuationEvaluation("ToolCallPresenceCheck", REQUEST, "2 tool calls"),
        ContinuationEvaluation("Guard", FORBID, "no"),
    ]
    outcome = ContinuationOutcome.from_evaluations(said)
    expected = ContinuationOutcome(FORBID, "Guard", StopReason.GUARD_FORBADE, tuple(said))
    assert outcome == expected
    assert ContinuationOutcome.from_evaluations(iter(said[:1])).resolved_by == "ToolCallPresenceCheck"
    assert ContinuationOutcome.from_evaluations([]).stop_reason == "completed"
    assert not outcome.partial
