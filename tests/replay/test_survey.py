"""A survey of many values in one pass counts the same as judging each value separately."""

from __future__ import annotations

import asyncio
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.replay.test_judge import agent, look, six_steps
from tests.replay.test_judge_live import LENIENT, Move, Scripted, moves
from tests.support import examples
from tests.wire.random_runs import Scenario, crashing_scenarios
from whyloop import (
    AgentState,
    CostLimit,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    ExecutionTimeLimit,
    Session,
    StepsLimit,
    TokenUsageLimit,
    Usage,
)
from whyloop.errors import ConfigurationError
from whyloop.replay import Amounts, Recording, Row, Rules, RunProblem, Surveyor, judge, survey
from whyloop.stores import MemoryStore

FAMILIES: list[list[Any]] = [
    [StepsLimit(n) for n in (1, 2, 3, 5, 8)],
    [TokenUsageLimit(n) for n in (1, 50, 100, 150, 300, 900)],
    [ExecutionTimeLimit(s) for s in (0.3, 0.7, 1.2, 2.1, 4.3, 8.9, 15.4)],
    [CumulativeExecutionTimeLimit(s) for s in (0.3, 0.7, 1.2, 2.1, 4.3, 8.9, 15.4)],
    [CostLimit(usd, unknown="allow") for usd in ("0.005", "0.01", "0.02", "0.05")],
    [StepsLimit(4, scope="session"), StepsLimit(2, scope="session")],
    [ErrorPolicy(), ErrorPolicy.retry_all(1)],
]
RULES = [rule for family in FAMILIES for rule in family]


def counted(rule: Any, recordings: list[Recording]) -> Row:
    """Count by judging every run under one rule."""
    executions = [each for run in recordings for each in Rules(rule).judge(run).executions]
    cut = [each for each in executions if each.is_cut]
    saved = sum((each.saved.known for each in cut), Amounts())
    return Row(
        rule,
        len(cut),
        sum(each.recorded.status == "completed" for each in cut),
        sum(each.beyond and each.differs for each in executions),
        saved,
        sum(each.saved.tokens is None for each in cut),
        sum(each.saved.cost is None for each in cut),
    )


def assert_alike(row: Row, wanted: Row) -> None:
    saved = row.saved.seconds
    assert saved == pytest.approx(wanted.saved.seconds, abs=0.3)
    assert row == Row(
        wanted.rule,
        wanted.cut,
        wanted.completed,
        wanted.beyond,
        Amounts(wanted.saved.steps, wanted.saved.tokens, saved, wanted.saved.cost),
        wanted.unknown_tokens,
        wanted.unknown_cost,
    ), wanted.rule


@examples(100)
@given(st.lists(st.lists(moves, max_size=6), min_size=1, max_size=3), st.sampled_from([None, 3]))
def test_one_pass_counts_what_judging_every_value_does(scripts: list[list[Move]], limit: int | None) -> None:
    states = [Scripted(script).run(error_policy=LENIENT, max_steps=limit, timeout=None) for script in scripts]
    result = asyncio.run(survey(states, RULES))
    recordings = [Recording.of(state) for state in states]
    assert result.runs == len(states)
    for row in result.rows:
        assert_alike(row, counted(row.rule, recordings))


@examples(100)
@given(crashing_scenarios)
def test_one_pass_counts_sessions_that_are_resumed_and_crash(scenario: Scenario) -> None:
    async def main() -> None:
        scene = await scenario.scene()
        recording = Recording.of(scene.journal.entries)
        rules = [rule for rule in RULES if isinstance(rule, StepsLimit | TokenUsageLimit | ErrorPolicy)]
        for row in (await survey([recording], rules)).rows:
            wanted = counted(row.rule, [recording])
            assert (row.cut, row.completed, row.saved.steps) == (
                wanted.cut,
                wanted.completed,
                wanted.saved.steps,
            ), row.rule

    asyncio.run(main())


async def test_rows_say_what_each_value_cuts_and_saves() -> None:
    states = await two_runs()
    result = await survey(states, [StepsLimit(6), StepsLimit(2), StepsLimit(1)])
    assert (result.sessions, result.runs, result.completed) == (2, 2, 2)
    assert result.used == Amounts(8, 700, 6.0, Decimal("0.14"))
    assert [(row.rule.limit, row.cut, row.completed) for row in result.rows] == [
        (6, 0, 0),
        (2, 1, 1),
        (1, 2, 2),
    ]
    assert result.rows[1].saved == Amounts(4, 400, 3.0, Decimal("0.08"))


async def two_runs() -> list[AgentState]:
    from whyloop.testing import text

    usage = Usage(input=90, output=10, cost=Decimal("0.02"))
    long = agent(*[look()] * 5, text("done", usage=usage))
    return [await long.run("go"), await agent(look(), "done").run("go")]


async def test_a_store_is_read_with_filters_and_bad_sessions_are_reported() -> None:
    store, calls = MemoryStore(), []
    for number in range(3):
        session = await Session.open(store, agent(*[look()] * number, "done"), f"s{number}", create=True)
        await session.send("go")
    await Session.open(store, agent("done"), "empty", create=True)
    result = await survey(store, [StepsLimit(1)], on_run=lambda: calls.append(1))
    assert (result.sessions, result.runs, result.rows[0].cut) == (4, 3, 2)
    assert len(calls) == 4
    none = await survey(store, [StepsLimit(1)], filters={"status": "stopped"})
    assert none.sessions == 0
    bad: Any = [{"version": 99}, (await two_runs())[0]]
    mixed = await survey(bad, [StepsLimit(1)])
    assert (mixed.sessions, mixed.problem_count, mixed.problems[0].agent_id) == (1, 1, "run 1")


async def test_a_rule_that_breaks_on_one_run_does_not_end_the_survey() -> None:
    class Odd(StepsLimit):
        def used(self, state: AgentState) -> int:
            if state.execution.step_count == 4:
                raise SystemError("odd")
            return super().used(state)

    result = await survey(await two_runs(), [Odd(50), StepsLimit(1)])
    assert (result.runs, [row.cut for row in result.rows]) == (1, [0, 1])
    assert [problem.reason for problem in result.problems] == ["Odd could not be evaluated: SystemError: odd"]


async def test_the_known_part_of_an_unknown_cost_is_counted_as_used() -> None:
    unpriced = Usage(input=90, output=10)
    state = await agent(look(unpriced), look(), look(), "done").run("go")
    result = await survey([state], [StepsLimit(2)])
    assert result.used.cost == Decimal("0.04")
    assert result.rows[0].saved.cost == Decimal("0.02")


async def test_surveys_of_parts_add_up_to_that_of_the_whole() -> None:
    states = await two_runs()
    whole, part, other = Surveyor(RULES), Surveyor(RULES), Surveyor(RULES)
    for surveyor, runs in ((whole, states), (part, states[:1]), (other, states[1:])):
        for run in runs:
            surveyor.add(Recording.of(run))
    other.add(RunProblem("x", "unreadable"))
    part.merge(pickle.loads(pickle.dumps(other)))  # As another process returns it.
    merged, expected = part.result(), whole.result()
    assert merged.rows == expected.rows
    assert (merged.runs, merged.used, merged.problem_count) == (expected.runs, expected.used, 1)


async def test_a_survey_needs_rules() -> None:
    with pytest.raises(ConfigurationError, match="survey needs a rule"):
        await survey([], [])


def test_the_rows_agree_with_judge_on_one_run() -> None:
    state = six_steps()
    (row,) = asyncio.run(survey([state], [StepsLimit(4)])).rows
    assert row.saved == judge(state, StepsLimit(4)).saved


def test_the_rows_do_not_count_a_wrap_up_as_saved_just_as_judge_does_not() -> None:
    wrapped_up = agent(*[look()] * 4, look(), max_steps=4, wrap_up=True).run_sync("go")
    rules = [rule for family in FAMILIES[:5] for rule in family]
    result = asyncio.run(survey([wrapped_up], rules))
    assert result.rows[1].saved.tokens == 200
    for row in result.rows:
        assert_alike(row, counted(row.rule, [Recording.of(wrapped_up)]))
