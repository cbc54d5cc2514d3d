"""Curves over the values of a limit: the knee, the recommended value, and the sentence with its numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.replay.test_judge import agent, look
from whyloop import AgentState
from whyloop.errors import ConfigurationError
from whyloop.replay import Curve, Survey, curves_of, rules_for, survey, tune
from whyloop.replay.interval import share_interval
from whyloop.replay.tuning import LEAST_RUNS


async def runs() -> list[AgentState]:
    """Four runs each of 2 to 9 steps that complete, and eight that a limit stops after 30."""
    done = [agent(*[look()] * steps, "done") for steps in range(1, 9) for _ in range(4)]
    stuck = [agent(*[look()] * 40, max_steps=30) for _ in range(8)]
    return [await each.run("go") for each in (*done, *stuck)]


async def curve(name: str, **options: Any) -> Curve:
    (found,) = await tune(await runs(), [name], **options)
    return found


async def test_the_lowest_value_that_keeps_every_completed_run_is_recommended() -> None:
    steps = await curve("max_steps")
    assert steps.recommended == 9
    assert steps.sentence == (
        "max_steps=9 keeps every completed run and saves 44 % of tokens; it would have cut 8 of 40 runs. "
        "Of future runs that would complete, it may cut 0.0 % to 11 % (95 % interval)."
    )
    values = [row.rule.limit for row in steps.rows]
    assert values == list(range(1, 31))  # The recorded limit is the first that cuts nothing.
    assert [row.cut for row in steps.rows[:3]] == [40, 36, 32]
    assert [row.completed for row in steps.rows[:9]] == [32, 28, 24, 20, 16, 12, 8, 4, 0]


async def test_a_share_of_completed_runs_may_be_given_up() -> None:
    steps = await curve("max_steps", keep=0.75)
    assert steps.recommended == 7
    assert steps.sentence.startswith("max_steps=7 keeps 75 % of completed runs and saves 4")
    with pytest.raises(ConfigurationError, match="invalid keep 75"):
        await curve("max_steps", keep=75)


async def test_a_limit_on_time_saves_time_and_one_on_cost_saves_cost() -> None:
    timeout = await curve("timeout")
    assert (timeout.recommended, timeout.measure) == (9.0, "seconds")
    assert "saves 44 % of the time" in timeout.sentence
    cost = await curve("max_cost")
    assert cost.measure == "cost"
    assert cost.recommended is not None
    assert "of the cost" in cost.sentence


async def test_the_knee_is_where_higher_values_keep_few_more_runs() -> None:
    steps = await curve("max_steps")
    assert steps.knee == 9


async def test_without_anything_to_save_the_sentence_says_so() -> None:
    completed = [await agent(look(), "done").run("go") for _ in range(LEAST_RUNS)]
    (steps,) = await tune(completed, ["max_steps"])
    assert steps.recommended is None
    assert steps.sentence == "max_steps: no value saves anything without cutting completed runs."
    unknown = [await agent("done").run("go")]
    sentences = [each.sentence for each in await tune(unknown, ["max_cost", "timeout", "max_tokens"])]
    assert sentences == [
        "max_cost: no cost is known, so no value can be judged.",
        "timeout: no time is known, so no value can be judged.",
        "max_tokens: no tokens are known, so no value can be judged.",
    ]
    (nothing,) = await tune([], ["timeout"])
    assert nothing.sentence == "timeout: there are no runs to judge."


@pytest.mark.parametrize("count", [1, LEAST_RUNS - 1])
async def test_a_few_completed_runs_are_not_enough_for_a_recommendation(count: int) -> None:
    completed = [await agent(look(), "done").run("go") for _ in range(count)]
    stopped = [await agent(*[look()] * 9, max_steps=8).run("go")]
    (steps,) = await tune([*completed, *stopped], ["max_steps"])
    assert (steps.recommended, steps.interval) == (None, None)
    runs = "1 completed run" if count == 1 else "29 completed runs"
    assert steps.sentence == f"max_steps: no recommendation from {runs}: it takes at least 30."
    (steps,) = await tune([*completed, *stopped, *[completed[0]] * 29], ["max_steps"])
    assert steps.recommended == 2


async def test_a_recommendation_has_its_interval() -> None:
    steps = await curve("max_steps", keep=0.75)
    assert steps.interval == share_interval(8, 32)


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [
        # The exact intervals of tables; with a count of zero, 1 - 0.025 ** (1 / total).
        (0, 10, 0.0, 0.30850),
        (1, 10, 0.00253, 0.44502),
        (5, 10, 0.18709, 0.81291),
        (10, 10, 0.69150, 1.0),
        (0, 30, 0.0, 0.11570),
        (2, 1000, 0.00024, 0.00721),
    ],
)
def test_the_interval_of_a_share_is_the_exact_one(count: int, total: int, low: float, high: float) -> None:
    assert share_interval(count, total) == pytest.approx((low, high), abs=1e-5)


def test_the_interval_contains_the_share_of_the_next_runs_as_often_as_it_says() -> None:
    """The value is the largest of some random runs: how many of all runs would it cut?"""
    random, held = Random(7), 0
    for _ in range(2_000):
        longest = max(random.random() for _ in range(30))
        held += 1 - longest <= share_interval(0, 30)[1]
    assert 0.96 < held / 2_000 < 0.99  # One side of an interval of 95 %.


async def test_the_period_is_named_in_the_sentence() -> None:
    found: Survey = await survey(await runs(), rules_for(["max_steps"]))
    (steps,) = curves_of(found, period="of the last 30 days")
    assert "keeps every completed run of the last 30 days and saves 44 % of tokens" in steps.sentence
    assert steps.share(steps.rows[0], found.used) == pytest.approx(0.85, abs=0.1)


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="invalid limit 'steps': choose from max_steps"):
        rules_for(["steps"])
