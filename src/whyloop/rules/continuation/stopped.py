"""An execution that somebody ends from outside, where no loop runs that could be asked to."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from whyloop.rules.continuation.checks import StopRequestedCheck
from whyloop.rules.continuation.resolve import resolve
from whyloop.values.state import AgentState


def stopped(state: AgentState, reason: str, now: datetime) -> AgentState:
    """The state as it is once it was stopped for this reason; it can be resumed."""
    asked = state.with_stop_request(reason)
    said = StopRequestedCheck().explain(asked)
    before = state.current_step.outcome if state.current_step and not state.open_step else None
    # Everyone else's word on the last step still stands.
    others = [e for e in before.evaluations if e.criterion != said.criterion] if before else []
    outcome = resolve((said, *others))
    ended = asked.with_continuation_outcome(outcome)
    return replace(ended, state_info=replace(ended.state_info, updated_at=now))
