"""All the criteria of an agent, asked together."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from whyloop.rules.continuation.criterion import (
    Answer,
    Criterion,
    CriterionLike,
    FunctionCriterion,
    as_criterion,
    asked,
    could_not_be_evaluated,
    name_of,
    told_apart,
)
from whyloop.rules.continuation.error_policy_criterion import ErrorPolicyCriterion
from whyloop.rules.continuation.limits import Limit
from whyloop.rules.continuation.resolve import resolve
from whyloop.values.continuation import (
    ContinuationDecision as Decision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from whyloop.values.state import AgentState


class ContinuationCriteria:
    """An ordered set of criteria; every one of them is asked about every step."""

    def __init__(self, *criteria: CriterionLike) -> None:
        self.criteria = told_apart(as_criterion(criterion) for criterion in criteria)
        self._asked = [(name_of(criterion), asked(criterion)) for criterion in self.criteria]
        self._explain = [explain for _, explain in self._asked]
        self._limits = tuple(criterion for criterion in self.criteria if isinstance(criterion, Limit))
        self._timed = tuple(
            criterion
            for criterion in self.criteria
            if isinstance(criterion, Criterion) and type(criterion).deadline is not Criterion.deadline
        )

    def evaluate(self, state: AgentState) -> ContinuationOutcome:
        """Return what every criterion says about this state, and the outcome."""
        try:
            evaluations = [explain(state) for explain in self._explain]
        except (Exception, SystemExit):
            evaluations = self._evaluate_each(state)
        step = state.open_step or state.current_step
        return resolve(tuple(evaluations), step is not None and step.interrupted is not None)

    def _evaluate_each(self, state: AgentState) -> list[ContinuationEvaluation]:
        """Ask the criteria one by one, since one of them raises; they are pure, so asking again is safe."""
        evaluations: list[ContinuationEvaluation] = []
        for name, explain in self._asked:
            try:
                evaluations.append(explain(state))
            except (Exception, SystemExit) as error:
                evaluations.append(could_not_be_evaluated(name, error))
        return evaluations

    def can_continue(self, state: AgentState) -> bool:
        return self.evaluate(state).should_continue

    def decide(self, state: AgentState) -> Decision:
        return self.evaluate(state).decision

    def deadline(self, state: AgentState, started_at: datetime, counted: float = 0.0) -> datetime | None:
        """Return when a limit on time would forbid continuing after the step that started then."""
        earliest = None
        for limit in self._timed:
            deadline = limit.deadline(state, started_at, counted)
            if deadline is not None and (earliest is None or deadline < earliest):
                earliest = deadline
        return earliest

    def exhausted(self, state: AgentState) -> bool:
        """Return whether a limit forbids the next step, whatever it would do."""
        return any(limit.explain(state).exhausted for limit in self._limits)

    @property
    def max_retries(self) -> int:
        """How often the error policy retries in a row; 0 if there is no policy."""
        policies = [c.policy for c in self.criteria if isinstance(c, ErrorPolicyCriterion)]
        return policies[0].max_retries if policies else 0

    @property
    def is_empty(self) -> bool:
        return not self.criteria

    def with_criteria(self, *more: CriterionLike) -> ContinuationCriteria:
        return ContinuationCriteria(*self.criteria, *more)

    @staticmethod
    def when(function: Callable[[AgentState], Answer], *, name: str | None = None) -> FunctionCriterion:
        """A criterion from a function that returns an evaluation, a decision, or True to allow going on."""
        return FunctionCriterion(function, name)
