"""How many decisions become one."""

from __future__ import annotations

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
_NO_CRITERIA = ContinuationOutcome(_STOP, "ContinuationCriteria", StopReason.COMPLETED)


def resolve(
    evaluations: tuple[ContinuationEvaluation, ...], *, interrupted: bool = False
) -> ContinuationOutcome:
    """Return the outcome of a step: the strongest decision wins, whatever the order of the criteria.

    The order of precedence is forbid, request, stop, allow; the first criterion with the winning decision
    is named. Two refinements: a run with nothing left to do ends naturally although a limit is exhausted,
    unless the step was interrupted; and if only questions to a person forbid, the run pauses.
    """
    first: dict[ContinuationDecision, ContinuationEvaluation] = {}
    final = None  # The first forbid that is more than a pause.
    only_exhausted = True
    for evaluation in evaluations:
        decision = evaluation.decision
        if decision not in first:
            first[decision] = evaluation
        if decision is _FORBID:
            only_exhausted = only_exhausted and evaluation.exhausted
            if final is None and not evaluation.pauses:
                final = evaluation
    if (forbid := final or first.get(_FORBID)) is not None:
        natural = only_exhausted and not interrupted and _REQUEST not in first and _STOP in first
        if not natural:
            reason = None if forbid.pauses else forbid.stop_reason or StopReason.GUARD_FORBADE
            return ContinuationOutcome(_FORBID, forbid.criterion, reason, evaluations)
    elif (request := first.get(_REQUEST)) is not None:
        return ContinuationOutcome(_REQUEST, request.criterion, None, evaluations)
    if (stop := first.get(_STOP)) is not None:
        reason = stop.stop_reason or StopReason.COMPLETED
        return ContinuationOutcome(_STOP, stop.criterion, reason, evaluations)
    if (allow := first.get(_ALLOW)) is not None:
        return ContinuationOutcome(_ALLOW, allow.criterion, None, evaluations)
    return _NO_CRITERIA
