"""Limits on what an execution, or by name the whole session, may use up."""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import ClassVar, Literal

from whyloop.errors import ConfigurationError
from whyloop.rules.continuation.criterion import Criterion
from whyloop.values.budget import Budget
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.state import AgentState

Scope = Literal["execution", "session"]

# As seconds it is three centuries, which can still be added to a date.
LARGEST = 10**10

_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION


class Limit(Criterion):
    """Two numbers compared: what is used and how much there is. Forbids once nothing is left."""

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

    @abstractmethod
    def share(self, granted: Budget) -> float:
        """How much of a grant is for what this limit counts."""

    def granted(self, state: AgentState) -> float:
        """How much a person has allowed on top of the limit."""
        granted = state.execution.granted
        return 0 if granted is None else self.share(granted)

    def _compare(self, state: AgentState, used: float, words: str) -> ContinuationEvaluation:
        """The evaluation that follows from how much is used."""
        limit = self.limit
        if self._of_session:
            words += " in this session"
        if state.execution.granted is not None and (more := self.granted(state)):
            limit += more
            words += f", {more:g} more were granted"
        if used < limit:
            context = {"used": used, "limit": limit, "remaining": limit - used}
            return ContinuationEvaluation(self._name, _ALLOW, words, context)
        context = {"used": used, "limit": limit, "remaining": 0}
        return ContinuationEvaluation(
            self._name, _FORBID, f"Limit reached: {words}", context, self.stop_reason, exhausted=True
        )

    def __repr__(self) -> str:
        scope = ', scope="session"' if self._of_session else ""
        return f"{self._name}({self.limit!r}{scope})"


class CountLimit(Limit):
    """A limit on something that is counted."""

    unit: ClassVar[str]

    def __init__(self, limit: int, *, scope: Scope = "execution") -> None:
        super().__init__(limit, scope=scope)
        if not isinstance(limit, int):
            raise ConfigurationError(f"{self._name} counts, so it needs a whole number, not {limit!r}")
        self._words = f"of {limit:,} {self.unit} used"


class StepsLimit(CountLimit):
    """Forbids once this many steps were taken."""

    stop_reason = StopReason.STEPS_LIMIT_REACHED
    unit = "steps"

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used = len(state.steps) if self._of_session else state.execution.step_count
        return self._compare(state, used, f"{used:,} {self._words}")

    def share(self, granted: Budget) -> int:
        return granted.steps


class TokenUsageLimit(CountLimit):
    """Forbids once this many tokens were used, read and written together."""

    stop_reason = StopReason.TOKEN_LIMIT_REACHED
    unit = "tokens"

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used = (state.usage if self._of_session else state.execution.usage).total
        return self._compare(state, used, f"{used:,} {self._words}")

    def share(self, granted: Budget) -> int:
        return granted.tokens
