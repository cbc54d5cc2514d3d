"""Comparing two sets of rules over runs, and two runs step by step."""

from __future__ import annotations

import pytest

from tests.replay.test_judge import agent, look, six_steps
from whyloop import AgentState, ErrorPolicy, StepsLimit, TokenUsageLimit
from whyloop.errors import ConfigurationError
from whyloop.replay import compare, diff, judge
from whyloop.testing import call


def test_two_sets_of_rules_are_compared_over_runs() -> None:
    short = agent(look(), "done").run_sync("go")
    found = compare([six_steps(), short], StepsLimit(4), [StepsLimit(20), TokenUsageLimit(250)])
    assert [each.differs for each in found] == [True, False]
    assert found[0].first.stopped_at == 4
    assert (found[0].second.stopped_at, found[0].second.stop_reason) == (3, "token_limit")
    assert "stopped at step 4 (steps_limit) by StepsLimit" in str(found[0])


def test_the_first_step_where_decisions_differ_is_named_with_the_reason() -> None:
    long, limited = six_steps(), agent(*[look()] * 3, max_steps=3).run_sync("go")
    found = diff(long, limited)
    assert found is not None
    assert (found.step, found.rules) == (3, ("StepsLimit",))
    assert str(found) == (
        "Step 3: the first run continued by ToolCallPresenceCheck: The results of 1 tool call await the "
        "model, the second stopped (steps_limit) by StepsLimit: Limit reached: 3 of 3 steps used"
    )
    assert found.to_dict()["step"] == 3


def test_a_rule_that_decides_otherwise_counts_also_where_the_outcome_is_the_same() -> None:
    two_calls = agent(call("look", {"at": "a"}), "done")
    retried = agent(
        call("break_it", {}), "done", error_policy=ErrorPolicy.retry_tool_errors(), finish_reasons=("length",)
    )
    assert diff(two_calls.run_sync("go"), retried.run_sync("go")) is None  # Retrying a tool allows too.
    shorter = agent(look(), "done").run_sync("go")
    found = diff(shorter, six_steps())
    assert found is not None
    assert found.step == 2
    assert "the first run stopped (completed)" in found.reason


def test_a_run_does_not_differ_from_itself_and_differs_from_its_replay() -> None:
    state = six_steps()
    assert diff(state, AgentState.from_dict(state.to_dict())) is None
    found = diff(state, judge(state, StepsLimit(2)).state)
    assert found is not None
    assert found.step == 2


def test_a_run_without_a_step_cannot_be_compared() -> None:
    with pytest.raises(ConfigurationError, match="no step to compare"):
        diff(AgentState(), six_steps())
