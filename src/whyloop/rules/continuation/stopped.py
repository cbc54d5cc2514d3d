"""Ending an execution that no runner has, where no agent is at hand to judge it."""

from __future__ import annotations

from datetime import datetime

from whyloop.rules.continuation.checks import StopRequestedCheck
from whyloop.rules.continuation.resolve import resolve
from whyloop.values.state import AgentState
from whyloop.values.transitions import AnyTransition, Judged, StopRequested


def stop_transitions(
    state: AgentState, reason: str, now: datetime, key: str | None = None
) -> list[AnyTransition]:
    """Return the transitions that stop an execution; every other rule keeps what it said last."""
    request = StopRequested(now, reason=reason, key=key)
    forbids = StopRequestedCheck().explain(request.apply_to(state))
    last = state.last_continuation_outcome or (state.current_step.outcome if state.current_step else None)
    earlier = last.evaluations if last is not None else ()
    evaluations = [forbids if e.criterion == forbids.criterion else e for e in earlier]
    if forbids not in evaluations:
        evaluations.insert(0, forbids)
    return [request, Judged(now, outcome=resolve(tuple(evaluations)))]
