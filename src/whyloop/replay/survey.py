"""Surveys: the cuts and savings of each value of a limit, over many recorded runs in one pass.

A limit compares a bound with a number that grows with each step. So one pass over a run tells where each
value of the bound would have ended it. Values that end it at the same step are neighbours: the run changes
two counters, at the ends of their range. The totals are added up once, after the last run. Other rules are
judged one by one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from decimal import Decimal
from itertools import accumulate
from operator import add
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.replay.judge import Rule, Rules
from whyloop.replay.reconstruction import RecordedExecution
from whyloop.replay.recording import AnyRun, Filters, Recording, RunProblem, read_runs
from whyloop.replay.replayer import works_after
from whyloop.replay.result import Amounts, Replay, amounts_of
from whyloop.rules.limits import CostLimit, ExecutionTimeLimit, Limit, TimeLimit
from whyloop.stores.store import Store
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome
from whyloop.values.judgement import Judged
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step
from whyloop.values.transitions import Begun, Recovered, Waited

_FORBID = ContinuationDecision.FORBID_CONTINUATION
MOST_PROBLEMS = 1000


class Row(Struct, frozen=True):
    """The effect of one rule on all runs. A run is the work on one query."""

    rule: Any
    """The rule."""
    cut: int
    """The runs that it would have ended earlier."""
    completed: int
    """The runs among them that had completed."""
    beyond: int
    """The runs that would have continued past their recording."""
    saved: Amounts
    """The use that it would have saved in the runs that it ended, as far as it is known."""
    unknown_tokens: int = 0
    """The runs among them whose saved tokens are unknown."""
    unknown_cost: int = 0
    """The runs among them whose saved cost is unknown."""

    def __add__(self, other: Row) -> Row:
        """Return the effect of the same rule on the runs of both."""
        numbers = [getattr(self, name) + getattr(other, name) for name in self.__struct_fields__[1:]]
        return Row(self.rule, *numbers)


class Survey(Struct):
    """Many runs under each of several rules."""

    rows: list[Row]
    """One row for each rule, in the order in which they were given."""
    sessions: int = 0
    """The sessions that were read."""
    runs: int = 0
    """Their runs: one for each query on which work had begun."""
    completed: int = 0
    """The runs that had completed."""
    used: Amounts = Amounts()
    """The use of all runs, as far as it is known."""
    problem_count: int = 0
    """The sessions that could not be judged."""
    problems: list[RunProblem] = []
    """The first thousand problems."""


async def survey(
    source: Store | Iterable[AnyRun] | AsyncIterable[AnyRun],
    rules: Iterable[Rule],
    *,
    filters: Filters | None = None,
    on_run: Callable[[], object] | None = None,
) -> Survey:
    """Return what each rule would have cut and saved, over many recorded runs.

    All values of a limit take a single pass. Runs are read a few at a time, so memory use does not grow with
    their number.

    Args:
        source: A store, or states and other recorded runs.
        rules: The rules, each judged alone: `[StepsLimit(n) for n in range(1, 51)]`.
        filters: The conditions that sessions of a store must meet, as `store.sessions` takes them. Default:
            none.
        on_run: A function to call after each session. Default: none.
    """
    surveyor = Surveyor(rules)
    async for found in read_runs(source, filters):
        surveyor.add(found)
        if on_run is not None:
            on_run()
    return surveyor.result()


class Surveyor:
    """A survey that counts runs one after the other.

    Args:
        rules: The rules, each judged alone.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = list(rules)
        if not self._rules:
            raise ConfigurationError("survey needs a rule, such as StepsLimit(10)")
        families: dict[object, list[Limit]] = {}
        self._others: list[_Other] = []
        for rule in self._rules:
            if isinstance(rule, Limit) and _is_threshold(rule):
                families.setdefault((type(rule), rule.scope), []).append(rule)
            else:
                self._others.append(_Other(rule))
        self._families = [_Family(limits) for limits in families.values()]
        self._survey = Survey([])

    def add(self, found: Recording | RunProblem) -> None:
        """Count the runs of one session.

        Args:
            found: The recording of the session, or the problem with it.
        """
        total = self._survey
        if isinstance(found, RunProblem):
            self._report(found)
            return
        try:
            judged = [other.rules.judge(found) for other in self._others]  # Before anything is counted.
            for execution in found.executions:
                points = _points_of(execution)
                after = execution.after
                suffixes = _Suffixes(after)
                for family in self._families:
                    family.add(execution, points, suffixes)
                total.runs += 1
                total.completed += after.status is AgentStatus.COMPLETED
                total.used += suffixes.used()
            for other, replay in zip(self._others, judged, strict=True):
                other.add(replay)
            total.sessions += 1
        except Exception as error:  # An error in one run must not affect the others.
            self._report(RunProblem.of(found.agent_id, error))

    def _report(self, problem: RunProblem) -> None:
        self._survey.problem_count += 1
        if len(self._survey.problems) < MOST_PROBLEMS:
            self._survey.problems.append(problem)

    def merge(self, other: Surveyor) -> None:
        """Add the counts of another survey of the same rules.

        Args:
            other: The other one.
        """
        for family, counted in zip(self._families, other._families, strict=True):
            family.merge(counted)
        for rule, judged in zip(self._others, other._others, strict=True):
            rule.row += judged.row
        mine, theirs = self._survey, other._survey
        for name in ("sessions", "runs", "completed", "used", "problem_count"):
            setattr(mine, name, getattr(mine, name) + getattr(theirs, name))
        mine.problems += theirs.problems[: MOST_PROBLEMS - len(mine.problems)]

    def result(self) -> Survey:
        """Return the counts so far."""
        rows = {id(row.rule): row for family in self._families for row in family.rows()}
        rows |= {id(other.row.rule): other.row for other in self._others}
        self._survey.rows = [rows[id(rule)] for rule in self._rules]
        return self._survey


def _is_threshold(limit: Limit) -> bool:
    """Return whether a limit only compares two numbers, like the built-in ones."""
    if isinstance(limit, CostLimit) and limit.unknown == "forbid":
        return False
    return type(limit).__module__.startswith("whyloop.")


class _Point(Struct, gc=False):
    """A moment at which a limit may end a run."""

    state: AgentState
    outcome: ContinuationOutcome | None
    """The recorded decision; None when work began or a wait ended."""
    step: Step | None = None
    """The step that the decision settles."""


def _points_of(execution: RecordedExecution) -> list[_Point]:
    points = []
    transitions, states = execution.transitions, execution.states
    for index, (transition, state) in enumerate(zip(transitions, states, strict=True)):
        if isinstance(transition, Judged):
            step = state.current_step if transition.step is not None else None
            points.append(_Point(state, transition.outcome, step))
        elif isinstance(transition, Waited) or (
            isinstance(transition, Begun | Recovered) and works_after(transitions, index)
        ):
            after = states[index + 1] if index + 1 < len(states) else execution.after
            points.append(_Point(after, None))
    return points


class _Saved(NamedTuple):
    """The use of all steps after an end, without their time."""

    steps: int
    tokens: int
    knows_tokens: bool
    cost: Decimal
    knows_cost: bool
    wrap_up_seconds: float


class _Suffixes:
    """The use from each step of a run on, added up once for all limits when it is needed."""

    def __init__(self, after: AgentState) -> None:
        self.after = after
        self._saved: list[_Saved] = []

    def used(self) -> Amounts:
        """Return the known usage of the whole run."""
        execution = self.after.execution
        usage = execution.usage
        cost = usage.cost or usage.known_cost or _NOTHING
        return Amounts(execution.step_count, usage.total, execution.active_seconds, cost)

    def saved(self, kept: int) -> _Saved:
        """Return the usage of the steps after the first `kept`."""
        if not self._saved:
            steps = self.after.execution_steps
            # A run that wrapped up would have done so at an earlier limit too: only its time is needed.
            used = [
                amounts_of(1, 0.0, [step.usage])
                if step.wrap_up is None
                else Amounts(seconds=step.duration_ms / 1000)
                for step in steps
            ]
            if self.after.open_step is not None:
                used.append(amounts_of(0, 0.0, [self.after.open_step.usage]))
            sums = accumulate(reversed(used), initial=Amounts())
            self._saved = [
                _Saved(
                    each.steps,
                    each.tokens or 0,
                    each.tokens is not None,
                    each.cost or _NOTHING,
                    each.cost is not None,
                    each.seconds or 0.0,
                )
                for each in reversed(list(sums))
            ]
        return self._saved[kept]


_NOTHING = Decimal(0)


class _Family:
    """All values of one limit."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self.limits = sorted(limits, key=lambda limit: limit.limit)
        self.values = [float(limit.limit) for limit in self.limits]
        self.probe = self.limits[0]
        self.name = type(self.probe).__name__
        self.is_time = isinstance(self.probe, TimeLimit)
        size = len(limits) + 1
        # The change of each total from one value to the next: runs cut, completed runs cut, steps, tokens,
        # seconds saved per second of the value, seconds saved at zero.
        self.sums: tuple[list[float], ...] = tuple([0] * size for _ in range(6))
        self.unknown_tokens, self.unknown_cost, self.beyond = [0] * size, [0] * size, [0] * size
        self.cost = [_NOTHING] * size

    def add(self, execution: RecordedExecution, points: Sequence[_Point], suffixes: _Suffixes) -> None:
        """Count one run under every value."""
        if self.is_time and execution.after.execution.untimed:
            return
        probe, values, highest, used = self.probe, self.values, 0.0, 0.0
        for point in points:
            state, outcome = point.state, point.outcome
            used = probe.used(state) - (probe.granted(state) if state.execution.granted is not None else 0)
            if used <= highest or used < values[0]:
                continue
            reached, last = used, bisect_right(values, used)
            if outcome is not None and not outcome.decision.continues and not outcome.pauses:
                if not self._interrupts(point):
                    continue  # The run ended here anyway.
                reached = self._used_at_answer(point, used)
                last = bisect_left(values, reached)  # An answer at the deadline is in time.
            first = bisect_right(values, highest)
            if last > first:
                self._cut(first, last, point, used, execution, suffixes)
            highest = max(highest, reached)
        self._count_beyond(points, max(highest, used))

    def _interrupts(self, point: _Point) -> bool:
        """Return whether a deadline would have interrupted the completing answer."""
        outcome = point.outcome
        is_end = outcome is not None and outcome.decision is ContinuationDecision.ALLOW_STOP
        return self.is_time and is_end and point.step is not None and point.step.interrupted is None

    def _used_at_answer(self, point: _Point, used: float) -> float:
        step = point.step
        if step is None or step.answered_at is None or not isinstance(self.probe, ExecutionTimeLimit):
            return used
        return used - (step.completed_at - step.answered_at).total_seconds()

    def _cut(
        self,
        first: int,
        last: int,
        point: _Point,
        used: float,
        execution: RecordedExecution,
        suffixes: _Suffixes,
    ) -> None:
        """Add a run that the values of a range end at the same point."""
        saved, after = suffixes.saved(point.state.execution.step_number), execution.after
        completed = after.status is AgentStatus.COMPLETED
        if not saved.steps and not completed:
            return
        active = point.state.execution.active_seconds
        seconds, slope = after.execution.active_seconds - saved.wrap_up_seconds - active, 0
        if self.is_time and point.step is not None:
            # The step is interrupted at its deadline: what is saved falls as the value grows.
            step, slope = point.step, 1
            if isinstance(self.probe, ExecutionTimeLimit):
                wall = (step.completed_at - step.started_at).total_seconds()
                seconds += used - wall + step.duration_ms / 1000
            else:
                seconds += used
        cut, complete, steps, tokens, slopes, times = self.sums
        for index, sign in ((first, 1), (last, -1)):
            cut[index] += sign
            complete[index] += sign * completed
            steps[index] += sign * saved.steps
            tokens[index] += sign * saved.tokens
            slopes[index] += sign * slope
            times[index] += sign * seconds
            self.cost[index] += sign * saved.cost
            self.unknown_tokens[index] += sign * (not saved.knows_tokens)
            self.unknown_cost[index] += sign * (not saved.knows_cost)

    def _count_beyond(self, points: Sequence[_Point], highest: float) -> None:
        """Count the values that would not have ended a run that this limit ended."""
        outcome = points[-1].outcome if points else None
        if outcome is None or outcome.stop_reason is None or outcome.decision is not _FORBID:
            return
        forbids = [each for each in outcome.evaluations if each.decision is _FORBID]
        if all(each.criterion == self.name for each in forbids):
            self.beyond[bisect_right(self.values, highest)] += 1

    def rows(self) -> list[Row]:
        """Return one row for each value."""
        cut, completed, steps, tokens, slope, seconds = map(list, map(accumulate, self.sums))
        unknown_tokens, unknown_cost = map(list, map(accumulate, (self.unknown_tokens, self.unknown_cost)))
        beyond, cost = list(accumulate(self.beyond)), list(accumulate(self.cost))
        rows = []
        for i, limit in enumerate(self.limits):
            saved_seconds = max(0.0, seconds[i] - slope[i] * self.values[i])
            saved = Amounts(int(steps[i]), int(tokens[i]), saved_seconds, cost[i]) if cut[i] else Amounts()
            counts = (int(cut[i]), int(completed[i]), beyond[i])
            rows.append(Row(limit, *counts, saved, unknown_tokens[i], unknown_cost[i]))
        return rows

    def merge(self, other: _Family) -> None:
        """Add the runs that another one counted."""
        for mine, theirs in zip(self._arrays(), other._arrays(), strict=True):
            mine[:] = map(add, mine, theirs)

    def _arrays(self) -> list[list[Any]]:
        return [*self.sums, self.unknown_tokens, self.unknown_cost, self.beyond, self.cost]


class _Other:
    """A rule that is judged run by run."""

    def __init__(self, rule: Rule) -> None:
        self.rules = Rules(rule, strict=True)
        self.row = Row(rule, 0, 0, 0, Amounts())

    def add(self, replay: Replay) -> None:
        """Count the runs of one session."""
        for execution in replay.executions:
            row, saved = self.row, execution.saved
            if execution.beyond:
                self.row = replace(row, beyond=row.beyond + execution.differs)
            elif execution.is_cut:
                completed = execution.recorded.status is AgentStatus.COMPLETED
                unknown = saved.tokens is None, saved.cost is None
                self.row += Row(row.rule, 1, int(completed), 0, saved.known, *map(int, unknown))
