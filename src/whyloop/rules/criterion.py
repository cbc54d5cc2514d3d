"""Criteria: the rules that decide after each step, and how to write one.

A criterion looks at the state after a step and gives one decision. It is any of these:

- a function of the state that returns True to allow continuing, False to forbid it, a `ContinuationDecision`
  or a `ContinuationEvaluation`;
- an object with `explain(state)`, which returns a `ContinuationEvaluation`: the decision with its reason;
- an object with `decide(state)`, which returns a `ContinuationDecision`.

Criteria are pure: they read the state and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from inspect import iscoroutinefunction
from pathlib import PurePath
from typing import ClassVar, Protocol, runtime_checkable

from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.rules.classification import error_text
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation as Evaluation, StopReason
from whyloop.values.state import AgentState
from whyloop.values.text import clean, shortened

CriterionAnswer = Evaluation | ContinuationDecision | bool

_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION


@runtime_checkable
class CanDecideToContinue(Protocol):
    """A criterion that decides."""

    def decide(self, state: AgentState) -> ContinuationDecision:
        """Return the decision about this state."""


@runtime_checkable
class CanExplainContinuation(Protocol):
    """A criterion that decides and says why."""

    def explain(self, state: AgentState) -> Evaluation:
        """Return the decision about this state, with its reason and its numbers."""


CriterionObject = CanDecideToContinue | CanExplainContinuation
CriterionLike = CriterionObject | Callable[[AgentState], CriterionAnswer]


class Criterion(ABC):
    """The base class of the built-in criteria, which decide by what they explain."""

    acts: ClassVar[str | None] = None
    """The field that only this criterion may set in an evaluation: `handling` or `pauses`."""

    @abstractmethod
    def explain(self, state: AgentState) -> Evaluation:
        """Return the decision about this state, with its reason and its numbers."""

    def decide(self, state: AgentState) -> ContinuationDecision:
        """Return the decision about this state."""
        return self.explain(state).decision

    def deadline(self, state: AgentState, started_at: datetime, counted: float) -> datetime | None:
        """Return when a running step would make this criterion forbid; None if never.

        `counted` are the active seconds since the start of the step that the state has already counted.

        Args:
            started_at: The time at which the step began.
            counted: The active seconds since then that the state has already counted.
        """
        return None


class FunctionCriterion(Criterion):
    """A criterion made from a function: of an evaluation, a decision, or a bool."""

    def __init__(self, function: Callable[[AgentState], CriterionAnswer], name: str | None = None) -> None:
        self.name = name or _function_name(function)
        self._function = function

    def named(self, name: str) -> FunctionCriterion:
        """Return the same criterion under another name."""
        return FunctionCriterion(self._function, name)

    def explain(self, state: AgentState) -> Evaluation:
        answer: CriterionAnswer | str = self._function(state)
        if isinstance(answer, Evaluation):
            return _validated(answer)
        if isinstance(answer, bool):
            answer = _ALLOW if answer else _FORBID
        if not isinstance(answer, str):
            raise TypeError(
                f"{self.name} returned {shortened(repr(answer), 80)}: "
                "return True or False, a ContinuationDecision or a ContinuationEvaluation"
            )
        return Evaluation.from_decision(self.name, ContinuationDecision(answer))


def _function_name(function: Callable[[AgentState], CriterionAnswer]) -> str:
    """Return the function's name; a lambda is named after its file and line."""
    name = str(getattr(function, "__name__", type(function).__name__))
    code = getattr(function, "__code__", None)
    if name != "<lambda>" or code is None:
        return name
    return f"lambda ({PurePath(code.co_filename).name}:{code.co_firstlineno})"


def as_criterion(candidate: CriterionLike) -> CriterionObject:
    """Return the candidate itself, or a criterion around it if it is a function."""
    if isinstance(candidate, Criterion) and _is_sync(type(candidate)):
        return candidate
    if isinstance(candidate, type):
        raise ConfigurationError(
            f"{candidate.__name__} is a class: pass an instance, {candidate.__name__}(…)"
        )
    for method in ("explain", "decide", "__call__"):
        if iscoroutinefunction(getattr(candidate, method, None)) or iscoroutinefunction(candidate):
            raise ConfigurationError(
                f"invalid criterion {candidate!r}: use a sync function of the state. "
                "Put other facts into a tool's result or the session's metadata"
            )
    if isinstance(candidate, CanExplainContinuation | CanDecideToContinue):
        return candidate
    if callable(candidate):
        return FunctionCriterion(candidate)
    raise ConfigurationError(
        f"invalid criterion {candidate!r}: use a function, or an object with explain(state) or decide(state)"
    )


@cache  # An agent has about eight of them, of few classes: once a class, and not once an agent.
def _is_sync(kind: type[Criterion]) -> bool:
    methods = (getattr(kind, name, None) for name in ("explain", "decide", "__call__"))
    return not any(map(iscoroutinefunction, methods))


def criterion_name(criterion: object) -> str:
    """Return the name of a criterion in evaluations: its class, or its function."""
    return criterion.name if isinstance(criterion, FunctionCriterion) else type(criterion).__name__


def with_distinct_names(criteria: Iterable[CriterionObject]) -> tuple[CriterionObject, ...]:
    """Return the criteria, numbering functions of one name: "lambda (app.py:7) 2"."""
    given = tuple(criteria)
    if not any(isinstance(criterion, FunctionCriterion) for criterion in given):
        return given
    taken: set[str] = set()
    distinct: list[CriterionObject] = []
    for criterion in given:
        own = name = criterion_name(criterion)
        number = 1
        while isinstance(criterion, FunctionCriterion) and name in taken:
            number += 1
            name = f"{own} {number}"
        taken.add(name)
        if isinstance(criterion, FunctionCriterion) and name != own:
            distinct.append(criterion.named(name))
        else:
            distinct.append(criterion)
    return tuple(distinct)


def explain_function(criterion: CriterionObject) -> Callable[[AgentState], Evaluation]:
    """Return the function that evaluates a criterion: by `explain`, else by `decide`."""
    if isinstance(criterion, Criterion | CanExplainContinuation):
        explain = criterion.explain
        ours = type(criterion).__module__.startswith("whyloop.")
        acts = criterion.acts if isinstance(criterion, Criterion) else None
        return explain if ours else lambda state: _validated(explain(state), acts)
    name, decide = criterion_name(criterion), criterion.decide
    return lambda state: Evaluation.from_decision(name, ContinuationDecision(decide(state)))


def _validated(answer: object, acts: str | None = None) -> Evaluation:
    """Return a user's evaluation in exactly the form that is stored; refuse another."""
    if not isinstance(answer, Evaluation):
        raise TypeError(f"it returned {shortened(repr(answer), 80)} instead of a ContinuationEvaluation")
    for field, kind in (("criterion", str), ("reason", str), ("context", Mapping)):
        value = getattr(answer, field)
        if not isinstance(value, kind):
            given = shortened(repr(value), 80)
            raise TypeError(f"its {field} is {given} instead of a {kind.__name__.lower()}")
    if (answer.handling is not None and acts != "handling") or (answer.pauses and acts != "pauses"):
        raise TypeError("handling is set by the error policy alone, and pauses by ApprovalRequired")
    if not isinstance(answer.feedback, str | None) or not isinstance(answer.exhausted, bool):
        raise TypeError("its feedback is not text, or its exhausted is neither True nor False")
    return replace(
        answer,
        # Members are compared by identity, so the evaluation must have the members themselves.
        decision=ContinuationDecision(answer.decision),
        stop_reason=None if answer.stop_reason is None else StopReason(answer.stop_reason),
        # The evaluation has exactly what is stored, so that it equals the one that is read back.
        reason=clean(answer.reason),
        context=encoding.encode(dict(answer.context)) if answer.context else {},
        feedback=answer.feedback and clean(answer.feedback),
    )


def failed_evaluation(name: str, error: BaseException) -> Evaluation:
    """Return the evaluation of a criterion that raised."""
    reason = f"{name} could not be evaluated: {error_text(error)}"
    return Evaluation(name, _FORBID, reason, stop_reason=StopReason.ERROR_FORBADE)
