"""Curves over the values of a limit: the knee, the recommended value, and the sentence with its numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replay.test_judge import agent, look
from whyloop import AgentState
from whyloop.errors import ConfigurationError
from whyloop.replay import Curve, Survey, curves_of, rules_for, survey, tune


async def runs() -> list[AgentState]:
    """Runs of 2 to 9 steps that complete, and two that a limit stops after 30."""
    done = [agent(*[look()] * steps, "done") for steps in range(1, 9)]
    stuck = [agent(*[look()] * 40, max_steps=30) for _ in range(2)]
    return [await each.run("go") for each in (*done, *stuck)]


async def curve(name: str, **options: Any) -> Curve:
    (found,) = await tune(await runs(), [name], **options)
    return found


async def test_the_lowest_value_that_keeps_every_completed_run_is_recommended() -> None:
    steps = await curve("max_steps")
    assert steps.recommended == 9
    assert steps.sentence == (
        "max_steps=9 keeps every completed run and saves 44 % of tokens; it would have cut 2 of 10 runs."
    )
    values = [row.rule.limit for row in steps.rows]
    assert values == list(range(1, 31))  # The recorded limit is the first that cuts nothing.
    assert [row.cut for row in steps.rows[:3]] == [10, 9, 8]
    assert [row.completed for row in steps.rows[:9]] == [8, 7, 6, 5, 4, 3, 2, 1, 0]


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
    completed = [await agent(look(), "done").run("go")]
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


async def test_the_period_is_named_in_the_sentence() -> None:
    found: Survey = await survey(await runs(), rules_for(["max_steps"]))
    (steps,) = curves_of(found, period="of the last 30 days")
    assert "keeps every completed run of the last 30 days and saves 44 % of tokens" in steps.sentence
    assert steps.share(steps.rows[0], found.used) == pytest.approx(0.85, abs=0.1)


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="invalid limit 'steps': choose from max_steps"):
        rules_for(["steps"])
