"""Limits on steps, tokens and time, of an execution or of the whole session."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime, timedelta
from math import inf
from typing import ClassVar, Literal

from whyloop.errors import ConfigurationError
from whyloop.rules.criterion import Criterion
from whyloop.values.continuation import (
    LARGEST,
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    StopReason,
)
from whyloop.values.state import AgentState

Scope = Literal["execution", "session"]

_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION


class Limit(Criterion):
    """Compares two numbers, used and allowed. Forbids once nothing is left."""

    stop_reason: ClassVar[StopReason]

    def __init__(self, limit: float, *, scope: Scope = "execution") -> None:
        name = type(self).__name__
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < inf:
            raise ConfigurationError(f"{name} needs a number greater than zero, not {limit!r}")
        if limit > LARGEST:
            raise ConfigurationError(f"{name}({limit!r}) is as good as none: leave the limit out")
        if scope not in ("execution", "session"):
            raise ConfigurationError(f'{name}: scope is "execution" or "session", not {scope!r}')
        self.limit = limit
        self.scope: Scope = scope
        self._name = name
        self._of_session = scope == "session"
        # The limit as text, once: to format it after every step takes 0.3 µs.
        self._text = f"{limit:,}"

    @abstractmethod
    def share(self, granted: Budget) -> float:
        """Return how much of a grant is for what this limit counts."""

    def granted(self, state: AgentState) -> float:
        """Return how much a person has allowed on top of the limit."""
        granted = state.execution.granted
        return 0 if granted is None else self.share(granted)

    def _compare(self, state: AgentState, used: float, text: str) -> ContinuationEvaluation:
        """Return the evaluation for an amount used, with a text about it."""
        limit = self.limit
        if self._of_session:
            text += " in this session"
        if state.execution.granted is not None and (more := self.granted(state)):
            limit += more
            text += f", {more:g} more were granted"
        if used < limit:
            context = {"used": used, "limit": limit, "remaining": limit - used}
            return ContinuationEvaluation(self._name, _ALLOW, text, context)
        context = {"used": used, "limit": limit, "remaining": 0}
        return ContinuationEvaluation(
            self._name, _FORBID, f"Limit reached: {text}", context, self.stop_reason, exhausted=True
        )

    def __repr__(self) -> str:
        scope = ', scope="session"' if self._of_session else ""
        return f"{self._name}({self.limit!r}{scope})"


class CountLimit(Limit):
    """A limit on a whole number of things."""

    def __init__(self, limit: int, *, scope: Scope = "execution") -> None:
        super().__init__(limit, scope=scope)
        if not isinstance(limit, int):
            raise ConfigurationError(f"{self._name} counts, so it needs a whole number, not {limit!r}")


class StepsLimit(CountLimit):
    """Forbids once this many steps were taken."""

    stop_reason = StopReason.STEPS_LIMIT_REACHED

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used = len(state.steps) if self._of_session else state.execution.step_count
        return self._compare(state, used, f"{used:,} of {self._text} steps used")

    def share(self, granted: Budget) -> int:
        return granted.steps


class TokenUsageLimit(CountLimit):
    """Forbids once this many tokens were used, input and output together."""

    stop_reason = StopReason.TOKEN_LIMIT_REACHED

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used = (state.usage if self._of_session else state.execution.usage).total
        return self._compare(state, used, f"{used:,} of {self._text} tokens used")

    def share(self, granted: Budget) -> int:
        return granted.tokens


class TimeLimit(Limit):
    """A limit on seconds.

    Criteria read no clock: the times are recorded in the state, so a recorded run is judged the same way
    tomorrow.
    """

    stop_reason = StopReason.TIME_LIMIT_REACHED

    def __init__(self, limit: float, *, scope: Scope = "execution") -> None:
        super().__init__(limit, scope=scope)
        self._text = f"{limit:g}"
        self._duration = timedelta(seconds=limit)

    def share(self, granted: Budget) -> float:
        return granted.seconds


class ExecutionTimeLimit(TimeLimit):
    """Forbids this many seconds after the query, or after it was last resumed."""

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used = state.execution.leg_seconds
        if self._of_session:
            # A clock that was set back has not used anything.
            updated = state.execution.updated_at or state.state_info.started_at
            used = max(0.0, (updated - state.state_info.started_at).total_seconds())
        return self._compare(state, used, f"{used:.1f} of {self._text} s used")

    def deadline(self, state: AgentState, started_at: datetime, counted: float) -> datetime:
        execution = state.execution
        started = execution.leg_started_at or execution.started_at
        if self._of_session:
            started = state.state_info.started_at
        if execution.granted is None:
            return started + self._duration
        return started + timedelta(seconds=self.limit + self.granted(state))


class CumulativeExecutionTimeLimit(TimeLimit):
    """Forbids after this many seconds of work; pauses and backoff do not count."""

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used = self._active_seconds(state)
        return self._compare(state, used, f"{used:.1f} of {self._text} s of work used")

    def deadline(self, state: AgentState, started_at: datetime, counted: float) -> datetime:
        left = self.limit + self.granted(state) - self._active_seconds(state)
        return started_at + timedelta(seconds=counted + left)

    def _active_seconds(self, state: AgentState) -> float:
        if self._of_session:
            return state.state_info.cumulative_execution_seconds
        return state.execution.active_seconds
