"""Criteria that look at what happened rather than at how much: finish reasons, requests, tool calls."""

from __future__ import annotations

from collections.abc import Iterable

from whyloop.errors import ConfigurationError
from whyloop.rules.continuation.criterion import Criterion
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.model import FinishReason
from whyloop.values.state import AgentState
from whyloop.values.text import counted

_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION
_STOP = ContinuationDecision.ALLOW_STOP


class FinishReasonCheck(Criterion):
    """Forbids when the model ended for one of these reasons: a cut-off answer is not a completed one."""

    def __init__(self, reasons: str | Iterable[str], *more: str) -> None:
        flat = [*([reasons] if isinstance(reasons, str) else reasons), *more]
        known = [member.value for member in FinishReason]
        for reason in flat:
            if reason not in known:
                raise ConfigurationError(f"{reason!r} is no finish reason: choose from {', '.join(known)}")
        self.reasons = tuple(FinishReason(reason) for reason in flat)
        # The answers are few and the same at every step, so they are made once; the commonest go first.
        likely = (FinishReason.TOOL_CALLS, FinishReason.STOP, *FinishReason, None)
        self._answers = [(reason, self._answer(reason)) for reason in dict.fromkeys(likely)]

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        step = state.current_step
        given = step.finish_reason if step else None
        for reason, answer in self._answers:
            if reason is given:
                return answer
        return self._answer(given)

    def _answer(self, reason: FinishReason | None) -> ContinuationEvaluation:
        forbidden = reason in self.reasons
        if reason is None:
            words = "The model gave no finish reason"
        else:
            words = f'The model finished with "{reason}"' + (", which ends the run" if forbidden else "")
        context = {"finish_reason": reason and str(reason), "terminal": [str(r) for r in self.reasons]}
        if not forbidden:
            return ContinuationEvaluation("FinishReasonCheck", _ALLOW, words, context)
        stop_reason = StopReason.FINISH_REASON_RECEIVED
        return ContinuationEvaluation("FinishReasonCheck", _FORBID, words, context, stop_reason)


class StopRequestedCheck(Criterion):
    """Forbids when somebody outside asked for a stop, with their words as the reason."""

    _NOBODY = ContinuationEvaluation("StopRequestedCheck", _ALLOW, "Nobody asked for a stop")

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        reason = state.execution.stop_request
        if reason is None:
            return self._NOBODY
        return ContinuationEvaluation("StopRequestedCheck", _FORBID, reason, {}, StopReason.USER_REQUESTED)


class ToolCallPresenceCheck(Criterion):
    """Drives the work: requests another step while tool results await the model, else allows the stop."""

    _NO_STEP = ContinuationEvaluation(
        "ToolCallPresenceCheck", _REQUEST, "No step has been taken yet", {"tool_calls": 0}
    )
    _ANSWERED = ContinuationEvaluation(
        "ToolCallPresenceCheck", _STOP, "The model answered and asked for no tools", {"tool_calls": 0}
    )
    _EMPTY = ContinuationEvaluation(
        "ToolCallPresenceCheck",
        _STOP,
        "The model's reply was empty: no text and no tool calls",
        {"tool_calls": 0},
    )
    _NOTHING = ContinuationEvaluation(
        "ToolCallPresenceCheck",
        _STOP,
        "There is no answer to go on with: the model call did not succeed",
        {"tool_calls": 0},
        StopReason.ERROR_FORBADE,
    )

    @staticmethod
    def _waiting(calls: int) -> ContinuationEvaluation:
        words = f"The results of {counted(calls, 'tool call')} await the model"
        return ContinuationEvaluation("ToolCallPresenceCheck", _REQUEST, words, {"tool_calls": calls})

    _ONE = _waiting(1)

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        step = state.current_step
        if step is None:
            return self._NO_STEP
        if calls := len(step.tool_calls):
            return self._ONE if calls == 1 else self._waiting(calls)
        if step.message_count == 0:
            return self._NOTHING
        return self._ANSWERED if state.messages[-1].content else self._EMPTY
