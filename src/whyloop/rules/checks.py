"""Criteria about what happened: finish reasons, stop requests, calls, questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from whyloop.errors import ConfigurationError
from whyloop.rules.criterion import Criterion
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.model import FinishReason
from whyloop.values.state import AgentState
from whyloop.values.step import OpenStep
from whyloop.values.text import counted

_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION
_STOP = ContinuationDecision.ALLOW_STOP


class FinishReasonCheck(Criterion):
    """Forbids if the model's finish reason is one of these, such as a truncation.

    Args:
        reasons: One value of `FinishReason`, or several.
        *more: More of them.
    """

    def __init__(self, reasons: str | Iterable[str], *more: str) -> None:
        flat = [*([reasons] if isinstance(reasons, str) else reasons), *more]
        known = [member.value for member in FinishReason]
        for reason in flat:
            if reason not in known:
                raise ConfigurationError(f"invalid finish reason {reason!r}: choose from {', '.join(known)}")
        self.reasons = tuple(FinishReason(reason) for reason in flat)
        """The finish reasons that forbid continuing."""
        self._evaluations = _finish_evaluations(self.reasons)

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        step = state.latest_step()
        return self._evaluations[step.finish_reason if step else None]


@cache  # Made once, since they are few: 0.2 µs a step instead of 1.2.
def _finish_evaluations(
    terminal: tuple[FinishReason, ...],
) -> Mapping[FinishReason | None, ContinuationEvaluation]:
    """Return the evaluation of each finish reason, and of none."""
    return {reason: _finish_evaluation(reason, terminal) for reason in (*FinishReason, None)}


def _finish_evaluation(
    reason: FinishReason | None, terminal: tuple[FinishReason, ...]
) -> ContinuationEvaluation:
    forbidden = reason in terminal
    if reason is None:
        text = "The model gave no finish reason"
    else:
        text = f'The model finished with "{reason}"' + (", which ends the run" if forbidden else "")
        if reason.truncates:
            text = f"{text}: the answer was truncated"
    context = {"finish_reason": reason and str(reason), "terminal": [str(each) for each in terminal]}
    if not forbidden:
        return ContinuationEvaluation("FinishReasonCheck", _ALLOW, text, context)
    stop_reason = StopReason.FINISH_REASON_RECEIVED
    return ContinuationEvaluation("FinishReasonCheck", _FORBID, text, context, stop_reason)


_NO_STOP_REQUESTED = ContinuationEvaluation("StopRequestedCheck", _ALLOW, "No stop was requested")


class StopRequestedCheck(Criterion):
    """Forbids if a stop was requested, and gives the reason of the request."""

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        reason = state.execution.stop_request
        if reason is None:
            return _NO_STOP_REQUESTED
        return ContinuationEvaluation("StopRequestedCheck", _FORBID, reason, {}, StopReason.USER_REQUESTED)


def _about_calls(
    decision: ContinuationDecision, reason: str, calls: int = 0, stop_reason: StopReason | None = None
) -> ContinuationEvaluation:
    context = {"tool_calls": calls}
    return ContinuationEvaluation("ToolCallPresenceCheck", decision, reason, context, stop_reason)


_PAUSED = _about_calls(_REQUEST, "The provider paused its turn and continues it when asked again")
_NO_STEP = _about_calls(_REQUEST, "No step has been taken yet")
_ANSWERED = _about_calls(_STOP, "The model answered and asked for no tools")
_EMPTY = _about_calls(_STOP, "The model's reply was empty: no text and no tool calls")
_NO_ANSWER = _about_calls(_STOP, "There is no answer: the model call failed", 0, StopReason.ERROR_FORBADE)
_ONE_CALL = _about_calls(_REQUEST, "The results of 1 tool call await the model", 1)


class ToolCallPresenceCheck(Criterion):
    """Requests another step while tool results await the model, else allows stopping.

    It also requests one while a provider has paused its turn.
    """

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        step = state.latest_step()
        if step is None:
            return _NO_STEP
        if calls := len(step.tool_calls):
            if isinstance(step, OpenStep) and not step.is_done:
                left = sum(not call.is_done for call in step.calls)
                text = f"{counted(left, 'tool call')} {'has' if left == 1 else 'have'} no result yet"
                return _about_calls(_REQUEST, text, calls)
            if calls == 1:
                return _ONE_CALL
            return _about_calls(
                _REQUEST, f"The results of {counted(calls, 'tool call')} await the model", calls
            )
        if isinstance(step, OpenStep):
            message = step.message
        else:
            message = state.messages[step.first_message] if step.message_count else None
        if step.interrupted is not None:
            return _about_calls(_STOP, f"The model asked for no tools: {step.interrupted.text}")
        if message is None:
            return _NO_ANSWER
        if step.finish_reason is FinishReason.PAUSE_TURN:
            return _PAUSED
        return _ANSWERED if message.content else _EMPTY


_NOTHING_PENDING = ContinuationEvaluation("ApprovalRequired", _ALLOW, "No tool call waits for a person")


class ApprovalRequired(Criterion):
    """Forbids while a tool call waits for a person: the execution pauses.

    Every agent has this criterion.
    """

    acts = "pauses"
    """The action of the run when this criterion decides, for a trace."""

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        if state.open_step is None and state.execution.question is None:
            return _NOTHING_PENDING
        pending = state.pending_calls
        if not pending:
            return _NOTHING_PENDING
        if len(pending) == 1:
            reason = pending[0].question
        else:
            names = ", ".join(call.tool for call in pending)
            reason = f"{counted(len(pending), 'tool call')} wait for a person: {names}"
        context = {
            "pending": [
                {"id": call.id, "call_id": call.tool_call_id, "name": call.tool, "question": call.question}
                for call in pending
            ]
        }
        return ContinuationEvaluation("ApprovalRequired", _FORBID, reason, context, pauses=True)
