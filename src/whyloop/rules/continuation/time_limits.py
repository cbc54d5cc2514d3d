"""Limits on time: by the wall clock since a query or a resume, or by the seconds of actual work."""

from __future__ import annotations

from datetime import datetime, timedelta

from whyloop.rules.continuation.limits import Limit, Scope
from whyloop.values.budget import Budget
from whyloop.values.continuation import ContinuationEvaluation, StopReason
from whyloop.values.state import AgentState


class ExecutionTimeLimit(Limit):
    """Forbids once this many seconds have passed since the query, or since it was last resumed.

    Both times are recorded in the execution: no rule reads a clock, so a recorded run is judged the same
    way tomorrow.
    """

    stop_reason = StopReason.TIME_LIMIT_REACHED

    def __init__(self, limit: float, *, scope: Scope = "execution") -> None:
        super().__init__(limit, scope=scope)
        self._words = f"of {limit:g} s used"
        self._duration = timedelta(seconds=limit)

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used = state.execution.leg_seconds
        if self._of_session:
            # A clock that was set back has not used anything.
            updated = state.execution.updated_at or state.state_info.started_at
            used = max(0.0, (updated - state.state_info.started_at).total_seconds())
        return self._compare(state, used, f"{used:.1f} {self._words}")

    def deadline(self, state: AgentState, started_at: datetime, counted: float) -> datetime:
        execution = state.execution
        started = execution.leg_started_at or execution.started_at
        if self._of_session:
            started = state.state_info.started_at
        deadline = started + self._duration
        if execution.granted is None:
            return deadline
        return deadline + timedelta(seconds=self.granted(state))

    def share(self, granted: Budget) -> float:
        return granted.seconds


class CumulativeExecutionTimeLimit(Limit):
    """Forbids once models and tools have worked this many seconds; pauses and backoff do not count."""

    stop_reason = StopReason.TIME_LIMIT_REACHED

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used = self._worked(state)
        return self._compare(state, used, f"{used:.1f} of {self.limit:g} s of work used")

    def deadline(self, state: AgentState, started_at: datetime, counted: float) -> datetime:
        left = self.limit + self.granted(state) - self._worked(state)
        return started_at + timedelta(seconds=counted + left)

    def share(self, granted: Budget) -> float:
        return granted.seconds

    def _worked(self, state: AgentState) -> float:
        if self._of_session:
            return state.state_info.cumulative_execution_seconds
        return state.execution.active_seconds
