"""How many decisions become one."""

from __future__ import annotations

from whyloop.values.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)

_NO_CRITERIA = ContinuationOutcome(
    decision=ContinuationDecision.ALLOW_STOP,
    resolved_by="ContinuationCriteria",
    stop_reason=StopReason.COMPLETED,
)


def resolve(evaluations: tuple[ContinuationEvaluation, ...]) -> ContinuationOutcome:
    """The outcome of a step.

    The strongest decision wins: forbid, request, stop, allow, in the order in which they are defined.
    The first criterion that gave it has decided, so the order of criteria never changes the decision.
    """
    if not evaluations:
        return _NO_CRITERIA
    winner, strongest = evaluations[0], evaluations[0].decision.precedence
    for evaluation in evaluations:
        precedence = evaluation.decision.precedence
        if precedence < strongest:
            winner, strongest = evaluation, precedence
    decision = winner.decision
    reason = None if decision.continues else winner.stop_reason or _unnamed(decision)
    return ContinuationOutcome(decision, winner.criterion, reason, evaluations)


def _unnamed(decision: ContinuationDecision) -> StopReason:
    """What a stop means where the criterion that decided names no reason of its own."""
    forbidden = decision is ContinuationDecision.FORBID_CONTINUATION
    return StopReason.GUARD_FORBADE if forbidden else StopReason.COMPLETED
