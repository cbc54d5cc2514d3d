"""The builder and the agent's keywords: two ways to build the same agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import broken, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentBuilder,
    Backoff,
    ContinuationCriteria,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    ErrorPolicyCriterion,
    ExecutionTimeLimit,
    FinishReasonCheck,
    Hook,
    ModelRequest,
    ModelResponse,
    StepsLimit,
    StopRequestedCheck,
    TokenUsageLimit,
    ToolCallPresenceCheck,
)
from whyloop.errors import ConfigurationError, RateLimitError
from whyloop.events import AgentEvent
from whyloop.testing import FakeClock, ScriptedModel, assert_stopped, call, text


def names(agent: Agent) -> list[str]:
    return [type(criterion).__name__ for criterion in agent.criteria.criteria]


def one(agent: Agent, kind: type) -> Any:
    """The agent's only criterion of a kind."""
    (found,) = (criterion for criterion in agent.criteria.criteria if type(criterion) is kind)
    return found


def builder(*replies: Any) -> AgentBuilder:
    return AgentBuilder.base().with_model(ScriptedModel(replies))


MAKERS: list[Callable[[], Agent]] = [lambda: builder().build(), lambda: Agent(ScriptedModel([]))]


@pytest.mark.parametrize("make", MAKERS, ids=["builder", "agent"])
def test_the_defaults_are_twenty_steps_five_minutes_and_no_errors(make: Callable[[], Agent]) -> None:
    agent = make()
    assert sorted(names(agent)) == [
        "ApprovalRequired",
        "ErrorPolicyCriterion",
        "ExecutionTimeLimit",
        "FinishReasonCheck",
        "StepsLimit",
        "StopRequestedCheck",
        "ToolCallPresenceCheck",
    ]
    assert one(agent, StepsLimit).limit == 20
    assert one(agent, ExecutionTimeLimit).limit == 300
    assert one(agent, ErrorPolicyCriterion).policy == ErrorPolicy.stop_on_any_error()
    assert [r.value for r in one(agent, FinishReasonCheck).reasons] == ["length", "content_filter"]


POLICY = ErrorPolicy.retry_all(2)


@pytest.mark.parametrize(
    ("built", "keywords", "kind", "attribute", "value"),
    [
        (builder().with_max_steps(7), {"max_steps": 7}, StepsLimit, "limit", 7),
        (builder().with_max_tokens(9), {"max_tokens": 9}, TokenUsageLimit, "limit", 9),
        (builder().with_timeout(1.5), {"timeout": 1.5}, ExecutionTimeLimit, "limit", 1.5),
        (
            builder().with_cumulative_timeout(5),
            {"cumulative_timeout": 5},
            CumulativeExecutionTimeLimit,
            "limit",
            5,
        ),
        (
            builder().with_finish_reasons("stop"),
            {"finish_reasons": ["stop"]},
            FinishReasonCheck,
            "reasons",
            ("stop",),
        ),
        (
            builder().with_error_policy(POLICY),
            {"error_policy": POLICY},
            ErrorPolicyCriterion,
            "policy",
            POLICY,
        ),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_each_method_of_the_builder_is_the_same_as_its_keyword(
    built: AgentBuilder, keywords: dict[str, Any], kind: type, attribute: str, value: Any
) -> None:
    for agent in (built.build(), Agent(ScriptedModel([]), **keywords)):
        assert getattr(one(agent, kind), attribute) == value


def test_a_cumulative_limit_is_instead_of_the_wall_clock_limit() -> None:
    for agent in (
        builder().with_cumulative_timeout(5).build(),
        scripted(cumulative_timeout=5),
        scripted(criteria=CumulativeExecutionTimeLimit(5)),
    ):
        assert "ExecutionTimeLimit" not in names(agent)


@pytest.mark.parametrize(
    "reasons",
    ["length", ["length"], ("length",), iter(["length"])],
    ids=["text", "list", "tuple", "iterator"],
)
def test_finish_reasons_may_be_one_or_several(reasons: Any) -> None:
    assert one(scripted(finish_reasons=reasons), FinishReasonCheck).reasons == ("length",)


def test_a_limit_can_be_switched_off() -> None:
    agent = scripted(max_steps=None, timeout=None, finish_reasons=())
    assert sorted(names(agent)) == [
        "ApprovalRequired",
        "ErrorPolicyCriterion",
        "StopRequestedCheck",
        "ToolCallPresenceCheck",
    ]


async def test_with_model_and_tools_and_instructions_make_a_running_agent() -> None:
    agent = (
        builder(call("echo", {"value": "x"}), "done")
        .with_tools(echo, broken)
        .with_instructions("Be brief.")
        .with_clock(FakeClock())
        .build()
    )
    state = await agent.run("go")
    assert state.last_response == "done"
    assert [made.name for made in agent.tools] == ["echo", "broken"]
    assert requests_of(agent)[0].instructions == "Be brief."


def test_tools_and_criteria_and_handlers_add_up() -> None:
    built = builder().with_tools(echo).with_tools(broken).with_tools().build()
    assert [made.name for made in built.tools] == ["echo", "broken"]
    agent = builder().add_criteria(TokenUsageLimit(5)).add_criteria(lambda state: True, StepsLimit(3)).build()
    assert {"TokenUsageLimit", "FunctionCriterion", "StepsLimit"} <= set(names(agent))


async def test_with_clock_sets_the_clock() -> None:
    clock = FakeClock()
    clock.advance(1000)
    state = await builder("done").with_clock(clock).build().run("go")
    assert state.state_info.started_at == clock.now()


async def test_with_event_handler_takes_any_number() -> None:
    first: list[AgentEvent] = []
    second: list[AgentEvent] = []
    third: list[AgentEvent] = []
    agent = builder("done").with_event_handler(first.append, second.append).with_event_handler(third.append)
    await agent.build().run("go")
    assert first == second == third
    assert len(first) > 0


async def test_with_backoff_sets_the_waits() -> None:
    clock = FakeClock()
    agent = (
        builder(RateLimitError(), "done")
        .with_clock(clock)
        .with_error_policy(ErrorPolicy.retry_all())
        .with_backoff(Backoff(base=9, jitter=0))
        .build()
    )
    await agent.run("go")
    assert clock.sleeps == [9]


async def test_with_hooks_adds_hooks() -> None:
    asked: list[int] = []

    class Count(Hook):
        async def around_model(self, request: Any, context: Any, ask: Any) -> Any:
            asked.append(len(request.messages))
            return await ask(request)

    await builder("done").with_hooks(Count()).with_hooks(Count()).build().run("go")
    assert asked == [1, 1]


def test_a_builder_can_branch_off() -> None:
    base = builder()
    short, long = base.with_max_steps(1), base.with_max_steps(100)
    assert one(short.build(), StepsLimit).limit == 1
    assert one(long.build(), StepsLimit).limit == 100
    assert one(base.build(), StepsLimit).limit == 20


def test_a_builder_without_a_model_says_so() -> None:
    with pytest.raises(ConfigurationError, match="with_model"):
        AgentBuilder.base().build()


def test_the_name_of_a_model_is_refused_with_a_hint() -> None:
    name: Any = "gpt-4"
    with pytest.raises(ConfigurationError, match="gpt-4"):
        Agent(name)


def test_a_model_that_returns_its_answer_is_refused_when_the_agent_is_built() -> None:
    class Returns:
        async def respond(self, request: ModelRequest) -> ModelResponse:
            return ModelResponse("hello")

    model: Any = Returns()
    with pytest.raises(ConfigurationError, match="yield"):
        Agent(model)


def test_the_class_of_a_model_is_refused_with_a_hint() -> None:
    model: Any = ScriptedModel
    with pytest.raises(ConfigurationError, match=r"pass an instance, ScriptedModel\("):
        Agent(model)


@pytest.mark.parametrize("model", [None, 42, object()])
def test_an_object_that_is_not_a_model_is_refused(model: Any) -> None:
    with pytest.raises(ConfigurationError, match="invalid model"):
        Agent(model)


@pytest.mark.parametrize("policy", ["retry", 3, ErrorPolicy.retry_all])
def test_an_object_that_is_not_a_policy_is_refused(policy: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"use an ErrorPolicy, such as ErrorPolicy\.retry_tool_errors\(\)"
    ):
        scripted(error_policy=policy)


def test_criteria_may_be_one_or_several_or_a_set_of_criteria() -> None:
    guard = TokenUsageLimit(5)
    for given in (guard, [guard], (guard,), ContinuationCriteria(guard)):
        assert one(scripted(criteria=given), TokenUsageLimit) is guard


async def test_own_criteria_replace_the_defaults_of_their_kind() -> None:
    own = [
        StepsLimit(2),
        ExecutionTimeLimit(10),
        FinishReasonCheck("stop"),
        StopRequestedCheck(),
        ToolCallPresenceCheck(),
    ]
    agent = scripted(text("done"), criteria=own)
    for criterion in own:
        assert one(agent, type(criterion)) is criterion
    assert_stopped(await agent.run("go"), reason="finish_reason")


def test_a_limit_for_the_session_keeps_the_default_for_the_execution() -> None:
    agent = scripted(criteria=[StepsLimit(500, scope="session")])
    assert names(agent).count("StepsLimit") == 2


async def test_a_limit_for_the_session_ends_a_long_conversation() -> None:
    agent = scripted("one", "two", criteria=StepsLimit(2, scope="session"))
    first = await agent.run("go")
    assert_stopped(first, reason="completed")
    second = await agent.run("go", state=first)
    assert_stopped(second, reason="completed")  # An answer on the last step that is allowed.
    third = await agent.run("go", state=second)
    assert_stopped(third, reason="steps_limit", by=StepsLimit)
    assert (third.execution.step_count, len(requests_of(agent))) == (0, 2)
    assert third.steps == second.steps


def test_with_name_and_stop_grace_set_them() -> None:
    agent = builder().with_name("support").with_stop_grace(0.5).build()
    assert (agent.name, agent._setup.stop_grace) == ("support", 0.5)
