"""How many decisions become one."""

from __future__ import annotations

from operator import attrgetter

from whyloop.values.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)

# The only precedence table: the first tier in which any criterion spoke decides, whatever their order.
# Beside each: what a stop means where the criterion that decided names no reason; None goes on.
TIERS = (
    (ContinuationDecision.FORBID_CONTINUATION, StopReason.GUARD_FORBADE),
    (ContinuationDecision.REQUEST_CONTINUATION, None),
    (ContinuationDecision.ALLOW_STOP, StopReason.COMPLETED),
    (ContinuationDecision.ALLOW_CONTINUATION, None),
)

_decision = attrgetter("decision")

_NO_CRITERIA = ContinuationOutcome(
    decision=ContinuationDecision.ALLOW_STOP,
    resolved_by="ContinuationCriteria",
    stop_reason=StopReason.COMPLETED,
)


def resolve(evaluations: tuple[ContinuationEvaluation, ...]) -> ContinuationOutcome:
    """The outcome of a step: decided by the first criterion of the strongest tier."""
    decisions = list(map(_decision, evaluations))
    for tier, default_reason in TIERS:
        if tier in decisions:
            winner = evaluations[decisions.index(tier)]
            reason = default_reason and (winner.stop_reason or default_reason)
            return ContinuationOutcome(tier, winner.criterion, reason, evaluations)
    return _NO_CRITERIA
