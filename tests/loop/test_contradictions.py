"""Contradictions in the options of an agent are refused when it is built, with both sides named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import echo, scripted
from whyloop import (
    AgentBuilder,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    ErrorPolicyCriterion,
    ExecutionTimeLimit,
    StepsLimit,
    StopRequestedCheck,
    TokenUsageLimit,
    ToolCallPresenceCheck,
    tool,
)
from whyloop.errors import ConfigurationError
from whyloop.testing import ScriptedModel


def refused(*words: str, **options: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        scripted(**options)
    for word in words:
        assert word in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_cumulative_and_a_wall_clock_limit_exclude_each_other() -> None:
    refused(
        "ExecutionTimeLimit", "CumulativeExecutionTimeLimit", "exclude", timeout=300, cumulative_timeout=30
    )
    refused(
        "ExecutionTimeLimit",
        "CumulativeExecutionTimeLimit",
        timeout=300,
        criteria=CumulativeExecutionTimeLimit(30),
    )
    refused(
        "ExecutionTimeLimit",
        "CumulativeExecutionTimeLimit",
        criteria=[CumulativeExecutionTimeLimit(30), ExecutionTimeLimit(300)],
    )


def test_the_builder_refuses_the_same() -> None:
    builder = AgentBuilder.base().with_model(ScriptedModel([])).with_timeout(5).with_cumulative_timeout(5)
    with pytest.raises(ConfigurationError, match="exclude"):
        builder.build()


def test_three_time_limits_are_refused_with_a_reason_too() -> None:
    refused(
        "ExecutionTimeLimit",
        "CumulativeExecutionTimeLimit",
        timeout=5,
        cumulative_timeout=5,
        criteria=ExecutionTimeLimit(100, scope="session"),
    )


@pytest.mark.parametrize(
    "limit",
    [StepsLimit, TokenUsageLimit, ExecutionTimeLimit, CumulativeExecutionTimeLimit],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_limit_that_another_always_beats_can_never_matter(limit: Any, order: int) -> None:
    both = [limit(5), limit(10)][::order]
    refused(f"{limit.__name__}(5)", f"{limit.__name__}(10)", "never matter", criteria=both)


def test_the_same_limit_twice_can_never_matter() -> None:
    refused("StepsLimit(5)", "never matter", criteria=[StepsLimit(5), StepsLimit(5)])


def test_a_keyword_and_a_criterion_that_contradict_each_other_are_refused() -> None:
    refused("StepsLimit(5)", "StepsLimit(10)", max_steps=5, criteria=StepsLimit(10))


def test_a_limit_for_an_execution_above_that_of_its_session_can_never_matter() -> None:
    refused(
        "StepsLimit(10)",
        'StepsLimit(5, scope="session")',
        criteria=[StepsLimit(10), StepsLimit(5, scope="session")],
    )


def test_a_default_limit_above_that_of_the_session_just_steps_aside() -> None:
    agent = scripted(criteria=StepsLimit(5, scope="session"))
    limits = [c for c in agent.criteria.criteria if isinstance(c, StepsLimit)]
    assert [limit.scope for limit in limits if limit.limit <= 5] == ["session"]


def test_a_limit_for_an_execution_below_that_of_its_session_makes_sense() -> None:
    agent = scripted(max_steps=5, criteria=StepsLimit(10, scope="session"))
    assert len([c for c in agent.criteria.criteria if isinstance(c, StepsLimit)]) == 2


@pytest.mark.parametrize("policy", [ErrorPolicy.retry_all(0), ErrorPolicy.retry_tool_errors(0)])
def test_a_retry_policy_with_zero_retries_is_refused(policy: ErrorPolicy) -> None:
    refused("retr", "max_retries=0", error_policy=policy)
    refused("retr", "max_retries=0", criteria=ErrorPolicyCriterion(policy))


def test_a_policy_of_one_retried_kind_with_zero_retries_is_refused() -> None:
    refused("retr", "max_retries=0", error_policy=ErrorPolicy().with_handling("timeout", "retry"))


@pytest.mark.parametrize("kind", [ErrorPolicyCriterion, StopRequestedCheck, ToolCallPresenceCheck])
def test_a_check_that_is_there_twice_is_refused(kind: Any) -> None:
    refused(kind.__name__, "contradict", criteria=[kind(), kind()])


def test_a_policy_by_keyword_and_by_criterion_is_refused() -> None:
    refused(
        "ErrorPolicyCriterion",
        "contradict",
        error_policy=ErrorPolicy.retry_all(),
        criteria=ErrorPolicyCriterion(),
    )


def test_two_tools_of_one_name_are_refused() -> None:
    @tool(name="echo")
    def other() -> str:
        return ""

    refused("'echo'", "two tools", tools=[echo, other])
    builder = AgentBuilder.base().with_model(ScriptedModel([])).with_tools(echo).with_tools(echo)
    with pytest.raises(ConfigurationError, match="two tools are named 'echo'"):
        builder.build()


@pytest.mark.parametrize("option", ["max_steps", "max_tokens", "timeout", "cumulative_timeout"])
@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True, "many"])
def test_a_limit_that_makes_no_sense_is_refused_when_the_agent_is_built(option: str, bad: Any) -> None:
    refused("number", **{option: bad})


def test_a_finish_reason_that_does_not_exist_is_refused() -> None:
    refused("'done'", "length", finish_reasons=["done"])


def test_a_clock_beside_an_own_world_is_refused() -> None:
    from tests.support import FixedWorld
    from whyloop import Agent
    from whyloop.testing import FakeClock

    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match=r"clock.*world|world.*clock"):
        Agent(model, clock=FakeClock(), world=FixedWorld(model, FakeClock()))
