"""Limits on steps, tokens, time and money, of an execution or of the whole session."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from math import inf
from types import FunctionType
from typing import Any, ClassVar, Literal, NamedTuple

from whyloop.errors import ConfigurationError
from whyloop.rules.criterion import Criterion
from whyloop.values.continuation import (
    LARGEST,
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    StopReason,
)
from whyloop.values.price import Dollars, as_dollars, dollars
from whyloop.values.state import AgentState
from whyloop.values.step import OpenStep, Step
from whyloop.values.text import shortened

Scope = Literal["execution", "session"]

_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION


class Limit(Criterion):
    """A limit compares two numbers, used and allowed, and forbids once nothing is left.

    Args:
        limit: The number at which the limit is reached.
        scope: "execution" counts the current query alone, "session" the whole conversation. Default:
            "execution".
    """

    stop_reason: ClassVar[StopReason]
    """The stop reason of a run that this limit ends."""
    noun: ClassVar[str] = ""
    """The name of the amount that it counts, for the model; if empty, the name of the class."""
    _unit: ClassVar[str] = ""
    # The formats of the limit and of the amount used in a reason.
    _style: ClassVar[str] = ""
    _used_style: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # A subclass may be generic, or have options of its own.
        # Python specializes code for one type of `self`, so each limit has its own copy: 0.4 µs a step.
        code = Limit.explain.__code__
        if getattr(cls.explain, "__code__", None) == code:
            copy = FunctionType(code.replace(), Limit.explain.__globals__, "explain")
            cls.explain = copy  # type: ignore[method-assign]

    def __init__(self, limit: float, *, scope: Scope = "execution") -> None:
        name = type(self).__name__
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < inf:
            raise ConfigurationError(f"invalid {name} {limit!r}: use a number greater than zero")
        if limit > LARGEST:
            raise ConfigurationError(f"invalid {name} {limit!r}: leave out a limit that is never reached")
        if scope not in ("execution", "session"):
            raise ConfigurationError(f'invalid scope {scope!r} of {name}: use "execution" or "session"')
        self.limit = limit
        """The number at which the limit is reached."""
        self.scope: Scope = scope
        """The extent of the count: the current execution or the whole session."""
        self._name = name
        self._format = type(self)._used_style
        self._of_session = scope == "session"
        # The end of every reason, formatted once: that saves 0.3 µs a step.
        self._of_limit = f"of {limit:{self._style}} {self._unit} used"
        if self._of_session:
            self._of_limit += " in this session"

    @abstractmethod
    def used(self, state: AgentState) -> float:
        """Return the amount used of what this limit counts.

        Args:
            state: The state.
        """

    @abstractmethod
    def share(self, granted: Budget) -> float:
        """Return the part of a grant that is for this limit.

        Args:
            granted: The grant of a person.
        """

    def granted(self, state: AgentState) -> float:
        """Return how much a person has allowed on top of the limit."""
        granted = state.execution.granted
        return 0 if granted is None else self.share(granted)

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used, limit = self.used(state), self.limit
        text = f"{used:{self._format}} {self._of_limit}"
        execution = state.execution
        if execution.untimed or execution.granted is not None or not state.usage.reported:
            text = self._with_gap(state, used, text)
            if more := self.granted(state):
                limit += more
                text += f", {more:g} more were granted"
        if used < limit:
            context = {"used": used, "limit": limit, "remaining": limit - used}
            return ContinuationEvaluation(self._name, _ALLOW, text, context)
        context = {"used": used, "limit": limit, "remaining": 0}
        return ContinuationEvaluation(
            self._name, _FORBID, f"Limit reached: {text}", context, self.stop_reason, exhausted=True
        )

    def _with_gap(self, state: AgentState, used: float, text: str) -> str:
        """Return the text about the amount used, including what is unknown."""
        return text

    def __repr__(self) -> str:
        scope = ', scope="session"' if self._of_session else ""
        return f"{self._name}({self.limit!r}{scope})"


class CountLimit(Limit):
    """A limit on a whole number of things."""

    _style = _used_style = ","

    def __init__(self, limit: int, *, scope: Scope = "execution") -> None:
        super().__init__(limit, scope=scope)
        if not isinstance(limit, int):
            raise ConfigurationError(f"invalid {self._name} {limit!r}: use a whole number")


class StepsLimit(CountLimit):
    """Forbids once this many steps have been taken."""

    stop_reason = StopReason.STEPS_LIMIT_REACHED
    """The stop reason of a run that this limit ends."""
    noun = _unit = "steps"

    def used(self, state: AgentState) -> int:
        return state.step_count if self._of_session else state.execution.step_count

    def share(self, granted: Budget) -> int:
        return granted.steps


class TokenUsageLimit(CountLimit):
    """Forbids once this many tokens have been used, input and output together."""

    stop_reason = StopReason.TOKEN_LIMIT_REACHED
    """The stop reason of a run that this limit ends."""
    noun = _unit = "tokens"

    def used(self, state: AgentState) -> int:
        usage = state.usage if self._of_session else state.execution.usage
        return usage.input + usage.output

    def _with_gap(self, state: AgentState, used: float, text: str) -> str:
        if (state.usage if self._of_session else state.execution.usage).reported:
            return text
        if not used:
            return "unknown: no answer reported its tokens"
        return f"at least {text}: not every answer reported its tokens"

    def share(self, granted: Budget) -> int:
        return granted.tokens


class TimeLimit(Limit):
    """A limit on seconds.

    Criteria read no clock: the times are recorded in the state, so a recorded run is judged the same way
    tomorrow.
    """

    stop_reason = StopReason.TIME_LIMIT_REACHED
    """The stop reason of a run that this limit ends."""
    _unit, _style, _used_style = "s", "g", ".1f"

    def __init__(self, limit: float, *, scope: Scope = "execution") -> None:
        super().__init__(limit, scope=scope)
        self._duration = timedelta(seconds=limit)

    def share(self, granted: Budget) -> float:
        return granted.seconds

    def _with_gap(self, state: AgentState, used: float, text: str) -> str:
        return "unknown: the imported log has no times" if state.execution.untimed else text


class ExecutionTimeLimit(TimeLimit):
    """Forbids once this many seconds have passed since the query or its last resume."""

    noun = "the time"

    def used(self, state: AgentState) -> float:
        execution = state.execution
        if execution.untimed or execution.updated_at is None:
            return 0.0
        seconds = (execution.updated_at - self._started_at(state)).total_seconds()
        return seconds if seconds > 0 else 0.0  # A clock may have been set back.

    def deadline(self, state: AgentState, started_at: datetime, counted: float) -> datetime | None:
        execution = state.execution
        if execution.untimed:
            return None
        started = self._started_at(state)
        if execution.granted is None:
            return started + self._duration
        return started + timedelta(seconds=self.limit + self.granted(state))

    def _started_at(self, state: AgentState) -> datetime:
        """Return when the time began to count."""
        if self._of_session:
            return state.state_info.started_at
        return state.execution.leg_started_at or state.execution.started_at


class CumulativeExecutionTimeLimit(TimeLimit):
    """Forbids once this many seconds of work have passed, without pauses and backoff."""

    noun = "the working time"
    _unit = "s of work"

    def deadline(self, state: AgentState, started_at: datetime, counted: float) -> datetime | None:
        if state.execution.untimed:
            return None
        left = self.limit + self.granted(state) - self.used(state)
        return started_at + timedelta(seconds=counted + left)

    def used(self, state: AgentState) -> float:
        if state.execution.untimed:
            return 0.0
        if self._of_session:
            return state.state_info.cumulative_execution_seconds
        return state.execution.active_seconds


class CostLimit(Limit):
    """Forbids once this much money has been spent, in US dollars.

    It only reads recorded costs, so a recorded run is judged the same way after prices change.

    An unknown cost is not zero. If an answer has no known price, the limit forbids, since it can no longer be
    enforced; with `unknown="allow"` it counts the known costs, which are a lower bound. An answer that was
    cut off before its usage was reported has an unknown cost too, but no price is missing. It never makes the
    limit forbid, or a broken connection would end every run. In both cases the reason says "at least".

    Args:
        usd: The amount at which the limit is reached: a number, or a decimal number as text.
        unknown: "forbid" or "allow". Default: "forbid".
        scope: "execution" counts the current query alone, "session" the whole conversation. Default:
            "execution".
    """

    stop_reason = StopReason.GUARD_FORBADE
    """The stop reason of a run that this limit ends."""
    noun = "the money"

    def __init__(
        self,
        usd: Dollars,
        unknown: Literal["forbid", "allow"] = "forbid",
        *,
        scope: Scope = "execution",
    ) -> None:
        self.usd = as_dollars(usd, "CostLimit ")
        """The money at which the limit is reached."""
        super().__init__(float(self.usd), scope=scope)
        if unknown not in ("forbid", "allow"):
            raise ConfigurationError(f'invalid unknown {unknown!r} of CostLimit: use "forbid" or "allow"')
        self.unknown = unknown
        """Whether an answer without a known price forbids continuing."""

    def share(self, granted: Budget) -> float:
        return float(granted.usd)

    def used(self, state: AgentState) -> float:
        return float(self._spent(state))

    def _spent(self, state: AgentState) -> Decimal:
        """Return the known part of the cost."""
        usage = state.usage if self._of_session else state.execution.usage
        return usage.cost or usage.known_cost or Decimal(0)

    def _gap(self, state: AgentState) -> _Gap | None:
        """Return why some of the cost is unknown; None if all of it is known."""
        usage = state.usage if self._of_session else state.execution.usage
        if not usage.is_unpriced:
            return None
        return _find_gap(state.steps if self._of_session else state.execution_steps, state.open_step)

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        used, gap = self._spent(state), self._gap(state)
        limit, text = self._limit(state, used)
        left = max(limit - used, Decimal(0))
        context = {"used": float(used), "limit": float(limit), "remaining": float(left)}
        if gap is not None:
            text = f"at least {text}: {gap.reason}"
        if used >= limit:
            return ContinuationEvaluation(
                self._name, _FORBID, f"Limit reached: {text}", context, self.stop_reason, exhausted=True
            )
        if gap is not None and gap.price_is_missing and self.unknown == "forbid":
            return ContinuationEvaluation(self._name, _FORBID, gap.reason, context, self.stop_reason)
        return ContinuationEvaluation(self._name, _ALLOW, text, context)

    def _limit(self, state: AgentState, used: Decimal) -> tuple[Decimal, str]:
        """Return the limit including grants, and a text about the amount used."""
        text = f"{dollars(used)} of {dollars(self.usd)} used"
        if self._of_session:
            text += " in this session"
        granted = state.execution.granted
        if granted is None or not granted.usd:
            return self.usd, text
        more = Decimal(granted.usd)
        return self.usd + more, f"{text}, {dollars(more)} more was granted"

    def __repr__(self) -> str:
        options = ', unknown="allow"' if self.unknown == "allow" else ""
        options += ', scope="session"' if self._of_session else ""
        return f"{self._name}({self.usd}{options})"


class _Gap(NamedTuple):
    """Steps without a known cost."""

    reason: str
    """Why the cost of the first of them is unknown."""
    price_is_missing: bool = True
    """False if the only reason is that answers were cut off before their usage was reported."""


def _find_gap(closed: Sequence[Step], opened: OpenStep | None) -> _Gap:
    """Return why the cost of these steps is unknown."""
    cut_off: Step | OpenStep | None = None
    unpriced: Step | OpenStep | None = None
    steps: list[Step | OpenStep] = [*closed, *([opened] if opened else [])]
    for step in steps:
        if step.usage.is_unpriced and step.finish_reason is None:
            cut_off = cut_off or step
        elif step.usage.is_unpriced:
            unpriced = unpriced or step
    if unpriced is None and cut_off is not None:
        failure = cut_off.model_failure if isinstance(cut_off, Step) else cut_off.failure
        if cut_off.interrupted is None and failure is None:  # An imported log does not contain it.
            return _Gap(f"the usage of step {cut_off.number} is unknown", False)
        return _Gap(f"step {cut_off.number} was cut off before it reported its usage", False)
    if unpriced is None:  # A slim snapshot omits steps.
        return _Gap("no price for a model of an earlier step: pass prices=…")
    named = unpriced.source.model if unpriced.source else None
    model = f"model {shortened(named, 64)}" if named else f"the model of step {unpriced.number}"
    if not unpriced.usage.reported:
        return _Gap(f"{model} reported no usage, so its cost is unknown")
    return _Gap(f"no price for {model}: pass prices=…")
