"""All criteria of an agent together, and the one table of precedence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.rules.checks import (
    ApprovalRequired,
    FinishReasonCheck,
    StopRequestedCheck,
    ToolCallPresenceCheck,
)
from whyloop.rules.criterion import (
    Criterion,
    CriterionAnswer,
    CriterionLike,
    FunctionCriterion,
    as_criterion,
    criterion_name,
    explain_function,
    failed_evaluation,
    with_distinct_names,
)
from whyloop.rules.error_policy import ErrorPolicyCriterion
from whyloop.rules.limits import CumulativeExecutionTimeLimit, ExecutionTimeLimit, Limit
from whyloop.rules.repetition import RepeatedCallCheck
from whyloop.values.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from whyloop.values.judgement import Judged
from whyloop.values.state import AgentState
from whyloop.values.step import Interruption
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.transitions import Forked, StopRequested

_FORBID = ContinuationDecision.FORBID_CONTINUATION
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION
_ALLOW = ContinuationDecision.ALLOW_CONTINUATION


class ContinuationCriteria:
    """An ordered set of criteria; every one of them is evaluated after every step.

    Args:
        *criteria: Criteria, and functions of the state.
    """

    def __init__(self, *criteria: CriterionLike) -> None:
        self.criteria = with_distinct_names(map(as_criterion, criteria))
        """The criteria, in order."""
        self._explain = tuple(map(explain_function, self.criteria))
        self.limits = tuple(criterion for criterion in self.criteria if isinstance(criterion, Limit))
        """The limits among them."""
        self._timed = tuple(
            criterion
            for criterion in self.criteria
            if isinstance(criterion, Criterion) and type(criterion).deadline is not Criterion.deadline
        )
        self.deadline_moves = any(type(limit) is not ExecutionTimeLimit for limit in self._timed)
        """True if the deadline may depend on the work done so far, so that every step has its own."""

    def evaluate(self, state: AgentState) -> ContinuationOutcome:
        """Return the evaluations of all criteria, and the outcome."""
        evaluations, deciding = [], []
        try:  # One `try` for all criteria: one for each costs 70 instructions of bytecode more.
            for explain in self._explain:
                evaluations.append(evaluation := explain(state))
                if evaluation.decision is not _ALLOW:
                    deciding.append(evaluation)
        except (Exception, SystemExit):
            return self._resolve(state, self._evaluate_each(state))
        if len(deciding) == 1 and deciding[0].decision is _REQUEST:  # As after nearly every step.
            return ContinuationOutcome(_REQUEST, deciding[0].criterion, None, tuple(evaluations))
        return self._resolve(state, tuple(evaluations))

    def _resolve(
        self, state: AgentState, evaluations: tuple[ContinuationEvaluation, ...]
    ) -> ContinuationOutcome:
        step, execution = state.latest_step(), state.execution
        is_interrupted = step is not None and step.interrupted is not None
        wrap_up = state.wrap_up if execution.wrap_ups or execution.wrap_up is not None else None
        return ContinuationOutcome.from_evaluations(evaluations, interrupted=is_interrupted, wrap_up=wrap_up)

    def _evaluate_each(self, state: AgentState) -> tuple[ContinuationEvaluation, ...]:
        """Return the evaluations if a criterion raises; all are evaluated again."""
        evaluations: list[ContinuationEvaluation] = []
        for criterion, explain in zip(self.criteria, self._explain, strict=True):
            try:
                evaluations.append(explain(state))
            except (Exception, SystemExit) as error:
                evaluations.append(failed_evaluation(criterion_name(criterion), error))
        return tuple(evaluations)

    def can_continue(self, state: AgentState) -> bool:
        """Return whether the run takes another step."""
        return self.evaluate(state).should_continue

    def decide(self, state: AgentState) -> ContinuationDecision:
        """Return the decision that wins."""
        return self.evaluate(state).decision

    def deadline(self, state: AgentState, started_at: datetime, counted: float = 0.0) -> datetime | None:
        """Return when a time limit would forbid the next step; None if never.

        Args:
            started_at: The time at which the step began.
            counted: The active seconds since then that the state has already counted.
        """
        earliest = None
        for limit in self._timed:
            deadline = limit.deadline(state, started_at, counted)
            if deadline is not None and (earliest is None or deadline < earliest):
                earliest = deadline
        return earliest

    def exhausted(self, state: AgentState) -> bool:
        """Return whether a limit forbids any next step."""
        return any(limit.explain(state).exhausted for limit in self.limits)

    @property
    def max_retries(self) -> int:
        """How often the error policy retries in a row; 0 without a policy."""
        policies = [c.policy for c in self.criteria if isinstance(c, ErrorPolicyCriterion)]
        return policies[0].max_retries if policies else 0

    @property
    def is_empty(self) -> bool:
        """True if there are no criteria."""
        return not self.criteria

    def with_criteria(self, *more: CriterionLike) -> ContinuationCriteria:
        """Return the criteria with more of them at the end.

        Args:
            *more: Criteria, and functions of the state.
        """
        return ContinuationCriteria(*self.criteria, *more)

    @staticmethod
    def when(
        function: Callable[[AgentState], CriterionAnswer], *, name: str | None = None
    ) -> FunctionCriterion:
        """Make a criterion from a function that returns True to continue, or a decision.

        Args:
            function: The function of the state.
            name: The name in the trace. Default: that of the function.
        """
        return FunctionCriterion(function, name)


def leaves_work(state: AgentState, outcome: ContinuationOutcome) -> bool:
    """Return whether only limits ended the run while there was work to do.

    While a call waits for a person, the model cannot answer without it.
    """
    step, forbids = state.current_step, [e for e in outcome.evaluations if e.decision is _FORBID]
    if outcome.decision is not _FORBID or not all(evaluation.exhausted for evaluation in forbids):
        return False
    if step is None or state.open_step is not None or state.wrap_up is not None:
        return False
    return step.interrupted is Interruption.OUT_OF_TIME or any(
        evaluation.decision is _REQUEST for evaluation in outcome.evaluations
    )


def stop_transitions(
    state: AgentState,
    reason: str,
    now: datetime,
    key: str | None = None,
    criteria: ContinuationCriteria | None = None,
) -> list[AnyTransition]:
    """Return the transitions that stop an execution without a runner.

    With the criteria of its agent, they are evaluated; without, the outcome is partial.
    """
    request = StopRequested(now, reason=reason, key=key)
    return [request, _judged(request, state, criteria, StopRequestedCheck())]


def fork_transitions(
    state: AgentState, fork: Forked, criteria: ContinuationCriteria | None = None
) -> list[AnyTransition]:
    """Return the transitions of a fork, with the pause if it asks a person.

    With the criteria of its agent, they are evaluated; without, the outcome is partial.
    """
    if not fork.envelope_count():
        return [fork]
    return [fork, _judged(fork, state, criteria, ApprovalRequired())]


def _judged(
    transition: AnyTransition,
    before: AgentState,
    criteria: ContinuationCriteria | None,
    deciding: Criterion,
) -> Judged:
    """Return the judgement after a transition that was recorded without a runner."""
    state = transition.apply_to(before)
    if criteria is not None:
        return Judged(transition.at, outcome=criteria.evaluate(state))
    outcome = ContinuationOutcome.from_evaluations([deciding.explain(state)])
    return Judged(transition.at, outcome=replace(outcome, partial=True))


def refuse_contradictions(criteria: Sequence[object]) -> None:
    """Refuse criteria that contradict each other, or of which one can never matter."""
    _refuse_twins(criteria)
    _refuse_hidden_finish_reasons(criteria)
    _refuse_hidden_limits([criterion for criterion in criteria if isinstance(criterion, Limit)])
    _refuse_two_time_limits(criteria)
    _refuse_retries_of_zero(criteria)


_ONLY_ONCE = (
    ErrorPolicyCriterion,
    StopRequestedCheck,
    ApprovalRequired,
    ToolCallPresenceCheck,
    RepeatedCallCheck,
)


def _refuse_twins(criteria: Sequence[object]) -> None:
    kinds = list(map(type, criteria))
    for kind in _ONLY_ONCE:
        if kinds.count(kind) > 1:
            raise ConfigurationError(f"two {kind.__name__} may contradict each other: keep one")


def _refuse_hidden_finish_reasons(criteria: Sequence[object]) -> None:
    checks = [criterion for criterion in criteria if type(criterion) is FinishReasonCheck]
    for hidden, other in itertools.permutations(checks, 2):
        if set(hidden.reasons) <= set(other.reasons):
            reasons = ", ".join(hidden.reasons)
            raise ConfigurationError(
                f"FinishReasonCheck({reasons}) can never matter, because another one has all its reasons: "
                "remove it"
            )


def _refuse_hidden_limits(limits: Sequence[Limit]) -> None:
    """Refuse a limit that can never matter because a lower one decides first."""
    for hidden, other in itertools.permutations(limits, 2):
        if hidden is other or type(hidden) is not type(other):
            continue
        reaches_further = other.scope in (hidden.scope, "session")
        if reaches_further and other.limit <= hidden.limit:
            raise ConfigurationError(
                f"{hidden!r} can never matter, because {other!r} always decides first: remove one"
            )


def _refuse_two_time_limits(criteria: Sequence[object]) -> None:
    by_wall = [c for c in criteria if type(c) is ExecutionTimeLimit and c.scope == "execution"]
    by_work = [c for c in criteria if type(c) is CumulativeExecutionTimeLimit and c.scope == "execution"]
    if by_wall and by_work:
        raise ConfigurationError(
            f"{by_wall[0]!r} and {by_work[0]!r} exclude each other: "
            "the wall clock includes pauses, and cumulative time does not. "
            "Choose timeout (wall clock) or cumulative_timeout (work only)"
        )


def _refuse_retries_of_zero(criteria: Sequence[object]) -> None:
    for criterion in criteria:
        if isinstance(criterion, ErrorPolicyCriterion) and criterion.policy.retries_nothing:
            raise ConfigurationError(
                "the error policy retries with max_retries=0, which never retries: "
                "use with_max_retries(n), or stop instead of retry"
            )
