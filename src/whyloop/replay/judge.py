"""Judge recorded runs under other rules, or under two sets of rules, without a model; compare two runs. Each
rule replaces the recorded evaluations of its class, and all other rules keep theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.replay.recording import AnyRun, Recording
from whyloop.replay.replayer import Replayer
from whyloop.replay.result import Ending, Replay, ending_of
from whyloop.rules.checks import ApprovalRequired, StopRequestedCheck, ToolCallPresenceCheck
from whyloop.rules.criteria import ContinuationCriteria, refuse_contradictions
from whyloop.rules.criterion import (
    CriterionLike,
    CriterionObject,
    as_criterion,
    criterion_name,
    explain_function,
)
from whyloop.rules.error_policy import ErrorPolicy, ErrorPolicyCriterion
from whyloop.rules.limits import Limit
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome, StopReason
from whyloop.values.state import AgentState

Rule = CriterionLike | ErrorPolicy | ContinuationCriteria
"""A criterion, an error policy, or all criteria of an agent."""

# The order in which an agent evaluates its rules; unlisted ones are the developer's own.
_FIRST = (
    "ErrorPolicyCriterion",
    "StopRequestedCheck",
    "StepsLimit",
    "TokenUsageLimit",
    "ExecutionTimeLimit",
    "CumulativeExecutionTimeLimit",
    "FinishReasonCheck",
)
_LAST = ("ApprovalRequired", "ToolCallPresenceCheck")
# Every agent has these rules. They have no settings, so they can be judged from any recording.
_ALWAYS = (StopRequestedCheck, ApprovalRequired, ToolCallPresenceCheck)


def judge(run: AnyRun, *rules: Rule, replace_all: bool = False, grants: bool = True) -> Replay:
    """Return how a recorded run would have ended under other rules.

    Args:
        run: A state, a snapshot, the entries of a journal, the lines of an export with one session, or a
            `Recording`, which `await Recording.read(store, agent_id)` reads from a store.
        *rules: Criteria and error policies. Each replaces the recorded evaluations of its class.
        replace_all: True to judge as if the agent had only these rules. Default: False, so that all other
            rules keep their recorded evaluations.
        grants: False to leave out what people granted on top of the limits. Default: True.
    """
    recording, judging = Recording.of(run), Rules(*rules, replace_all=replace_all)
    if not recording.executions:
        raise ConfigurationError(f"session {recording.agent_id!r} has no step to judge: run it first")
    return judging.judge(recording, grants=grants)


class Rules:
    """The rules under which recorded runs are judged, prepared once for many runs.

    Args:
        *rules: Criteria and error policies.
        replace_all: True to judge as an agent with these rules alone would. Default: False.
        strict: True to raise if a rule raises. Default: False, it forbids continuing, as in a run.
    """

    def __init__(self, *rules: Rule, replace_all: bool = False, strict: bool = False) -> None:
        given = [each for rule in rules for each in _criteria_of(rule)]
        refuse_contradictions(given)
        self.given = ContinuationCriteria(*sorted(given, key=_place))
        """The rules, in the order of an agent."""
        kinds = {type(rule) for rule in given}
        whole = [*self.given.criteria, *[kind() for kind in _ALWAYS if kind not in kinds]]
        self.whole = ContinuationCriteria(*sorted(whole, key=_place))
        """The same rules, with the checks that every agent has."""
        self.names = frozenset(map(criterion_name, self.given.criteria))
        """The names of the rules."""
        self.replace_all = replace_all
        """True if no recorded evaluation counts."""
        self.strict = strict
        """True if an exception in a rule is an error, not an end of the run."""

    def judge(self, recording: Recording, *, grants: bool = True) -> Replay:
        """Judge every execution of a recording, each from its recorded beginning.

        Args:
            recording: The recording.
            grants: False to leave out what people granted. Default: True.
        """
        executions = recording.executions
        replayers = [Replayer(each, self.given, self.evaluate, grants) for each in executions]
        return Replay(recording.agent_id, tuple(replayer.replay() for replayer in replayers))

    def evaluate(
        self, state: AgentState, recorded: ContinuationOutcome | None, *, whole: bool = False
    ) -> ContinuationOutcome:
        """Return the outcome with these rules instead of the recorded ones.

        Args:
            state: The state to judge.
            recorded: The recorded outcome.
            whole: True to evaluate the checks that every agent has again. Default: False.
        """
        criteria = self.whole if whole or self.replace_all or recorded is None else self.given
        outcome = criteria.evaluate(state)
        if self.strict:
            _raise_if_broken(criteria, outcome, state)
        if self.replace_all or recorded is None:
            return outcome
        new = [
            (_place(rule, e.criterion), e)
            for rule, e in zip(criteria.criteria, outcome.evaluations, strict=True)
        ]
        old = _places_of(recorded.evaluations)
        # A rule replaces the recorded one in its place, unless an agent evaluates it elsewhere.
        places = {(place, evaluation.criterion) for place, evaluation in old}
        fresh = deque([each for each in new if (each[0], each[1].criterion) not in places])
        replaced = self.names.union([evaluation.criterion for _, evaluation in new])
        merged: list[ContinuationEvaluation] = []
        for place, evaluation in old:
            while fresh and fresh[0][0] < place:
                merged.append(fresh.popleft()[1])
            name = evaluation.criterion
            if name not in replaced:
                merged.append(evaluation)
                continue
            merged += [each for at, each in new if (at, each.criterion) == (place, name)]
            new = [(at, each) for at, each in new if (at, each.criterion) != (place, name)]
        merged += [evaluation for _, evaluation in fresh]
        step = state.latest_step()
        interrupted = step is not None and step.interrupted is not None
        return ContinuationOutcome.from_evaluations(merged, interrupted=interrupted, wrap_up=state.wrap_up)


def _raise_if_broken(criteria: ContinuationCriteria, outcome: ContinuationOutcome, state: AgentState) -> None:
    """Raise the error of a rule that forbade because it raised."""
    for rule, evaluation in zip(criteria.criteria, outcome.evaluations, strict=True):
        if evaluation.stop_reason is StopReason.ERROR_FORBADE:
            try:
                explain_function(rule)(state)
            except (Exception, SystemExit):
                raise ConfigurationError(evaluation.reason) from None


def _criteria_of(rule: Rule) -> Sequence[CriterionObject]:
    if isinstance(rule, ErrorPolicy):
        return [ErrorPolicyCriterion(rule)]
    if isinstance(rule, ContinuationCriteria):
        return rule.criteria
    return [as_criterion(rule)]


def _place(rule: CriterionObject, name: str | None = None) -> int:
    """Return the position at which an agent evaluates a rule.

    A rule about the whole session is among the developer's own.
    """
    if isinstance(rule, Limit) and rule.scope == "session":
        return len(_FIRST)
    return _rank(name or criterion_name(rule))


def _places_of(evaluations: Sequence[ContinuationEvaluation]) -> list[tuple[int, ContinuationEvaluation]]:
    """Return recorded evaluations with the positions of their rules in an agent.

    A rule that comes after one of the developer's own, or after a later one, is among the developer's own.
    """
    placed, last = [], 0
    for evaluation in evaluations:
        place = _rank(evaluation.criterion)
        last = place if place >= last else len(_FIRST)
        placed.append((last, evaluation))
    return placed


def _rank(name: str) -> int:
    if name in _FIRST:
        return _FIRST.index(name)
    return len(_FIRST) + (_LAST.index(name) + 1 if name in _LAST else 0)


class Comparison(Struct, frozen=True):
    """One recorded run, judged under two sets of rules."""

    agent_id: str
    """The name of the session."""
    first: Replay
    """The run under the first rules."""
    second: Replay
    """The run under the second rules."""

    @property
    def differs(self) -> bool:
        """True if an execution ends differently under the two."""
        return any(
            one.ending != other.ending or one.beyond != other.beyond
            for one, other in zip(self.first.executions, self.second.executions, strict=True)
        )

    def __str__(self) -> str:
        """Return both ends on one line."""
        return f"{self.agent_id}: {_end(self.first)}; {_end(self.second)}"


def _end(replay: Replay) -> str:
    return "beyond the recording" if replay.beyond else str(replay.latest.ending)


def compare(
    runs: Iterable[AnyRun], first: Rule | Iterable[Rule], second: Rule | Iterable[Rule]
) -> list[Comparison]:
    """Judge recorded runs under two sets of rules.

    Args:
        runs: The runs, in any form that `judge` takes.
        first: A rule, or several.
        second: The rule, or the rules, to compare with.
    """
    one, other = Rules(*_several(first)), Rules(*_several(second))
    found = []
    for run in runs:
        recording = Recording.of(run)
        if recording.executions:
            found.append(Comparison(recording.agent_id, one.judge(recording), other.judge(recording)))
    return found


def _several(rules: Rule | Iterable[Rule]) -> Sequence[Rule]:
    if isinstance(rules, Iterable):
        return list(rules)
    return [rules]


# Two runs


class Difference(Struct, frozen=True):
    """The first step at which the decisions of two runs differ."""

    step: int
    """The number of the step in its execution."""
    first: ContinuationOutcome | None
    """The outcome of the step in the first run; None if that run did not take it."""
    second: ContinuationOutcome | None
    """The outcome of the step in the second run; None if that run did not take it."""
    rules: tuple[str, ...] = ()
    """The rules that decided differently."""
    reason: str = ""
    """Why the decisions differ, on one line."""

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain data."""
        document: dict[str, Any] = encoding.encode(self)
        return document

    def __str__(self) -> str:
        """Return the step and the reason."""
        return f"Step {self.step}: {self.reason}"


def diff(first: AnyRun, second: AnyRun) -> Difference | None:
    """Return the first step where the decisions of two runs differ, or None.

    The latest executions are compared, as recorded.

    Args:
        first: A run, in any form that `judge` takes.
        second: Another run.
    """
    one, other = _latest(first), _latest(second)
    steps = [one.execution_steps, other.execution_steps]
    for index in range(max(map(len, steps))):
        outcomes = [each[index].outcome if index < len(each) else None for each in steps]
        if (found := _difference(index + 1, *outcomes)) is not None:
            return found
    ends = ending_of(one), ending_of(other)
    if _end_of(ends[0]) != _end_of(ends[1]):  # It was decided in the middle of a step.
        number = max(len(steps[0]), 1)
        reason = f"the first run was {ends[0]}, the second {ends[1]}"
        return Difference(
            number, one.last_continuation_outcome, other.last_continuation_outcome, reason=reason
        )
    return None


def _latest(run: AnyRun) -> AgentState:
    recording = Recording.of(run)
    if not recording.executions:
        raise ConfigurationError(f"session {recording.agent_id!r} has no step to compare: run it first")
    return recording.executions[-1].after


def _end_of(ending: Ending) -> tuple[object, ...]:
    return ending.status, ending.stop_reason, ending.resolved_by


def _difference(
    number: int, one: ContinuationOutcome | None, other: ContinuationOutcome | None
) -> Difference | None:
    """Return how two outcomes of the same step differ; None if they decide alike."""
    if one is None or other is None:
        taken = other if one is None else one
        if taken is None:
            return None
        lacking, has = ("first", "second") if one is None else ("second", "first")
        reason = f"the {lacking} run did not take this step, the {has} {_decided(taken)}"
        return Difference(number, one, other, reason=reason)
    rules = _rules_that_differ(one, other)
    alike = (one.decision, one.stop_reason, one.resolved_by) == (
        other.decision,
        other.stop_reason,
        other.resolved_by,
    )
    if alike and not rules:
        return None
    if alike:
        texts = [
            f"{name} decided {_vote(one, name)} in the first run and {_vote(other, name)} in the second"
            for name in rules
        ]
        return Difference(number, one, other, rules, "; ".join(texts))
    reason = f"the first run {_decided(one)}, the second {_decided(other)}"
    return Difference(number, one, other, rules, reason)


def _rules_that_differ(one: ContinuationOutcome, other: ContinuationOutcome) -> tuple[str, ...]:
    """Return the names of the rules that decided differently.

    A rule that only one run has counts if it forbade.
    """
    names = dict.fromkeys(e.criterion for e in (*one.evaluations, *other.evaluations))
    deciding = (one.resolved_by, other.resolved_by)
    found = []
    for name in names:
        a, b = one.evaluation_for(name), other.evaluation_for(name)
        if a is None or b is None:
            differs = name in deciding
        else:
            differs = a.decision is not b.decision
        if differs:
            found.append(name)
    return tuple(found)


def _vote(outcome: ContinuationOutcome, name: str) -> str:
    evaluation = outcome.evaluation_for(name)
    return "nothing" if evaluation is None else f"{evaluation.decision} ({evaluation.reason})"


def _decided(outcome: ContinuationOutcome) -> str:
    verb = "continued" if outcome.should_continue else "paused" if outcome.pauses else "stopped"
    why = f" ({outcome.stop_reason})" if outcome.stop_reason else ""
    return f"{verb}{why} by {outcome.resolved_by}: {outcome.reason}"
