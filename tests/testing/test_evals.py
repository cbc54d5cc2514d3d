"""Evals: cases are run, watched and counted, and two reports are compared."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from unittest import SkipTest

import pytest

from whyloop import Agent, StepsLimit, Usage, tool
from whyloop.errors import ConfigurationError
from whyloop.testing import (
    Attempt,
    CaseResult,
    EvalReport,
    ScriptedModel,
    assert_stopped,
    call,
    case,
    compare_reports,
    run_cases,
    text,
)


@tool
def echo(what: str) -> str:
    """Return the text."""
    return what


def agent(*replies: object, **settings: object) -> Agent:
    return Agent(ScriptedModel(replies), [echo], **settings)  # type: ignore[arg-type]


def result(*attempts: Attempt, name: str = "one", needed: int = 1) -> CaseResult:
    return CaseResult(name=name, attempts=attempts, needed=needed)


def attempt(
    passed: bool = True, *, steps: int = 2, tokens: int = 100, end: str = "completed by A", cost: str = "0"
) -> Attempt:
    usage = Usage(input=tokens, cost=Decimal(cost))
    return Attempt(passed=passed, steps=steps, usage=usage, endings=(end,), seconds=1.0)


async def only(function: Callable[[], object]) -> Attempt:
    (done,) = (await run_cases([function])).cases[0].attempts
    return done


async def test_an_attempt_says_what_its_runs_used_and_how_they_ended() -> None:
    async def two_runs() -> None:
        await agent(call("echo", {"what": "a"}, usage=10), text("done", usage=5)).run("one")
        await agent(call("echo", {"what": "a"}), max_steps=1).run("two")

    done = await only(two_runs)
    assert done.passed
    assert done.steps == 3
    assert done.usage.total == 15
    assert done.endings == ("completed by ToolCallPresenceCheck", "steps_limit by StepsLimit")


async def test_a_plain_function_may_run_an_agent_and_is_watched_too() -> None:
    def plain() -> None:
        assert agent("yes").run_sync("?").last_response == "yes"

    done = await only(plain)
    assert (done.passed, done.steps) == (True, 1)


async def test_a_run_that_is_resumed_counts_once() -> None:
    async def resumed() -> None:
        state = await agent(call("echo", {"what": "a"}), max_steps=1).run("go")
        await agent("done").resume(state)

    done = await only(resumed)
    assert done.steps == 2
    assert done.endings == ("completed by ToolCallPresenceCheck",)


async def test_an_assertion_without_a_text_is_reported_with_its_line() -> None:
    def fails() -> None:
        raise AssertionError

    done = await only(fails)
    assert not done.passed
    assert done.problem is not None
    assert done.problem.startswith("raise AssertionError (test_evals.py:")


async def test_a_failed_assertion_about_a_decision_names_the_line_of_the_case() -> None:
    async def wrong_rule() -> None:
        assert_stopped(await agent("done").run("?"), by=StepsLimit)

    done = await only(wrong_rule)
    assert done.problem is not None
    assert done.problem.startswith("ToolCallPresenceCheck decided, not StepsLimit")
    assert "test_evals.py:" in done.problem
    assert "__init__.py" not in done.problem


@pytest.mark.parametrize("error", [SystemExit(3), KeyError("x"), RuntimeError("sk-ant-api03-" + "a" * 40)])
async def test_any_error_fails_its_attempt_alone_and_shows_no_secret(error: BaseException) -> None:
    def fails() -> None:
        raise error

    def passes() -> None:
        pass

    report = await run_cases([fails, passes])
    assert [each.passed for each in report.cases] == [False, True]
    assert not report.passed
    problem = report.cases[0].problem
    assert problem is not None
    assert problem.startswith(f"{type(error).__name__}: ")
    assert "aaaa" not in problem


async def test_a_case_that_skips_itself_neither_passes_nor_fails() -> None:
    def by_unittest() -> None:
        raise SkipTest("no key")

    def by_pytest() -> None:
        pytest.skip("no key")

    report = await run_cases([by_unittest, by_pytest])
    assert report.passed
    assert [(each.skipped, each.passes, each.problem) for each in report.cases] == [(True, 0, "no key")] * 2


@pytest.mark.parametrize(("passes", "good"), [(2, True), (3, False)])
async def test_a_case_needs_as_many_passes_as_it_says(passes: int, good: bool) -> None:
    outcomes = iter([True, False, True])

    @case(repeats=3, passes=passes)
    def varies() -> None:
        assert next(outcomes)

    (done,) = (await run_cases([varies])).cases
    assert (done.passes, len(done.attempts), done.passed) == (2, 3, good)


async def test_repeats_of_the_run_replace_those_of_the_case() -> None:
    @case(repeats=3)
    def each_time() -> None:
        pass

    (done,) = (await run_cases([each_time], repeats=2)).cases
    assert (len(done.attempts), done.needed) == (2, 2)


async def test_attempts_run_at_once_up_to_the_number_given_and_watch_only_their_own_runs() -> None:
    running, most = 0, 0
    together = asyncio.Event()

    async def waits() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            together.set()
        await together.wait()
        await agent("done").run("?")
        running -= 1

    (done,) = (await run_cases([waits], repeats=6, parallel=3)).cases
    assert most == 3
    assert [each.steps for each in done.attempts] == [1] * 6


async def test_sync_functions_at_once_have_their_own_threads() -> None:
    barrier = threading.Barrier(2, timeout=30)
    (done,) = (await run_cases([barrier.wait], repeats=2, parallel=2)).cases
    assert done.passed


async def test_more_plain_functions_than_a_pool_has_threads_run_at_once() -> None:
    barrier = threading.Barrier(40, timeout=30)
    (done,) = (await run_cases([barrier.wait], repeats=40, parallel=40)).cases
    assert done.passed


async def test_a_plain_function_that_never_returns_keeps_nothing_from_ending() -> None:
    threads: list[threading.Thread] = []
    started, forever = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hangs() -> None:
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(started.set)
        forever.wait()

    running = asyncio.create_task(run_cases([hangs]))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    forever.set()
    assert threads[0].daemon


async def test_a_case_that_waits_for_something_cancelled_fails_alone() -> None:
    async def waits() -> None:
        other = asyncio.ensure_future(asyncio.sleep(0))
        other.cancel()
        await other

    async def passes() -> None:
        pass

    report = await run_cases([waits, passes])
    assert [each.passed for each in report.cases] == [False, True]
    assert (report.cases[0].problem or "").startswith("CancelledError: await other (test_evals.py:")


async def test_an_error_that_cannot_say_what_happened_fails_its_attempt_alone() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    def fails() -> None:
        raise SilentError

    done = await only(fails)
    assert (done.problem or "").startswith("SilentError: raise SilentError (test_evals.py:")


async def test_a_group_of_errors_is_reported_as_the_first_of_them() -> None:
    async def fails() -> None:
        raise ExceptionGroup("2 errors", [ExceptionGroup("1 error", [ValueError("no lamp")]), KeyError()])

    assert ((await only(fails)).problem or "").startswith("ValueError: no lamp")


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_case_that_yields_is_refused_because_a_call_would_not_run_it(kind: str) -> None:
    def plain() -> Iterator[None]:
        yield

    async def asynchronous() -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigurationError, match="yields"):
        await run_cases([plain if kind == "plain" else asynchronous])


async def test_the_awaitable_that_a_case_returns_is_awaited() -> None:
    class Later:
        def __await__(self) -> Iterator[None]:
            raise AssertionError("awaited")

    assert ((await only(Later)).problem or "").startswith("awaited")


async def test_the_problem_is_the_statement_that_failed_without_the_whole_explanation() -> None:
    async def hasty() -> None:
        assert_stopped(await Agent(ScriptedModel(["Hello."])).run("Hi"), reason="steps_limit")

    problem = (await only(hasty)).problem or ""
    assert problem.startswith("stopped for completed, not for steps_limit (test_evals.py:")


def test_skipped_attempts_neither_count_nor_explain_a_failure() -> None:
    skip, good, bad = (
        Attempt(passed=False, skipped=True, problem="no key"),
        Attempt(passed=True),
        Attempt(passed=False, problem="no lamp"),
    )
    assert result(skip, good, good, needed=3).passed
    assert not result(skip, good, bad, needed=3).passed
    assert not result(skip, good, bad, needed=2).passed
    assert result(skip, good, bad, needed=1).passed
    assert result(skip, good, bad, needed=3).problem == "no lamp"


async def test_cases_with_the_same_name_are_numbered() -> None:
    def ask(number: int) -> None:
        assert number

    report = await run_cases([functools.partial(ask, 1), functools.partial(ask, 0)])
    assert [(each.name, each.passed) for each in report.cases] == [("ask", True), ("ask-2", False)]


async def test_a_case_with_parameters_is_refused_before_anything_runs() -> None:
    def needs(model: object) -> None:
        raise AssertionError(model)

    with pytest.raises(ConfigurationError, match="case needs needs model"):
        await run_cases([needs])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="invalid case 3"):
        await run_cases([3])  # type: ignore[list-item]


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
async def test_counts_that_are_not_positive_whole_numbers_are_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match="invalid repeats="):
        case(repeats=count)
    with pytest.raises(ConfigurationError, match="invalid parallel="):
        await run_cases([], parallel=count)


def test_more_passes_than_repeats_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"invalid passes=3: the case is run 2 times"):
        case(repeats=2, passes=3)


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = EvalReport(cases=(result(attempt(cost="0.25"), attempt(False), needed=2),))
    report.write(tmp_path / "report.json")
    assert EvalReport.read(tmp_path / "report.json") == report
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not a report"),
        ('{"cases": 3}', "is not a report"),
        ('{"cases": [], "version": 2}', "version 2"),
    ],
)
def test_a_file_that_is_not_a_report_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(ConfigurationError, match=problem):
        EvalReport.read(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ([attempt()], [attempt()], []),
        ([attempt()] * 2, [attempt()] * 3, []),
        ([attempt()], [attempt(False)], ["one fails now: 0 of 1, before 1 of 1"]),
        ([attempt(False)], [attempt()], ["one passes now: 1 of 1, before 0 of 1"]),
        ([attempt(steps=20)], [attempt(steps=21)], []),
        ([attempt(steps=2)], [attempt(steps=4)], ["one went from 2 to 4 steps"]),
        ([attempt(tokens=100)], [attempt(tokens=50)], ["one went from 100 to 50 tokens"]),
        ([attempt(cost="0.1")], [attempt(cost="0.2")], ["one went from $0.10 to $0.20 an attempt"]),
        (
            [attempt()],
            [attempt(end="steps_limit by StepsLimit")],
            ["one ends differently: steps_limit by StepsLimit, before completed by A"],
        ),
        (
            [attempt()] * 2,
            [attempt(), attempt(end="error by B")],
            ["one ends differently: completed by A (50%), error by B (50%), before completed by A"],
        ),
        ([attempt()], [Attempt(passed=False, skipped=True)], ["one is skipped now"]),
    ],
)
def test_a_comparison_names_what_is_worth_a_look(
    before: list[Attempt], after: list[Attempt], changes: list[str]
) -> None:
    reports = [EvalReport(cases=(result(*attempts),)) for attempts in (before, after)]
    assert compare_reports(*reports) == changes


def test_a_comparison_distinguishes_new_failures_from_a_changed_rate() -> None:
    def change(before: CaseResult, after: CaseResult) -> list[str]:
        return compare_reports(EvalReport(cases=(before,)), EvalReport(cases=(after,)))

    half = (attempt(), attempt(False))
    assert change(result(attempt(), attempt()), result(*half)) == ["one still passes: 1 of 2, before 2 of 2"]
    assert change(result(*half), result(*half, needed=2)) == ["one fails now: 1 of 2, before 1 of 2"]


def test_a_comparison_names_new_cases_and_those_that_are_gone() -> None:
    before, after = (EvalReport(cases=(result(attempt(), name=name),)) for name in ("old", "new"))
    assert compare_reports(before, after) == ["new is new", "old is gone"]
