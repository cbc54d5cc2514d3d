"""Compare two sets of rules over recorded runs, and two runs step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.replay.judge import Rule, Rules
from whyloop.replay.recording import Recording, Run
from whyloop.replay.result import Ending, Replay, ending_of
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.state import AgentState


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
        """True if an execution ends otherwise under the two."""
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
    runs: Iterable[Run], first: Rule | Iterable[Rule], second: Rule | Iterable[Rule]
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


def diff(first: Run, second: Run) -> Difference | None:
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
    if _end_of(ends[0]) != _end_of(ends[1]):  # Decided in the middle of a step.
        number = max(len(steps[0]), 1)
        reason = f"the first run was {ends[0]}, the second {ends[1]}"
        return Difference(
            number, one.last_continuation_outcome, other.last_continuation_outcome, reason=reason
        )
    return None


def _latest(run: Run) -> AgentState:
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
