"""How many decisions become one."""

from __future__ import annotations

from whyloop.values.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)

# The only precedence table: the first tier in which any criterion spoke decides, whatever their order.
TIERS = (
    ContinuationDecision.FORBID_CONTINUATION,
    ContinuationDecision.REQUEST_CONTINUATION,
    ContinuationDecision.ALLOW_STOP,
    ContinuationDecision.ALLOW_CONTINUATION,
)

# What a stop means where the criterion that decided names no reason of its own.
_DEFAULT_REASONS = {
    ContinuationDecision.FORBID_CONTINUATION: StopReason.GUARD_FORBADE,
    ContinuationDecision.ALLOW_STOP: StopReason.COMPLETED,
}

_NO_CRITERIA = ContinuationOutcome(
    decision=ContinuationDecision.ALLOW_STOP,
    resolved_by="ContinuationCriteria",
    stop_reason=StopReason.COMPLETED,
)


def resolve(evaluations: tuple[ContinuationEvaluation, ...]) -> ContinuationOutcome:
    """The outcome of a step: decided by the first criterion of the strongest tier."""
    for tier in TIERS:
        for evaluation in evaluations:
            if evaluation.decision is tier:
                reason = None if tier.continues else evaluation.stop_reason or _DEFAULT_REASONS[tier]
                return ContinuationOutcome(tier, evaluation.criterion, reason, evaluations)
    return _NO_CRITERIA
