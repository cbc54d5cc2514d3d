"""Evals: cases that run an agent, several times if its answers vary, and their results."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.logger import log_line
from whyloop.loop.run import on_end
from whyloop.tools.tool import run_in_thread
from whyloop.values.model import NO_USAGE, Usage
from whyloop.values.price import dollars
from whyloop.values.state import AgentState
from whyloop.values.text import counted

Case = Callable[[], Any]
"""A function without parameters, sync or async, that runs an agent and checks the result."""
C = TypeVar("C", bound=Case)

LONGEST_PROBLEM = 1000
_SETTINGS = "__whyloop_case__"
_SKIPS = ("SkipTest", "Skipped")  # Of unittest and of pytest, which need not be loaded.
_NOTABLE = 0.1


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a case."""

    passed: bool
    """True if the case raised nothing."""
    problem: str | None = None
    """Why it failed or was skipped."""
    skipped: bool = False
    """True if the case skipped itself, with `unittest.SkipTest` or `pytest.skip`."""
    seconds: float = 0.0
    """How long it took."""
    steps: int = 0
    """The steps of all agents that it ran."""
    usage: Usage = NO_USAGE
    """The tokens and the cost of all agents that it ran."""
    endings: tuple[str, ...] = ()
    """How each of its runs ended, such as "completed by ToolCallPresenceCheck"."""


class CaseResult(Struct, frozen=True, kw_only=True):
    """The attempts at a case."""

    name: str
    """The name of the case."""
    attempts: tuple[Attempt, ...]
    """The attempts, in order."""
    needed: int
    """How many attempts must pass."""

    @property
    def taken(self) -> tuple[Attempt, ...]:
        """The attempts that were not skipped."""
        return tuple(attempt for attempt in self.attempts if not attempt.skipped)

    @property
    def passes(self) -> int:
        """How many attempts passed."""
        return sum(attempt.passed for attempt in self.attempts)

    @property
    def skipped(self) -> bool:
        """True if every attempt was skipped."""
        return not self.taken

    @property
    def passed(self) -> bool:
        """True if enough of the attempts that were not skipped passed."""
        return self.passes >= min(self.needed, len(self.taken))

    @property
    def steps(self) -> float:
        """The median number of steps."""
        return _median([attempt.steps for attempt in self.taken])

    @property
    def tokens(self) -> float:
        """The median number of tokens."""
        return _median([attempt.usage.total for attempt in self.taken])

    @property
    def seconds(self) -> float:
        """The median time."""
        return _median([attempt.seconds for attempt in self.taken])

    @property
    def usage(self) -> Usage:
        """The tokens and the cost of all attempts together."""
        return sum((attempt.usage for attempt in self.attempts), NO_USAGE)

    @property
    def endings(self) -> dict[str, int]:
        """How the runs ended, and how often, the most frequent first."""
        return dict(Counter(ending for attempt in self.taken for ending in attempt.endings).most_common())

    @property
    def problem(self) -> str | None:
        """The problem of the first failed attempt, or why the case was skipped."""
        failed = (attempt.problem for attempt in self.taken or self.attempts if not attempt.passed)
        return next(failed, None)


class EvalReport(Struct, frozen=True, kw_only=True):
    """The results of all cases. `write` keeps it in a file, for `compare_reports` with a later one."""

    cases: tuple[CaseResult, ...]
    """The results, in the order of the cases."""
    version: int = 1
    """The version of the file's format."""

    @property
    def passed(self) -> bool:
        """True if every case passed or was skipped."""
        return all(case.passed for case in self.cases)

    @property
    def usage(self) -> Usage:
        """The tokens and the cost of all cases together."""
        return sum((case.usage for case in self.cases), NO_USAGE)

    def write(self, path: str | Path) -> None:
        """Write the report to a file, as JSON.

        Args:
            path: The file, which is replaced.
        """
        target = Path(path)
        beside = target.with_name(f"{target.name}.new")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        beside.replace(target)

    @staticmethod
    def read(path: str | Path) -> EvalReport:
        """Return the report in a file.

        Args:
            path: A file that `write` made.
        """
        try:
            report = msgspec.json.decode(Path(path).read_bytes(), type=EvalReport)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} is not a report of an eval: {error}") from None
        if report.version != 1:
            raise ConfigurationError(f"{path} has version {report.version}, and this whyloop reads version 1")
        return report


def case(*, repeats: int = 1, passes: int | None = None) -> Callable[[C], C]:
    """Set how often an eval runs a case; the function itself does not change.

    Args:
        repeats: The number of attempts. Default: 1.
        passes: The number of attempts that must pass. Default: all of them.
    """
    _refuse_count("repeats", repeats)
    needed = repeats if passes is None else passes
    _refuse_count("passes", needed)
    if needed > repeats:
        raise ConfigurationError(f"invalid passes={needed}: the case is run {counted(repeats, 'time')}")

    def decorate(function: C) -> C:
        setattr(function, _SETTINGS, (repeats, needed))
        return function

    return decorate


async def run_cases(
    cases: Iterable[Case],
    *,
    repeats: int | None = None,
    parallel: int = 1,
    on_attempt: Callable[[str, Attempt], object] | None = None,
) -> EvalReport:
    """Run cases and return a report.

    A failing case does not end the others.

    Args:
        cases: Functions without parameters, plain or async.
        repeats: Run every case this often, and require all attempts to pass. Default: as each `@case` says.
        parallel: How many attempts run at once.
        on_attempt: A function of the name of a case and an attempt that has just ended.
    """
    if repeats is not None:
        _refuse_count("repeats", repeats)
    _refuse_count("parallel", parallel)
    named = _named(cases)
    plans = [(repeats, repeats) if repeats else getattr(each, _SETTINGS, (1, 1)) for each in named.values()]
    turns = asyncio.Semaphore(parallel)

    async def attempt(name: str, function: Case) -> Attempt:
        async with turns:
            done = await _attempt(function)
        if on_attempt is not None:
            on_attempt(name, done)
        return done

    async with asyncio.TaskGroup() as group:
        tasks = [
            [group.create_task(attempt(name, function)) for _ in range(times)]
            for (name, function), (times, _) in zip(named.items(), plans, strict=True)
        ]
    results = [
        CaseResult(name=name, attempts=tuple([task.result() for task in of_case]), needed=needed)
        for name, of_case, (_, needed) in zip(named, tasks, plans, strict=True)
    ]
    return EvalReport(cases=tuple(results))


def compare_reports(before: EvalReport, after: EvalReport) -> list[str]:
    """Return the notable differences between two reports, one sentence each.

    Args:
        before: The earlier report.
        after: The later report.
    """
    earlier, later = ({case.name: case for case in report.cases} for report in (before, after))
    changes = [f"{name} is new" for name in later if name not in earlier]
    changes += [f"{name} is gone" for name in earlier if name not in later]
    for name in later:
        if name in earlier:
            changes += [f"{name} {change}" for change in _changes(earlier[name], later[name])]
    return changes


def _changes(before: CaseResult, after: CaseResult) -> Iterable[str]:
    if before.skipped or after.skipped:
        if before.skipped != after.skipped:
            yield "is skipped now" if after.skipped else "was skipped before"
        return
    rates = [(each.passes, len(each.taken)) for each in (before, after)]
    if before.passed != after.passed or rates[0][0] * rates[1][1] != rates[1][0] * rates[0][1]:
        verb = f"{'passes' if after.passed else 'fails'} now"
        if before.passed == after.passed:
            verb = f"still {'passes' if after.passed else 'fails'}"
        yield f"{verb}: {rates[1][0]} of {rates[1][1]}, before {rates[0][0]} of {rates[0][1]}"
    endings = [_shares(each) for each in (before, after)]
    if endings[0] != endings[1]:
        yield f"ends differently: {endings[1] or 'no run'}, before {endings[0] or 'no run'}"
    for what, old, new in (("steps", before.steps, after.steps), ("tokens", before.tokens, after.tokens)):
        if abs(new - old) > _NOTABLE * old:
            yield f"went from {old:,.10g} to {new:,.10g} {what}"
    costs = [each.usage.cost / len(each.taken) if each.usage.cost else None for each in (before, after)]
    if costs[0] and costs[1] and abs(costs[1] - costs[0]) > costs[0] / 10:
        yield f"went from {dollars(costs[0])} to {dollars(costs[1])} an attempt"


def _shares(result: CaseResult) -> str:
    """Return how the runs of a case ended, with shares if that varies."""
    total = sum(result.endings.values())
    if len(result.endings) < 2:
        return "".join(result.endings)
    return ", ".join(f"{ending} ({count / total:.0%})" for ending, count in sorted(result.endings.items()))


def _named(cases: Iterable[Case]) -> dict[str, Case]:
    """Return the cases by name; a second one with a name gets a number."""
    named: dict[str, Case] = {}
    for each in cases:
        if not callable(each):
            raise ConfigurationError(f"invalid case {each!r}: use a function without parameters")
        base = getattr(each.func if isinstance(each, partial) else each, "__name__", type(each).__name__)
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigurationError(f"case {base} yields, so a call would not run it: leave out the yield")
        missing = [
            name
            for name, parameter in inspect.signature(each).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if missing:
            raise ConfigurationError(
                f"case {base} needs {', '.join(missing)}: a case has no parameters without a default; "
                "bind them with functools.partial"
            )
        name, number = base, 1
        while name in named:
            number += 1
            name = f"{base}-{number}"
        named[name] = each
    return named


async def _attempt(function: Case) -> Attempt:
    """Run a case once and watch the agents that it runs."""
    states: dict[str, AgentState] = {}

    def keep(state: AgentState) -> None:
        states[state.execution.id] = state  # A resumed run ends more than once.

    watching = on_end.set(keep)
    started, problem, skipped = time.perf_counter(), None, False
    try:
        await _run(function)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest.skip and SystemExit are not of the class Exception.
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        skipped = type(error).__name__ in _SKIPS
        problem = log_line(_reason(function, error, skipped), LONGEST_PROBLEM)
    finally:
        on_end.reset(watching)
    ended = states.values()
    return Attempt(
        passed=problem is None,
        problem=problem,
        skipped=skipped,
        seconds=time.perf_counter() - started,
        steps=sum(state.execution.step_count for state in ended),
        usage=sum((state.execution.usage for state in ended), NO_USAGE),
        endings=tuple([_ending(state) for state in ended]),
    )


def _is_cancelled() -> bool:
    """Return whether the eval itself is cancelled, not just something in a case."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _run(function: Case) -> None:
    """Run a sync function in a thread, or await an async one."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        await function()
        return
    result, error = await run_in_thread(partial(_result, function))
    if error is not None:
        raise error
    if inspect.isawaitable(result):
        await result


def _result(function: Case) -> tuple[object, BaseException | None]:
    """Return the result of a function, or any error that it raised."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


def _reason(function: Case, error: BaseException, skipped: bool) -> str:
    """Return why a case failed: the error, and the line that raised it."""
    while isinstance(error, BaseExceptionGroup):  # The text of a group only counts its errors.
        error = error.exceptions[0]
    text = _text(error).strip().partition("\n\n")[0]  # Our assertions add a whole explanation.
    if skipped:
        return text or "skipped"
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    if not own:
        return f"{kind}{text or 'failed'}"
    # A bare assert has no text: its line says what was expected.
    return f"{kind}{text or own[-1].line or 'failed'} ({Path(own[-1].filename).name}:{own[-1].lineno})"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # An error that cannot say what happened is still a failure.
        return ""


def _ending(state: AgentState) -> str:
    outcome = state.last_continuation_outcome
    end = state.stop_reason or state.status
    return f"{end} by {outcome.resolved_by}" if outcome is not None else str(end)


def _median(numbers: Sequence[float]) -> float:
    return median(numbers) if numbers else 0.0


def _refuse_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"invalid {name}={value!r}: use a whole number of at least 1")
