"""Criteria about what happened: finish reasons, stop requests, tool calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import START, empty_session, failed_steps, session
from whyloop import (
    ContinuationDecision,
    ErrorType,
    Failure,
    FinishReason,
    FinishReasonCheck,
    StopReason,
    StopRequestedCheck,
    ToolCallPresenceCheck,
)
from whyloop.values.transitions import StopRequested

FORBID = ContinuationDecision.FORBID_CONTINUATION
REQUEST = ContinuationDecision.REQUEST_CONTINUATION
STOP = ContinuationDecision.ALLOW_STOP
ALLOW = ContinuationDecision.ALLOW_CONTINUATION


@pytest.mark.parametrize("reason", list(FinishReason))
def test_a_finish_reason_forbids_exactly_when_it_is_one_of_the_terminal_ones(reason: FinishReason) -> None:
    check = FinishReasonCheck(["length", "content_filter"])
    said = check.explain(session(steps=1, finish_reason=reason))
    terminal = reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
    assert said.decision is (FORBID if terminal else ALLOW)
    assert said.stop_reason is (StopReason.FINISH_REASON_RECEIVED if terminal else None)
    assert said.context == {"finish_reason": reason.value, "terminal": ["length", "content_filter"]}
    assert f'"{reason}"' in said.reason
    assert said.criterion == "FinishReasonCheck"


@pytest.mark.parametrize("state", [session(), session(steps=1, finish_reason=None)])
def test_without_a_finish_reason_nothing_is_forbidden(state: Any) -> None:
    said = FinishReasonCheck(["stop"]).explain(state)
    assert said.decision is ALLOW
    assert said.context["finish_reason"] is None


def test_finish_reasons_may_be_given_one_by_one_or_as_members() -> None:
    check = FinishReasonCheck("length", FinishReason.STOP)
    assert check.reasons == (FinishReason.LENGTH, FinishReason.STOP)


def test_an_unknown_finish_reason_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'lenght'.*length"):
        FinishReasonCheck(["lenght"])


def test_without_a_stop_request_it_allows() -> None:
    said = StopRequestedCheck().explain(session(steps=1))
    assert said.decision is ALLOW
    assert said.stop_reason is None


def test_a_requested_stop_forbids_with_the_reason_of_the_request() -> None:
    state = StopRequested(START, reason="Maria closed the chat").apply_to(session(steps=1))
    said = StopRequestedCheck().explain(state)
    assert said.decision is FORBID
    assert said.reason == "Maria closed the chat"
    assert said.stop_reason is StopReason.USER_REQUESTED


@pytest.mark.parametrize("state", [empty_session(), session()])
def test_before_the_first_step_one_is_requested(state: Any) -> None:
    assert ToolCallPresenceCheck().explain(state).decision is REQUEST


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_tool_calls_request_another_step(calls: int) -> None:
    said = ToolCallPresenceCheck().explain(session(steps=1, tool_calls=calls))
    assert said.decision is REQUEST
    assert said.context["tool_calls"] == calls
    assert str(calls) in said.reason


def test_an_answer_without_tool_calls_allows_the_stop() -> None:
    said = ToolCallPresenceCheck().explain(session(steps=1, text="done"))
    assert said.decision is STOP
    assert said.context["tool_calls"] == 0


def test_only_the_latest_step_counts() -> None:
    asked = session(steps=1, tool_calls=2)
    assert ToolCallPresenceCheck().decide(asked) is REQUEST
    assert ToolCallPresenceCheck().decide(failed_steps(asked, 1, Failure(ErrorType.MODEL, "down"))) is STOP


def test_it_never_forbids_after_a_failure() -> None:
    failed = failed_steps(session(), 1, Failure(ErrorType.MODEL, "down"))
    said = ToolCallPresenceCheck().explain(failed)
    assert said.decision is STOP
    assert said.stop_reason is not StopReason.COMPLETED


def test_an_empty_reply_is_distinguished_from_an_answer() -> None:
    answered = ToolCallPresenceCheck().explain(session(steps=1, text="done"))
    empty = ToolCallPresenceCheck().explain(session(steps=1, text=""))
    assert empty.decision is STOP
    assert "empty" in empty.reason
    assert empty.reason != answered.reason
