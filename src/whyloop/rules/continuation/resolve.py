"""How many decisions become one."""

from __future__ import annotations

from operator import attrgetter

from whyloop.values.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)

_FORBID = ContinuationDecision.FORBID_CONTINUATION
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION
_STOP = ContinuationDecision.ALLOW_STOP
_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_decision_of = attrgetter("decision")
_NO_CRITERIA = ContinuationOutcome(_STOP, "ContinuationCriteria", StopReason.COMPLETED)


def resolve(
    evaluations: tuple[ContinuationEvaluation, ...], interrupted: bool = False
) -> ContinuationOutcome:
    """Return the outcome of a step: the strongest decision wins, whatever the order of the criteria.

    The order of precedence is forbid, request, stop, allow; the first criterion with the winning decision
    is named. Two refinements: a run with nothing left to do ends naturally although a limit is exhausted,
    unless the step was interrupted; and if only questions to a person forbid, the run pauses.
    """
    decisions = tuple(map(_decision_of, evaluations))
    if _REQUEST in decisions and _FORBID not in decisions:  # Nearly every step, so it is asked first.
        resolved_by = evaluations[decisions.index(_REQUEST)].criterion
        return ContinuationOutcome(_REQUEST, resolved_by, None, evaluations)
    forbid = pause = request = stop = allow = None
    only_exhausted = True
    for evaluation in reversed(evaluations):  # So that the first of each kind remains.
        decision = evaluation.decision
        if decision is _ALLOW:
            allow = evaluation
        elif decision is _REQUEST:
            request = evaluation
        elif decision is _STOP:
            stop = evaluation
        else:
            only_exhausted = only_exhausted and evaluation.exhausted
            if evaluation.pauses:
                pause = evaluation
            else:
                forbid = evaluation
    forbids = forbid or pause
    ends_naturally = stop is not None and request is None and only_exhausted and not interrupted
    if forbids is not None and not ends_naturally:
        reason = None if forbids.pauses else forbids.stop_reason or StopReason.GUARD_FORBADE
        return ContinuationOutcome(_FORBID, forbids.criterion, reason, evaluations)
    if request is not None:
        return ContinuationOutcome(_REQUEST, request.criterion, None, evaluations)
    if stop is not None:
        reason = stop.stop_reason or StopReason.COMPLETED
        return ContinuationOutcome(_STOP, stop.criterion, reason, evaluations)
    if allow is not None:
        return ContinuationOutcome(_ALLOW, allow.criterion, None, evaluations)
    return _NO_CRITERIA
