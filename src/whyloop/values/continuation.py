"""Decisions, the outcome that they resolve to, and the budgets that people grant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import force_setattr

from whyloop.errors import ConfigurationError
from whyloop.values import encoding
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.price import LARGEST_AMOUNT, as_dollars

if TYPE_CHECKING:
    from whyloop.values.price import Dollars
else:
    Dollars = Decimal | float  # A decoder cannot tell a Decimal from a str, and reads text as a Decimal.


class ContinuationDecision(StrEnum):
    """One rule's decision, in order of precedence.

    Guards forbid or allow; work drivers request or stop.
    """

    precedence: int
    """The rank of the decision: the lowest one wins."""
    continues: bool
    """True if a run with this decision takes another step. Read five times a step, so an attribute."""

    FORBID_CONTINUATION = "forbid"
    """The run must not continue."""
    REQUEST_CONTINUATION = "request"
    """There is work left to do."""
    ALLOW_STOP = "stop"
    """The work is done."""
    ALLOW_CONTINUATION = "allow"
    """Another step is possible."""

    @property
    def default_reason(self) -> str:
        """The default reason after a criterion's name: "forbade continuation"."""
        return _DEFAULT_REASONS[self]


for _precedence, _decision in enumerate(ContinuationDecision):
    _decision.precedence = _precedence
    _decision.continues = _decision.value in ("request", "allow")

_FORBID = ContinuationDecision.FORBID_CONTINUATION
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION
_STOP = ContinuationDecision.ALLOW_STOP
_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_decision_of = attrgetter("decision")
_DEFAULT_REASONS = {
    _FORBID: "forbade continuation",
    _REQUEST: "requested continuation",
    _STOP: "allows stop",
    _ALLOW: "permits continuation",
}


class StopReason(StrEnum):
    """Why a run ended: nine values that user interfaces rely on."""

    COMPLETED = "completed"
    """The model answered and asked for nothing more."""
    STEPS_LIMIT_REACHED = "steps_limit"
    """A limit on steps was reached."""
    TOKEN_LIMIT_REACHED = "token_limit"
    """A limit on tokens was reached."""
    TIME_LIMIT_REACHED = "time_limit"
    """A limit on time was reached."""
    RETRY_LIMIT_REACHED = "retry_limit"
    """An error remained after all retries."""
    ERROR_FORBADE = "error"
    """The error policy stopped the run after an error."""
    FINISH_REASON_RECEIVED = "finish_reason"
    """The answer was truncated or filtered."""
    GUARD_FORBADE = "guard"
    """Another rule forbade continuing."""
    USER_REQUESTED = "user_requested"
    """A stop was requested."""


def criterion_name(criterion: object) -> str:
    """Return the name of a criterion in a trace: that of its class."""
    if isinstance(criterion, str):
        return criterion
    return criterion.__name__ if isinstance(criterion, type) else type(criterion).__name__


class ContinuationEvaluation(Struct, frozen=True, gc=False, omit_defaults=True):
    """One criterion's decision about a step, with its reason and its numbers.

    The loop acts on fields only. `context` is for display: no code depends on its content.
    """

    criterion: str
    """The class name of the criterion."""
    decision: ContinuationDecision
    """The decision of the criterion."""
    reason: str
    """The reason, for a person to read."""
    context: Mapping[str, Any] = {}
    """The numbers behind the reason, for display."""
    stop_reason: StopReason | None = None
    """The stop reason of the run if this evaluation ends it."""
    handling: ErrorHandlingDecision | None = None
    """The handling of a failure in this step; only the error policy sets it."""
    feedback: str | None = None
    """A message for the model, sent if the run continues."""
    exhausted: bool = False
    """True if a limit has nothing left for another step."""
    pauses: bool = False
    """True if the run waits for a person; only `ApprovalRequired` sets it."""

    @classmethod
    def from_decision(cls, criterion: object, decision: ContinuationDecision) -> ContinuationEvaluation:
        """Return an evaluation with a default reason, for a criterion that gives none.

        Args:
            criterion: The criterion, its class or its name.
            decision: Its decision.
        """
        name = criterion_name(criterion)
        return cls(name, decision, f"{name} {decision.default_reason}")

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as plain data, as in the `to_dict` of its outcome."""
        document: dict[str, Any] = encoding.encode(self)
        return document


class ContinuationOutcome(Struct, frozen=True, gc=False, omit_defaults=True):
    """Every criterion's evaluation of one step, resolved into continue or stop.

    An outcome that does not continue and has no stop reason is a pause.
    """

    decision: ContinuationDecision
    """The decision of the winning tier."""
    resolved_by: str
    """The name of the first criterion of the winning tier."""
    stop_reason: StopReason | None = None
    """Why the run ended; None if it continues or pauses."""
    evaluations: tuple[ContinuationEvaluation, ...] = ()
    """The evaluations of all criteria, in order."""
    partial: bool = False
    """True if it was recorded without the agent: only the criterion that decided was evaluated."""

    @classmethod
    def from_evaluations(
        cls,
        evaluations: Iterable[ContinuationEvaluation],
        *,
        interrupted: bool = False,
        wrap_up: str | None = None,
    ) -> ContinuationOutcome:
        """Return the outcome of a step: the strongest decision wins, in any order.

        The order of precedence is forbid, request, stop, allow; the first criterion with the winning decision
        is named. There are two refinements. A run with nothing left to do ends naturally even if a limit is
        exhausted, unless the step was interrupted or is a wrap-up. If only questions to a person forbid, the
        run pauses.

        Args:
            evaluations: The evaluations of all criteria, in order.
            interrupted: True if the step was cut off. Default: False.
            wrap_up: The limit that ended the run before its wrap-up; it decides again. Default: none.
        """
        given = tuple(evaluations)
        decisions = tuple(map(_decision_of, given))
        forbids = [evaluation for evaluation in given if evaluation.decision is _FORBID]
        if wrap_up is not None and (limits := [e for e in forbids if e.exhausted]):
            forbids = [e for e in limits if e.criterion == wrap_up] or limits
        ends_naturally = (
            wrap_up is None
            and _STOP in decisions
            and _REQUEST not in decisions
            and not interrupted
            and all(evaluation.exhausted for evaluation in forbids)
        )
        if forbids and not ends_naturally:
            # Any other forbid beats a pause.
            forbid = next((evaluation for evaluation in forbids if not evaluation.pauses), forbids[0])
            reason = None if forbid.pauses else forbid.stop_reason or StopReason.GUARD_FORBADE
            return cls(_FORBID, forbid.criterion, reason, given)
        if _REQUEST in decisions:
            return cls(_REQUEST, given[decisions.index(_REQUEST)].criterion, None, given)
        if _STOP in decisions:
            stop = given[decisions.index(_STOP)]
            return cls(_STOP, stop.criterion, stop.stop_reason or StopReason.COMPLETED, given)
        if _ALLOW in decisions:
            return cls(_ALLOW, given[decisions.index(_ALLOW)].criterion, None, given)
        return cls(_STOP, "ContinuationCriteria", StopReason.COMPLETED)

    @property
    def should_continue(self) -> bool:
        """True if the run takes another step."""
        return self.decision.continues

    @property
    def pauses(self) -> bool:
        """True if the run waits for a person."""
        return self.stop_reason is None and not self.decision.continues

    @property
    def resolving_evaluation(self) -> ContinuationEvaluation | None:
        """The evaluation that decided; None if there was no criterion."""
        return self.evaluation_for(self.resolved_by)

    @property
    def reason(self) -> str:
        """The reason that the deciding criterion gave; empty if there was no criterion."""
        evaluation = self.resolving_evaluation
        return evaluation.reason if evaluation else ""

    @property
    def policy_evaluation(self) -> ContinuationEvaluation | None:
        """The error policy's evaluation of a failure in this step; None if nothing failed."""
        for evaluation in self.evaluations:
            if evaluation.handling is not None:
                return evaluation
        return None

    @property
    def handling(self) -> ErrorHandlingDecision | None:
        """The handling of a failure in this step; None if nothing failed."""
        evaluation = self.policy_evaluation
        return evaluation.handling if evaluation else None

    def evaluation_for(self, criterion: object) -> ContinuationEvaluation | None:
        """Return a criterion's evaluation; if several have its name, the deciding one.

        Args:
            criterion: The criterion, its class or its name.
        """
        name = criterion_name(criterion)
        named = [evaluation for evaluation in self.evaluations if evaluation.criterion == name]
        return next((e for e in named if e.decision is self.decision), named[0] if named else None)

    def forbidding_criterion(self) -> str | None:
        """Return the name of the first criterion that forbade continuing."""
        return next((e.criterion for e in self.evaluations if e.decision is _FORBID), None)

    def explain(self) -> str:
        """Return why the run continued or stopped after this step, as text for people."""
        from whyloop.values.explanation_text import text_of_outcome

        return text_of_outcome(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        document: dict[str, Any] = encoding.encode(self)
        return {"should_continue": self.should_continue, "stop_reason": None, "evaluations": [], **document}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ContinuationOutcome:
        """Return the outcome that `to_dict` wrote.

        Args:
            data: The plain data that `to_dict` returned.
        """
        return encoding.decode(data, cls)


# The maximum of a limit or a budget. In seconds it is three centuries, which can still be added to a date.
LARGEST = LARGEST_AMOUNT
_NO_MONEY = Decimal(0)


class Budget(Struct, frozen=True, gc=False, omit_defaults=True):
    """Steps, tokens, seconds and money on top of the limits, for one execution.

    The budget raises the limits; the counters stay as they are. The trace shows the grant.
    """

    steps: int = 0
    """More steps."""
    tokens: int = 0
    """More tokens."""
    seconds: float = 0.0
    """More seconds."""
    usd: Dollars = _NO_MONEY
    """More US dollars: a number, or a decimal number as text; kept as a Decimal."""

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "seconds"):
            value = getattr(self, name)
            whole = isinstance(value, int) or name == "seconds"
            if isinstance(value, bool) or not isinstance(value, int | float) or not whole:
                raise ConfigurationError(f"invalid budget {name}={value!r}: use a number")
            if not 0 <= value <= LARGEST:
                raise ConfigurationError(f"invalid budget {name}={value!r}: use zero to {LARGEST:,}")
        force_setattr(self, "seconds", float(self.seconds))  # As it is read back.
        if self.usd is not _NO_MONEY:
            # The encoder omits exactly the default.
            force_setattr(self, "usd", as_dollars(self.usd, "budget usd=") or _NO_MONEY)

    def __repr__(self) -> str:
        """Return the budget as it is written: Budget(steps=10)."""
        given = {name: amount for name in self.__struct_fields__ if (amount := getattr(self, name))}
        texts = [f"{name}={f'{n:g}' if isinstance(n, float) else n}" for name, n in given.items()]
        return f"Budget({', '.join(texts)})"

    def __add__(self, other: Budget) -> Budget:
        return Budget(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            Decimal(self.usd) + Decimal(other.usd),
        )
