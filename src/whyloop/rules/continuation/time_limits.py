"""Limits on time: by the wall clock since a query or a resume, or by the seconds of actual work."""

from __future__ import annotations

from datetime import datetime

from whyloop.rules.continuation.limits import Limit
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentState
from whyloop.values.times import utc_now


class TimeLimit(Limit):
    stop_reason = StopReason.TIME_LIMIT_REACHED

    def words(self, used: float) -> str:
        return f"{used:,.1f} of {self.limit:g} s used"


class ExecutionTimeLimit(TimeLimit):
    """Forbids once this many seconds have passed since the query, or since it was last resumed.

    The time is the one at which the state was last updated, so that a recorded run is judged
    the same way tomorrow; only a state that nothing has happened to yet is compared to the clock.
    """

    def used(self, state: AgentState) -> float:
        return self._elapsed(state, state.execution.updated_at or utc_now())

    def seconds_left(self, state: AgentState, now: datetime) -> float:
        return max(0.0, self.limit - self._elapsed(state, now))

    def _elapsed(self, state: AgentState, now: datetime) -> float:
        return max(0.0, (now - self._started(state)).total_seconds())

    def _started(self, state: AgentState) -> datetime:
        if self._of_session or state.execution_started_at is None:
            return state.state_info.started_at
        return state.execution_started_at


class CumulativeExecutionTimeLimit(TimeLimit):
    """Forbids once models and tools have worked this many seconds; pauses and backoff do not count."""

    def used(self, state: AgentState) -> float:
        if self._of_session:
            return state.state_info.cumulative_execution_seconds
        return state.execution.active_seconds

    def seconds_left(self, state: AgentState, now: datetime) -> float:
        return max(0.0, self.limit - self.used(state))
