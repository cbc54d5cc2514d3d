"""Deadlines: time limits interrupt a model or a tool that hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.support import RespondingModel, assert_readable, echo, hanging_model, requests_of, scripted
from whyloop import (
    Agent,
    AgentStatus,
    Backoff,
    CumulativeExecutionTimeLimit,
    ErrorPolicy,
    ExecutionTimeLimit,
    FinishReason,
    ModelRequest,
    ModelResponse,
    TextDelta,
    Tool,
    ToolCall,
    ToolContext,
    tool,
)
from whyloop.errors import RateLimitError
from whyloop.testing import FakeClock, assert_continued, assert_stopped, call, calls
from whyloop.values.step import Interruption

LIMIT = 0.03
GRACE = 0.01


@tool
async def hang() -> str:
    """Never returns."""
    await asyncio.Event().wait()
    return "never"


def blocking_tool(release: threading.Event) -> Tool:
    @tool
    def block() -> str:
        release.wait(5)
        return "too late"

    return block


@pytest.mark.parametrize("option", ["timeout", "cumulative_timeout"])
async def test_a_model_that_never_answers_is_cut_off_by_the_executions_limit(option: str) -> None:
    agent = Agent(hanging_model(), **{option: LIMIT})  # type: ignore[arg-type]
    state = await agent.run("go")
    assert_stopped(state, reason="time_limit")
    assert state.status is AgentStatus.STOPPED
    assert state.step_count == 1
    assert state.steps[0].interrupted is Interruption.OUT_OF_TIME
    assert "the time for this execution was up" in assert_readable(state)


@pytest.mark.parametrize("option", ["timeout", "cumulative_timeout"])
async def test_a_tool_that_never_returns_is_cut_off_by_the_executions_limit(option: str) -> None:
    agent = scripted(call("hang"), tools=[hang], clock=None, stop_grace=GRACE, **{option: LIMIT})
    state = await agent.run("go")
    assert_stopped(state, reason="time_limit")
    (run,) = state.steps[0].tool_calls
    assert (run.success, run.error) == (False, "outcome unknown: the time for this execution was up")
    assert state.messages[-1].tool_call_id == run.id
    assert_readable(state)


async def test_a_plain_function_that_never_returns_is_cut_off_too() -> None:
    release = threading.Event()
    agent = scripted(
        call("block"), tools=[blocking_tool(release)], clock=None, timeout=LIMIT, stop_grace=GRACE
    )
    state = await agent.run("go")
    release.set()
    assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)
    assert "too late" not in assert_readable(state)


def test_a_plain_function_that_never_returns_does_not_keep_the_program_from_ending() -> None:
    program = (
        "import threading\n"
        "from whyloop import Agent, tool\n"
        "from whyloop.testing import ScriptedModel, call\n"
        "hang = tool(name='hang')(lambda: threading.Event().wait())\n"
        "agent = Agent(ScriptedModel([call('hang')]), [hang], timeout=0.02, stop_grace=0.01)\n"
        "print(agent.run_sync('go').stop_reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20
    )
    assert (done.stdout, done.stderr) == ("time_limit\n", "")


async def test_when_one_of_two_tools_hangs_the_others_result_is_kept() -> None:
    agent = scripted(
        calls(call("hang"), call("echo", {"value": "kept"})),
        tools=[echo, hang],
        clock=None,
        timeout=LIMIT,
        stop_grace=GRACE,
    )
    state = await agent.run("go")
    assert_stopped(state, reason="time_limit")
    assert [run.success for run in state.steps[0].tool_calls] == [False, True]
    assert state.messages[-1].text == "kept"
    assert_readable(state)


async def test_a_clock_that_is_moved_past_the_deadline_cuts_off_a_hanging_call() -> None:
    clock = FakeClock()
    agent = Agent(hanging_model(), clock=clock, timeout=300)
    running = asyncio.create_task(agent.run("go"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    clock.advance(300)
    state = await running
    assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)


async def test_a_tool_that_outlasts_the_limit_but_returns_is_recorded_and_then_the_run_stops() -> None:
    clock = FakeClock()

    @tool
    async def slow() -> str:
        clock.advance(301)
        return "finished"

    state = await scripted(call("slow"), tools=[slow], clock=clock).run("go")
    assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)
    assert state.messages[-1].text == "finished"
    assert state.steps[0].tool_calls[0].success


async def test_a_tool_that_runs_out_of_its_own_time_is_a_timeout_error() -> None:
    @tool(timeout=0.01)
    async def slow() -> str:
        await asyncio.Event().wait()
        return "never"

    state = await scripted(call("slow"), tools=[slow], clock=None).run("go")
    assert_stopped(state, reason="error", by="ErrorPolicyCriterion")
    (failure,) = state.steps[0].failures
    assert failure.type == "timeout"
    assert "slow did not finish within 0.01 s" in assert_readable(state)


async def test_a_plain_tool_that_runs_out_of_its_own_time_is_a_timeout_error() -> None:
    release = threading.Event()

    @tool(timeout=0.01)
    def slow() -> str:
        release.wait(5)
        return "never"

    state = await scripted(call("slow"), tools=[slow], clock=None).run("go")
    release.set()
    assert state.steps[0].failures[0].type == "timeout"


async def test_a_tools_own_timeout_leaves_the_other_calls_of_the_step_alone() -> None:
    @tool(timeout=0.01)
    async def slow() -> str:
        await asyncio.Event().wait()
        return "never"

    agent = scripted(
        calls(call("slow"), call("echo", {"value": "ok"})),
        "done",
        tools=[slow, echo],
        clock=None,
        error_policy=ErrorPolicy.retry_all(),
    )
    state = await agent.run("go")
    assert_continued(state, step=1)
    assert [run.success for run in state.steps[0].tool_calls] == [False, True]
    assert "slow did not finish" in requests_of(agent)[1].messages[2].text


async def test_a_tool_that_is_quick_enough_is_not_cut_off() -> None:
    @tool(timeout=5)
    async def quick() -> str:
        await asyncio.sleep(0)
        return "quick"

    state = await scripted(call("quick"), "done", tools=[quick], clock=None).run("go")
    assert state.status is AgentStatus.COMPLETED


async def test_a_run_that_was_cut_off_can_be_resumed_with_more_time() -> None:
    stopped = await Agent(hanging_model(), timeout=LIMIT).run("go")
    done = await scripted("done", clock=None).resume(stopped)
    assert done.status is AgentStatus.COMPLETED


async def test_a_limit_that_the_developer_brings_cuts_off_too() -> None:
    state = await Agent(hanging_model(), criteria=CumulativeExecutionTimeLimit(LIMIT)).run("go")
    assert_stopped(state, reason="time_limit", by=CumulativeExecutionTimeLimit)


@pytest.mark.parametrize("order", [1, -1])
async def test_the_earlier_of_two_limits_cuts_off(order: int) -> None:
    limits = [ExecutionTimeLimit(LIMIT), CumulativeExecutionTimeLimit(100, scope="session")][::order]
    async with asyncio.timeout(5):
        state = await Agent(hanging_model(), criteria=limits).run("go")
    assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)


async def test_the_time_that_a_cut_off_step_took_is_counted() -> None:
    state = await Agent(hanging_model(), cumulative_timeout=LIMIT).run("go")
    assert state.execution.active_seconds >= LIMIT
    assert state.state_info.cumulative_execution_seconds == pytest.approx(state.execution.active_seconds)


async def test_the_clock_of_this_machine_waits_out_a_provider() -> None:
    agent = scripted(
        RateLimitError(),
        "done",
        clock=None,
        error_policy=ErrorPolicy.retry_all(),
        backoff=Backoff(base=0.01, jitter=0),
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    failed, answered = state.steps
    assert (answered.started_at - failed.completed_at).total_seconds() >= 0.01
    assert 0 < state.execution.backoff_seconds < 5
    assert state.execution.active_seconds < state.execution.wall_seconds


async def test_a_limit_always_wins_against_the_work_that_it_cut_off() -> None:
    for _ in range(10):
        state = await Agent(hanging_model(), timeout=0.002).run("go")
        assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)


async def test_a_call_that_runs_at_the_deadline_has_a_grace_period_to_finish() -> None:
    @tool
    async def nearly_done() -> str:
        await asyncio.sleep(LIMIT + 0.01)
        return "finished"

    agent = scripted(call("nearly_done"), tools=[nearly_done], clock=None, timeout=LIMIT)
    state = await agent.run("go")
    assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)
    assert (state.messages[-1].text, state.steps[0].interrupted) == ("finished", None)


async def test_a_streaming_answer_is_interrupted_by_the_deadline_and_its_text_is_kept() -> None:
    async def talk(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta("It is ")
        yield TextDelta("known that")
        await asyncio.Event().wait()

    state = await Agent(RespondingModel(talk), timeout=LIMIT).run("go")
    assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)
    assert (state.messages[-1].text, state.messages[-1].incomplete) == ("It is known that", True)
    assert not state.usage.reported


async def test_the_time_of_an_answer_is_counted_once_where_its_calls_run_until_the_limit() -> None:
    """A limit of 10 s of work: 3 s, a wait of 5 s for the provider, 1 s of model, and a call that hangs."""
    clock = FakeClock()
    start, deadlines, running = clock.now(), [], asyncio.Event()

    @tool
    async def hang_until(context: ToolContext) -> None:
        deadlines.append(context.deadline)
        running.set()
        await asyncio.Event().wait()

    async def think(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        if clock.now() == start:
            clock.advance(3)
            raise RateLimitError("busy", retry_after=5)
        clock.advance(1)
        yield ModelResponse("", (ToolCall("c", "hang_until", {}),), FinishReason.TOOL_CALLS)

    agent = Agent(
        RespondingModel(think),
        [hang_until],
        clock=clock,
        cumulative_timeout=10,
        stop_grace=0,
        error_policy=ErrorPolicy.retry_all(),
    )
    run = asyncio.create_task(agent.run("go"))
    await running.wait()
    assert deadlines == [start + timedelta(seconds=15)]
    clock.advance(6)
    state = await run
    assert_stopped(state, reason="time_limit", by=CumulativeExecutionTimeLimit)
    assert state.execution.active_seconds == pytest.approx(10, abs=1e-5)
    assert state.execution.backoff_seconds == 5


async def test_a_deadline_ends_the_wait_for_a_provider() -> None:
    clock = FakeClock()
    agent = scripted(
        RateLimitError("busy", retry_after=60),
        "never said",
        clock=clock,
        timeout=20,
        error_policy=ErrorPolicy.retry_all(),
    )
    state = await agent.run("go")
    assert_stopped(state, reason="time_limit", by=ExecutionTimeLimit)
    assert clock.sleeps == [pytest.approx(20, abs=1e-5)]
    assert len(requests_of(agent)) == 1


class PatientClock(FakeClock):
    """A fake clock during whose sleep the timers fire that have become due."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await asyncio.sleep(0.1)


async def test_a_limit_on_work_neither_ends_a_wait_nor_is_forgotten_after_it() -> None:
    asked, clock = 0, PatientClock()

    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RateLimitError("busy", retry_after=3 * LIMIT)
        clock.advance(LIMIT)
        await asyncio.Event().wait()
        yield ModelResponse("never said")

    policy = ErrorPolicy.retry_all()
    model = RespondingModel(respond)
    agent = Agent(model, cumulative_timeout=LIMIT, error_policy=policy, clock=clock)
    async with asyncio.timeout(5):
        state = await agent.run("go")
    assert_stopped(state, reason="time_limit", by=CumulativeExecutionTimeLimit)
    assert (asked, state.execution.backoff_seconds) == (2, 3 * LIMIT)
