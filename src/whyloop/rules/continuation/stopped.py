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
    outcome = resolve((StopRequestedCheck().explain(asked),))
    ended = asked.with_continuation_outcome(outcome)
    return replace(ended, state_info=replace(ended.state_info, updated_at=now))
