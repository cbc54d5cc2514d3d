"""The four clocks: what starts them, what they survive, and which limits look at them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.support import echo, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    ExecutionTimeLimit,
    ModelRequest,
    ModelResponse,
    Tool,
    tool,
)
from whyloop.errors import ModelError, RateLimitError
from whyloop.events import AgentExecutionStarted
from whyloop.replay import judge
from whyloop.testing import FakeClock, ScriptedModel, assert_stopped, call, capture_events, text
from whyloop.values.model import Delta

DAY = 86_400.0


def working(clock: FakeClock, seconds: float) -> Tool:
    """A tool whose work takes this long."""

    @tool
    async def work() -> str:
        clock.advance(seconds)
        return "worked"

    return work


class SlowModel(ScriptedModel):
    """A scripted model that thinks for a second before each answer."""

    def __init__(self, clock: FakeClock, *replies: str) -> None:
        super().__init__(replies)
        self._clock = clock

    def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        self._clock.advance(1)
        return super().respond(request)


@pytest.mark.parametrize("age", [DAY, 7 * DAY, 365 * DAY], ids=["a day", "a week", "a year"])
@pytest.mark.parametrize("restored", [False, True])
async def test_a_query_long_after_the_session_began_does_not_time_out(age: float, restored: bool) -> None:
    clock = FakeClock()
    agent = scripted("one", call("echo"), "two", tools=[echo], clock=clock)
    state = await agent.run("first")
    clock.advance(age)
    if restored:
        state = AgentState.from_dict(state.to_dict())
    state = await agent.run("second", state=state)
    assert state.status is AgentStatus.COMPLETED
    assert state.state_info.started_at == clock.now() - timedelta(seconds=age)
    assert state.execution_started_at == clock.now()


@pytest.mark.parametrize("age", [DAY, 7 * DAY, 365 * DAY])
async def test_an_execution_that_is_resumed_long_after_does_not_time_out(age: float) -> None:
    clock = FakeClock()
    stopped = await scripted(call("echo"), tools=[echo], max_steps=1, clock=clock).run("go")
    clock.advance(age)
    restored = AgentState.from_dict(stopped.to_dict())
    done = await scripted(call("echo"), "done", tools=[echo], clock=clock).resume(restored)
    assert done.status is AgentStatus.COMPLETED
    assert done.execution_started_at == clock.now()
    assert done.execution.waiting_seconds == age


async def test_restore_then_run_has_a_fresh_execution_clock_and_the_same_cumulative_time() -> None:
    clock = FakeClock()
    agent = scripted(call("work"), "one", "two", tools=[working(clock, 5)], clock=clock)
    first = await agent.run("first")
    assert first.state_info.cumulative_execution_seconds == 5
    clock.advance(DAY)
    restored = AgentState.from_dict(first.to_dict())
    assert restored.execution_started_at is None
    assert restored.state_info.cumulative_execution_seconds == 5
    second = await agent.run("second", state=restored)
    assert second.execution_started_at == clock.now()
    assert second.state_info.cumulative_execution_seconds == 5
    assert second.execution.active_seconds == 0


async def test_five_seconds_a_pause_of_an_hour_and_three_seconds_are_eight_seconds_of_work() -> None:
    clock = FakeClock()
    first = scripted(
        call("work"), tools=[working(clock, 5)], clock=clock, max_steps=1, cumulative_timeout=100
    )
    paused = await first.run("go")
    clock.advance(3600)
    second = scripted(call("work"), "done", tools=[working(clock, 3)], clock=clock, cumulative_timeout=100)
    state = await second.resume(AgentState.from_dict(paused.to_dict()))
    assert state.status is AgentStatus.COMPLETED
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for(CumulativeExecutionTimeLimit)
    assert said is not None
    assert said.context == {"used": 8, "limit": 100, "remaining": 92}
    execution = state.execution
    assert (execution.active_seconds, execution.waiting_seconds) == (8, 3600)
    assert execution.wall_seconds == 3608


@pytest.mark.parametrize(("limit", "status"), [(8, AgentStatus.STOPPED), (8.5, AgentStatus.COMPLETED)])
async def test_the_cumulative_limit_sees_the_work_on_both_sides_of_a_pause(
    limit: float, status: AgentStatus
) -> None:
    clock = FakeClock()
    paused = await scripted(
        call("work"), tools=[working(clock, 5)], clock=clock, max_steps=1, cumulative_timeout=limit
    ).run("go")
    clock.advance(3600)
    agent = scripted(call("work"), "done", tools=[working(clock, 3)], clock=clock, cumulative_timeout=limit)
    state = await agent.resume(paused)
    assert state.status is status


async def test_a_hundred_queries_of_a_second_never_trip_a_cumulative_limit_of_thirty() -> None:
    clock = FakeClock()
    agent = Agent(SlowModel(clock, *(f"answer {n}" for n in range(100))), clock=clock, cumulative_timeout=30)
    state = await agent.run("query 0")
    for number in range(1, 100):
        state = await agent.run(f"query {number}", state=state)
        assert state.status is AgentStatus.COMPLETED
        assert state.execution.active_seconds == 1
    assert state.state_info.cumulative_execution_seconds == pytest.approx(100)
    assert state.step_count == 100


async def test_a_hundred_queries_never_trip_any_limit_that_is_meant_for_one() -> None:
    clock = FakeClock()
    agent = scripted(
        *(text("ok", usage=10) for _ in range(100)), clock=clock, max_steps=2, max_tokens=11, timeout=5
    )
    state = await agent.run("query")
    for _ in range(99):
        clock.advance(10)
        state = await agent.run("query", state=state)
        assert state.status is AgentStatus.COMPLETED
    assert state.usage.total == 1000


async def test_the_wall_clock_limit_counts_from_the_query() -> None:
    clock = FakeClock()
    agent = scripted(*(call("work") for _ in range(3)), tools=[working(clock, 4)], clock=clock, timeout=12)
    state = await agent.run("go")
    assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)
    assert state.step_count == 3
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for(ExecutionTimeLimit)
    assert said is not None
    assert said.context == {"used": 12, "limit": 12, "remaining": 0}


async def test_active_seconds_accumulate_per_step_failed_ones_included() -> None:
    clock = FakeClock()

    @tool
    async def fails_slowly() -> str:
        clock.advance(2.5)
        raise RuntimeError("in the end")

    agent = scripted(
        call("fails_slowly"),
        call("fails_slowly"),
        "done",
        tools=[fails_slowly],
        clock=clock,
        error_policy=ErrorPolicy.retry_all(),
    )
    state = await agent.run("go")
    assert state.execution.active_seconds == 5
    assert [step.duration_ms for step in state.steps] == [2500, 2500, 0]
    assert state.state_info.cumulative_execution_seconds == 5


async def test_a_new_query_resets_active_seconds_but_not_those_of_the_session() -> None:
    clock = FakeClock()
    agent = scripted(call("work"), "one", call("work"), "two", tools=[working(clock, 5)], clock=clock)
    state = await agent.run("first")
    state = await agent.run("second", state=state)
    assert state.execution.active_seconds == 5
    assert state.state_info.cumulative_execution_seconds == 10


async def test_active_seconds_survive_a_restore() -> None:
    clock = FakeClock()
    state = await scripted(call("work"), "one", tools=[working(clock, 5)], clock=clock).run("first")
    restored = AgentState.from_dict(state.to_dict())
    assert restored.execution.active_seconds == 5


async def test_the_four_times_of_an_execution_are_measured_apart() -> None:
    clock = FakeClock()
    first = scripted(
        RateLimitError(retry_after=20),
        call("work"),
        tools=[working(clock, 5)],
        clock=clock,
        error_policy=ErrorPolicy.retry_all(),
        max_steps=2,
    )
    stopped = await first.run("go")
    clock.advance(100)
    done = await scripted("done", clock=clock).resume(stopped)
    execution = done.execution
    assert execution.active_seconds == 5
    assert execution.backoff_seconds == 20
    assert execution.waiting_seconds == 100
    assert execution.wall_seconds == 125


async def test_waiting_adds_up_over_several_pauses() -> None:
    clock = FakeClock()
    state = await scripted(call("echo"), tools=[echo], max_steps=1, clock=clock).run("go")
    for _ in range(2):
        clock.advance(50)
        state = await scripted(call("echo"), tools=[echo], max_steps=1, clock=clock).resume(state)
    assert state.execution.waiting_seconds == 100


async def test_waiting_in_a_failed_state_is_waiting_too() -> None:
    clock = FakeClock()
    state = await scripted(ModelError("down"), clock=clock).run("go")
    clock.advance(50)
    done = await scripted("done", clock=clock).resume(state)
    assert done.execution.waiting_seconds == 50
    assert done.execution.active_seconds == 0


def test_add_execution_time_adds_to_the_sessions_clock_only() -> None:
    info = AgentState().state_info
    later = info.add_execution_time(2.5).add_execution_time(1.5)
    assert later.cumulative_execution_seconds == 4
    assert later.started_at == info.started_at
    assert info.cumulative_execution_seconds == 0


async def test_every_step_judged_again_yields_its_outcome_also_a_day_later_from_a_snapshot() -> None:
    clock = FakeClock()
    agent = scripted(
        call("work"),
        "one",
        call("work"),
        call("work"),
        "two",
        tools=[working(clock, 40)],
        clock=clock,
        timeout=100,
    )
    state = await agent.run("first")
    clock.advance(DAY)
    second = agent.start("second", state=AgentState.from_dict(state.to_dict()))
    states = []
    async for state in agent.iterate(second):
        states += [state, AgentState.from_dict(state.to_dict())]
    clock.advance(365 * DAY)
    for each in [*states, AgentState.from_dict(state.to_dict())]:
        assert agent.criteria.evaluate(each) == each.steps[-1].outcome
    assert state.stop_reason == "completed"
    assert ExecutionTimeLimit(300).used(state) == 80


async def test_a_step_of_a_resumed_execution_is_judged_again_by_its_own_leg() -> None:
    clock = FakeClock()
    agent = scripted(
        call("work"),
        call("work"),
        "done",
        tools=[working(clock, 40)],
        clock=clock,
        timeout=50,
        max_steps=None,
    )
    stopped = await agent.run("go")
    assert_stopped(stopped, reason="time_limit")
    clock.advance(DAY)
    done = await agent.resume(AgentState.from_dict(stopped.to_dict()))
    assert_stopped(done, reason="completed")
    assert agent.criteria.evaluate(AgentState.from_dict(done.to_dict())) == done.last_continuation_outcome


async def continued(agent: Agent, state: AgentState, how: str) -> AgentState:
    """The state after one more step, or at the end, taken in one of the three ways."""
    if how == "next_step":
        return await agent.next_step(state)
    if how == "final_step":
        return await agent.final_step(state)
    return [each async for each in agent.iterate(state)][-1]


@pytest.mark.parametrize("how", ["next_step", "final_step", "iterate"])
@pytest.mark.parametrize("steps", [0, 1])
async def test_a_state_that_was_stored_between_steps_begins_a_leg_days_later(how: str, steps: int) -> None:
    clock = FakeClock()
    agent = scripted(*[call("work")] * steps, "done", tools=[working(clock, 5)], timeout=60, clock=clock)
    events = capture_events(agent)
    state = agent.start("go")
    for _ in range(steps):
        state = await agent.next_step(state)
    stored = state.to_dict()
    assert stored["execution_started_at"] is not None
    clock.advance(3 * DAY)
    done = await continued(agent, AgentState.from_dict(stored), how)
    assert (done.status, done.last_response) == (AgentStatus.COMPLETED, "done")
    assert done.execution.leg_started_at == done.execution_started_at == clock.now()
    times = done.execution
    assert (times.active_seconds, times.waiting_seconds) == (5 * steps, 3 * DAY)
    assert [event.resumed for event in events.of(AgentExecutionStarted)] == [False, True][: steps + 1]
    assert judge(done, agent.criteria).stop_reason == "completed"


async def test_a_state_in_this_process_goes_on_with_its_leg() -> None:
    clock = FakeClock()
    agent = scripted(call("work"), call("work"), "done", tools=[working(clock, 40)], timeout=60, clock=clock)
    state = await agent.next_step(agent.start("go"))
    state = await agent.final_step(state)
    assert_stopped(state, reason="time_limit")


async def test_a_program_that_stores_each_step_is_limited_by_its_cumulative_time_alone() -> None:
    clock = FakeClock()

    def agent_with(**limit: float) -> Agent:
        return scripted(*[call("work")] * 5, "done", tools=[working(clock, 40)], clock=clock, **limit)

    by_wall, by_work = agent_with(timeout=60), agent_with(cumulative_timeout=60)
    for agent, reason, steps in ((by_wall, "completed", 6), (by_work, "time_limit", 2)):
        state = agent.start("go")
        while agent.has_next_step(state):
            state = AgentState.from_dict((await agent.next_step(state)).to_dict())
        assert (state.stop_reason, state.step_count) == (reason, steps)
        assert judge(state, agent.criteria).stop_reason == reason
