"""More budget for a run that a limit stopped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import assert_readable
from whyloop import Agent, AgentState, Budget, StepsLimit, Usage, tool
from whyloop.errors import ConfigurationError
from whyloop.testing import FakeClock, ScriptedModel, assert_stopped, call, text


@tool
async def echo() -> str:
    return "ok"


def agent_with(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(replies), [echo], clock=FakeClock(), **options)


async def test_an_exhausted_limit_forbids_continuing_without_another_step() -> None:
    agent = agent_with(call("echo"), "never said", max_steps=1)
    stopped = await agent.run("go")
    again = await agent.resume(stopped)
    assert_stopped(again, reason="steps_limit", by=StepsLimit)
    assert again.step_count == 1
    assert again.last_continuation_outcome is not None
    assert again.last_continuation_outcome.evaluations[2].reason == "Limit reached: 1 of 1 steps used"


async def test_granted_steps_let_it_continue_and_are_in_the_trace() -> None:
    agent = agent_with(call("echo"), call("echo"), call("echo"), "never said", max_steps=1)
    stopped = await agent.run("go")
    state = await agent.resume(stopped, grant=Budget(steps=2))
    assert_stopped(state, reason="steps_limit", by=StepsLimit)
    assert state.execution.step_count == 3
    outcome = state.last_continuation_outcome
    said = outcome.evaluation_for(StepsLimit) if outcome else None
    assert said is not None
    assert said.reason == "Limit reached: 3 of 1 steps used, 2 more were granted"
    assert said.context == {"used": 3, "limit": 3, "remaining": 0}
    assert "2 more were granted" in assert_readable(state)


async def test_grants_add_up_and_survive_a_snapshot() -> None:
    agent = agent_with(call("echo"), call("echo"), call("echo"), "done", max_steps=1)
    state = await agent.run("go")
    state = await agent.resume(state, grant=Budget(steps=1, tokens=5))
    state = AgentState.from_dict(state.to_dict())
    state = await agent.resume(state, grant=Budget(steps=5, seconds=1.5))
    assert state.execution.granted == Budget(steps=6, tokens=5, seconds=1.5)
    assert state.status == "completed"


async def test_granted_tokens_and_seconds_of_work() -> None:
    clock = FakeClock()

    @tool
    async def work() -> str:
        clock.advance(4)
        return "ok"

    replies = [call("work", usage=Usage(60, 0)), call("work", usage=Usage(60, 0)), text("done")]
    agent = Agent(ScriptedModel(replies), [work], clock=clock, max_tokens=100, cumulative_timeout=7)
    state = await agent.run("go")
    assert_stopped(state, reason="token_limit")
    state = await agent.resume(state, grant=Budget(tokens=100))
    assert_stopped(state, reason="time_limit")
    state = await agent.resume(state, grant=Budget(seconds=10))
    assert state.status == "completed"


async def test_the_next_query_starts_without_a_grant() -> None:
    agent = agent_with(call("echo"), "done", call("echo"), "never said", max_steps=1)
    state = await agent.run("go")
    state = await agent.resume(state, grant=Budget(steps=5))
    assert state.status == "completed"
    state = await agent.run("again", state=state)
    assert state.execution.granted is None
    assert_stopped(state, reason="steps_limit", by=StepsLimit)


@pytest.mark.parametrize("bad", [-1, True, float("nan"), float("inf"), "ten"])
@pytest.mark.parametrize("field", ["steps", "tokens", "seconds", "usd"])
def test_a_budget_that_makes_no_sense_is_refused(field: str, bad: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Budget(**{field: bad})
