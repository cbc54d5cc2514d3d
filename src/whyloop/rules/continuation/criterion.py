"""What a criterion is, and how anything that decides is asked for its reasons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import Protocol, runtime_checkable

from whyloop.errors import ConfigurationError
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.state import AgentState
from whyloop.values.text import shortened

Answer = ContinuationEvaluation | ContinuationDecision | bool
Explain = Callable[[AgentState], ContinuationEvaluation]


@runtime_checkable
class CanDecideToContinue(Protocol):
    def decide(self, state: AgentState) -> ContinuationDecision: ...


@runtime_checkable
class CanExplainContinuation(Protocol):
    def explain(self, state: AgentState) -> ContinuationEvaluation: ...


CriterionLike = CanDecideToContinue | CanExplainContinuation | Callable[[AgentState], Answer]


class Criterion(ABC):
    """The base of the criteria that ship: they explain, and decide by what they explain."""

    @abstractmethod
    def explain(self, state: AgentState) -> ContinuationEvaluation:
        """The decision about this state, with its reason and its numbers."""

    def decide(self, state: AgentState) -> ContinuationDecision:
        return self.explain(state).decision

    def seconds_left(self, state: AgentState, now: datetime) -> float | None:
        """How long the next step may take before this criterion forbids to go on; None is for ever."""
        return None


class FunctionCriterion(Criterion):
    """A criterion made from a function that returns an evaluation, a decision, or whether to go on."""

    def __init__(self, function: Callable[[AgentState], Answer]) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        self.name = "when" if name == "<lambda>" else name
        self._function = function

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        answer: Answer | str = self._function(state)
        if isinstance(answer, ContinuationEvaluation):
            return answer
        if isinstance(answer, bool):
            answer = _ALLOW if answer else _FORBID
        return ContinuationEvaluation.from_decision(self.name, ContinuationDecision(answer))


_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION


def as_criterion(candidate: CriterionLike) -> CanDecideToContinue | CanExplainContinuation:
    """The candidate itself, or a criterion around it if it is a plain function."""
    if isinstance(candidate, type):
        raise ConfigurationError(
            f"{candidate.__name__} is a class: pass an instance, {candidate.__name__}(…)"
        )
    if isinstance(candidate, CanExplainContinuation | CanDecideToContinue):
        return candidate
    if callable(candidate):
        return FunctionCriterion(candidate)
    raise ConfigurationError(
        f"{candidate!r} is no criterion: it has no explain(state) and no decide(state), nor is it a function"
    )


def name_of(criterion: object) -> str:
    return criterion.name if isinstance(criterion, FunctionCriterion) else type(criterion).__name__


def explanation_of(criterion: CanDecideToContinue | CanExplainContinuation) -> Explain:
    """A function that asks the criterion and never raises: `explain` if it has one, else `decide`."""
    name = name_of(criterion)
    if isinstance(criterion, CanExplainContinuation):
        ask: Callable[[AgentState], object] = criterion.explain
    else:
        decide = criterion.decide

        def ask(state: AgentState) -> object:
            return ContinuationEvaluation.from_decision(name, ContinuationDecision(decide(state)))

    def explain(state: AgentState) -> ContinuationEvaluation:
        try:
            evaluation = ask(state)
            if (
                type(evaluation) is ContinuationEvaluation
                and type(evaluation.decision) is ContinuationDecision
            ):
                return evaluation
            problem = f"it returned {shortened(repr(evaluation), 80)}"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        return ContinuationEvaluation(
            name,
            _FORBID,
            f"{name} could not be evaluated: {problem}",
            stop_reason=StopReason.ERROR_FORBADE,
        )

    return explain
