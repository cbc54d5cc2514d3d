"""All the criteria of an agent, asked together."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from whyloop.rules.continuation.criterion import (
    Answer,
    CanDecideToContinue,
    CanExplainContinuation,
    Criterion,
    CriterionLike,
    FunctionCriterion,
    as_criterion,
    explanation_of,
)
from whyloop.rules.continuation.resolve import resolve
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome
from whyloop.values.state import AgentState


class ContinuationCriteria:
    """An ordered set of criteria; every one of them is asked about every step."""

    def __init__(self, *criteria: CriterionLike) -> None:
        self.criteria: tuple[CanDecideToContinue | CanExplainContinuation, ...] = tuple(
            as_criterion(criterion) for criterion in criteria
        )
        self._explanations = tuple(explanation_of(criterion) for criterion in self.criteria)
        self._timed = tuple(
            criterion
            for criterion in self.criteria
            if isinstance(criterion, Criterion) and type(criterion).seconds_left is not Criterion.seconds_left
        )

    def evaluate(self, state: AgentState) -> ContinuationOutcome:
        """What everyone says about this state, and what it comes to."""
        return resolve(tuple([explain(state) for explain in self._explanations]))

    def can_continue(self, state: AgentState) -> bool:
        return self.evaluate(state).should_continue

    def decide(self, state: AgentState) -> ContinuationDecision:
        return self.evaluate(state).decision

    def seconds_left(self, state: AgentState, now: datetime) -> float | None:
        """How long the next step may take before a limit on time would forbid to go on."""
        left = [seconds for limit in self._timed if (seconds := limit.seconds_left(state, now)) is not None]
        return min(left, default=None)

    @property
    def is_empty(self) -> bool:
        return not self.criteria

    def with_criteria(self, *more: CriterionLike) -> ContinuationCriteria:
        return ContinuationCriteria(*self.criteria, *more)

    @staticmethod
    def when(function: Callable[[AgentState], Answer]) -> FunctionCriterion:
        """A criterion from a function that returns an evaluation, a decision, or True to allow going on."""
        return FunctionCriterion(function)
