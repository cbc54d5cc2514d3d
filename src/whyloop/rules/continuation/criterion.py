"""What a criterion is, and how anything that decides is asked for its reasons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from inspect import iscoroutinefunction
from pathlib import PurePath
from typing import ClassVar, Protocol, runtime_checkable

from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.rules.classify import words_of
from whyloop.values import plain
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation as Evaluation, StopReason
from whyloop.values.state import AgentState
from whyloop.values.text import clean, shortened

Answer = Evaluation | ContinuationDecision | bool


@runtime_checkable
class CanDecideToContinue(Protocol):
    def decide(self, state: AgentState) -> ContinuationDecision: ...


@runtime_checkable
class CanExplainContinuation(Protocol):
    def explain(self, state: AgentState) -> Evaluation: ...


CriterionLike = CanDecideToContinue | CanExplainContinuation | Callable[[AgentState], Answer]


class Criterion(ABC):
    """The base of the criteria that ship: they explain, and decide by what they explain."""

    acts: ClassVar[str | None] = None
    """The field that an evaluation of this criterion alone may set: `handling` or `pauses`."""

    @abstractmethod
    def explain(self, state: AgentState) -> Evaluation:
        """The decision about this state, with its reason and its numbers."""

    def decide(self, state: AgentState) -> ContinuationDecision:
        return self.explain(state).decision

    def deadline(self, state: AgentState, started_at: datetime, counted: float) -> datetime | None:
        """Return when a step that runs on would make this criterion forbid continuing; None is never.

        `counted` are the active seconds since the start of the step that the state has counted already.
        """
        return None


class FunctionCriterion(Criterion):
    """A criterion made from a function that returns an evaluation, a decision, or whether to go on."""

    def __init__(self, function: Callable[[AgentState], Answer], name: str | None = None) -> None:
        self.name = name or _name_of_function(function)
        self._function = function

    def named(self, name: str) -> FunctionCriterion:
        """Return the same criterion under another name."""
        return FunctionCriterion(self._function, name)

    def explain(self, state: AgentState) -> Evaluation:
        answer: Answer | str = self._function(state)
        if isinstance(answer, Evaluation):
            return _checked(answer)
        if isinstance(answer, bool):
            answer = _ALLOW if answer else _FORBID
        if not isinstance(answer, str):
            raise TypeError(
                f"{self.name} returned {shortened(repr(answer), 80)}: "
                "return True or False, a ContinuationDecision or a ContinuationEvaluation"
            )
        return Evaluation.from_decision(self.name, ContinuationDecision(answer))


_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION


def as_criterion(candidate: CriterionLike) -> CanDecideToContinue | CanExplainContinuation:
    """The candidate itself, or a criterion around it if it is a plain function."""
    if isinstance(candidate, type):
        raise ConfigurationError(
            f"{candidate.__name__} is a class: pass an instance, {candidate.__name__}(…)"
        )
    for asked_for in ("explain", "decide", "__call__"):
        if iscoroutinefunction(getattr(candidate, asked_for, None)) or iscoroutinefunction(candidate):
            raise ConfigurationError(
                f"{candidate!r} is async, and a criterion answers at once from the state: "
                "put what it needs to know into a tool's result or the session's metadata"
            )
    if isinstance(candidate, CanExplainContinuation | CanDecideToContinue):
        return candidate
    if callable(candidate):
        return FunctionCriterion(candidate)
    raise ConfigurationError(
        f"{candidate!r} is no criterion: it has no explain(state) and no decide(state), nor is it a function"
    )


def _name_of_function(function: Callable[[AgentState], Answer]) -> str:
    """Return the function's name; a lambda goes by the place where it was written."""
    name = str(getattr(function, "__name__", type(function).__name__))
    code = getattr(function, "__code__", None)
    if name != "<lambda>" or code is None:
        return name
    return f"lambda ({PurePath(code.co_filename).name}:{code.co_firstlineno})"


def told_apart(
    criteria: Iterable[CanDecideToContinue | CanExplainContinuation],
) -> tuple[CanDecideToContinue | CanExplainContinuation, ...]:
    """Return the criteria with functions of the same name numbered: "lambda (app.py:7) 2"."""
    taken: set[str] = set()
    apart: list[CanDecideToContinue | CanExplainContinuation] = []
    for criterion in criteria:
        own = name = name_of(criterion)
        number = 1
        while isinstance(criterion, FunctionCriterion) and name in taken:
            number += 1
            name = f"{own} {number}"
        taken.add(name)
        if isinstance(criterion, FunctionCriterion) and name != own:
            apart.append(criterion.named(name))
        else:
            apart.append(criterion)
    return tuple(apart)


def name_of(criterion: object) -> str:
    return criterion.name if isinstance(criterion, FunctionCriterion) else type(criterion).__name__


def asked(criterion: CanDecideToContinue | CanExplainContinuation) -> Callable[[AgentState], Evaluation]:
    """The function that gets an evaluation out of the criterion: `explain` if it has one, else `decide`."""
    if isinstance(criterion, CanExplainContinuation):
        explain = criterion.explain
        ours = type(criterion).__module__.startswith("whyloop.")
        acts = criterion.acts if isinstance(criterion, Criterion) else None
        return explain if ours else lambda state: _checked(explain(state), acts)
    name, decide = name_of(criterion), criterion.decide
    return lambda state: Evaluation.from_decision(name, ContinuationDecision(decide(state)))


def _checked(answer: object, acts: str | None = None) -> Evaluation:
    """What somebody else's criterion answered, if that is an evaluation."""
    if not isinstance(answer, Evaluation):
        raise TypeError(f"it answered {shortened(repr(answer), 80)} instead of a ContinuationEvaluation")
    for field, kind in (("criterion", str), ("reason", str), ("context", Mapping)):
        if not isinstance(getattr(answer, field), kind):
            said = shortened(repr(getattr(answer, field)), 80)
            raise TypeError(f"its {field} is {said} instead of a {kind.__name__.lower()}")
    if (answer.handling is not None and acts != "handling") or (answer.pauses and acts != "pauses"):
        raise TypeError("handling is set by the error policy alone, and pauses by ApprovalRequired")
    if not isinstance(answer.feedback, str | None) or not isinstance(answer.exhausted, bool):
        raise TypeError("its feedback is not text, or its exhausted is neither True nor False")
    return replace(
        answer,
        # Exactly the members, since they are compared by identity.
        decision=ContinuationDecision(answer.decision),
        stop_reason=None if answer.stop_reason is None else StopReason(answer.stop_reason),
        # Exactly what is stored, since an evaluation that is read back is the same one.
        reason=clean(answer.reason),
        context=plain.encode(dict(answer.context)) if answer.context else {},
        feedback=answer.feedback and clean(answer.feedback),
    )


def could_not_be_evaluated(name: str, error: BaseException) -> Evaluation:
    """The evaluation of a criterion that raised."""
    reason = f"{name} could not be evaluated: {words_of(error)}"
    return Evaluation(name, _FORBID, reason, stop_reason=StopReason.ERROR_FORBADE)
