"""Combinations of criteria that cannot mean what was written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from whyloop.errors import ConfigurationError
from whyloop.rules.continuation.approval import ApprovalRequired
from whyloop.rules.continuation.checks import FinishReasonCheck, StopRequestedCheck, ToolCallPresenceCheck
from whyloop.rules.continuation.error_policy_criterion import ErrorPolicyCriterion
from whyloop.rules.continuation.limits import Limit
from whyloop.rules.continuation.time_limits import CumulativeExecutionTimeLimit, ExecutionTimeLimit


def refuse_contradictions(criteria: Sequence[object]) -> None:
    """Raise a `ConfigurationError` that names both sides of the first contradiction."""
    _refuse_twins(criteria)
    _refuse_hidden_finish_reasons(criteria)
    _refuse_hidden_limits([criterion for criterion in criteria if isinstance(criterion, Limit)])
    _refuse_two_time_limits(criteria)
    _refuse_retries_of_zero(criteria)


def _refuse_twins(criteria: Sequence[object]) -> None:
    for kind in (ErrorPolicyCriterion, StopRequestedCheck, ApprovalRequired, ToolCallPresenceCheck):
        if sum(type(criterion) is kind for criterion in criteria) > 1:
            raise ConfigurationError(f"{kind.__name__} is there twice, and the two can contradict: keep one")


def _refuse_hidden_finish_reasons(criteria: Sequence[object]) -> None:
    checks = [criterion for criterion in criteria if type(criterion) is FinishReasonCheck]
    for hidden, other in itertools.permutations(checks, 2):
        if set(hidden.reasons) <= set(other.reasons):
            words = ", ".join(hidden.reasons)
            raise ConfigurationError(
                f"FinishReasonCheck({words}) can never matter, because another one has all of its reasons"
            )


def _refuse_hidden_limits(limits: Sequence[Limit]) -> None:
    """A session has used at least what its execution has, so the lower limit always decides first."""
    for hidden in limits:
        for other in limits:
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
            "the wall clock runs on through the pauses that cumulative time leaves out. "
            "Choose timeout (wall clock) or cumulative_timeout (work only)"
        )


def _refuse_retries_of_zero(criteria: Sequence[object]) -> None:
    for criterion in criteria:
        if isinstance(criterion, ErrorPolicyCriterion) and criterion.policy.retries_nothing:
            raise ConfigurationError(
                "the error policy retries with max_retries=0, which never retries: "
                "use with_max_retries(n), or stop instead of retry"
            )
