"""A cancelled task leaves a valid, recorded state behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from tests.support import RespondingModel, assert_readable, echo, hanging_model, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    ErrorPolicy,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolCall,
    tool,
)
from whyloop.errors import RateLimitError, interrupted_state
from whyloop.events import AgentExecutionFinished, ToolCallCompleted
from whyloop.testing import FakeClock, assert_stopped, call, calls, capture_events


async def cancelled(running: asyncio.Task[AgentState]) -> AgentState:
    """Cancel the task; the state that it left behind."""
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await running
    state = interrupted_state(caught.value)
    assert state is not None
    return state


async def test_a_cancellation_during_the_model_call_leaves_a_stopped_state() -> None:
    agent = Agent(hanging_model())
    events = capture_events(agent)
    running = asyncio.create_task(agent.run("go"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    state = await cancelled(running)
    assert state.status is AgentStatus.STOPPED
    assert_stopped(state, reason="user_requested", by="StopRequestedCheck")
    assert "cancelled" in assert_readable(state)
    assert [m.role.value for m in state.messages] == ["user"]
    assert state.step_count == 1
    assert len(events.of(AgentExecutionFinished)) == 1


async def test_a_cancellation_during_one_of_two_tools_keeps_the_finished_result() -> None:
    hanging = asyncio.Event()

    @tool
    async def hang() -> str:
        hanging.set()
        await asyncio.Event().wait()
        return "never"

    agent = scripted(calls(call("echo", {"value": "kept"}), call("hang")), tools=[echo, hang])
    events = capture_events(agent)
    running = asyncio.create_task(agent.run("go"))
    await hanging.wait()
    await asyncio.sleep(0)
    state = await cancelled(running)
    assert_stopped(state, reason="user_requested")
    assert "cancelled" in assert_readable(state)
    assert [(e.tool, e.success) for e in events.of(ToolCallCompleted)] == [("echo", True)]
    # As after a crash, the step is open: whether the other call did something is not known.
    assert state.open_step is not None
    assert [(call.is_done, call.is_running) for call in state.open_step.calls] == [
        (True, False),
        (False, True),
    ]
    paused = await scripted("done", tools=[echo, hang]).resume(AgentState.from_dict(state.to_dict()))
    (asked,) = paused.pending_calls
    assert asked.question.startswith("It is unknown whether hang ran")
    done = await scripted("done", tools=[echo, hang]).resume(paused.deny(asked.id, "it did not", by="ada"))
    kept, unknown = [m.text for m in done.messages if m.is_tool]
    assert kept == "kept"
    assert unknown.startswith("Outcome unknown: it was interrupted")
    assert unknown.endswith("and ada did not let it run again: it did not")
    assert done.status is AgentStatus.COMPLETED


async def test_a_cancellation_during_a_plain_function_does_not_wait_for_it() -> None:
    inside, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool
    def block() -> str:
        loop.call_soon_threadsafe(inside.set)
        release.wait(5)
        return "too late"

    agent = scripted(call("block"), tools=[block])
    running = asyncio.create_task(agent.run("go"))
    await inside.wait()
    state = await cancelled(running)
    release.set()
    assert "too late" not in assert_readable(state)
    assert state.open_step is not None
    assert state.open_step.calls[0].is_running


async def test_a_timeout_around_the_run_leaves_the_state_too() -> None:
    agent = Agent(hanging_model())
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            await agent.run("go")
    state = interrupted_state(caught.value)
    assert state is not None
    assert state.status is AgentStatus.STOPPED
    assert_readable(state)


async def test_wait_for_leaves_the_state_too() -> None:
    with pytest.raises(TimeoutError) as caught:
        await asyncio.wait_for(Agent(hanging_model()).run("go"), 0.01)
    assert interrupted_state(caught.value) is not None


def test_other_errors_carry_no_state() -> None:
    assert interrupted_state(ValueError("x")) is None
    assert interrupted_state(None) is None


async def test_a_cancelled_execution_can_be_resumed() -> None:
    attempts = 0
    second = asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            yield ModelResponse("", (ToolCall("a", "echo", {}),))
        elif attempts == 2:
            second.set()
            await asyncio.Event().wait()
        else:
            yield ModelResponse("done")

    agent = Agent(RespondingModel(respond), [echo])
    running = asyncio.create_task(agent.run("go"))
    await second.wait()
    state = await cancelled(running)
    assert state.execution.step_count == 2
    restored = AgentState.from_dict(state.to_dict())
    done = await agent.resume(restored)
    assert done.status is AgentStatus.COMPLETED
    assert done.last_response == "done"
    assert [m.role.value for m in done.messages] == ["user", "assistant", "tool", "assistant"]


async def test_a_cancelled_execution_that_is_resumed_does_not_stop_again_for_the_old_reason() -> None:
    agent = Agent(hanging_model())
    running = asyncio.create_task(agent.run("go"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    state = await cancelled(running)
    done = await scripted("done").resume(state)
    assert_stopped(done, reason="completed")


async def test_a_cancellation_while_backing_off_leaves_the_state_too() -> None:
    sleeping = asyncio.Event()

    class PatientClock(FakeClock):
        async def sleep(self, seconds: float) -> None:
            sleeping.set()
            await asyncio.Event().wait()

    agent = scripted(RateLimitError(), error_policy=ErrorPolicy.retry_all(), clock=PatientClock())
    running = asyncio.create_task(agent.run("go"))
    await sleeping.wait()
    state = await cancelled(running)
    assert state.step_count == 1
    assert_readable(state)
    done = await scripted("done").resume(state)
    assert done.status is AgentStatus.COMPLETED


async def test_a_cancelled_run_is_not_asked_to_stop() -> None:
    agent = Agent(hanging_model())
    running = asyncio.create_task(agent.run("go"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cancelled(running)
    assert agent.request_stop("anyone?") == 0


async def test_a_tool_that_raises_cancellederror_itself_is_a_failed_tool() -> None:
    @tool
    async def quits() -> str:
        raise asyncio.CancelledError("I quit")

    state = await scripted(call("quits"), tools=[quits]).run("go")
    assert_stopped(state, reason="error")
    assert "CancelledError in " in assert_readable(state)
    assert "I quit" in state.explain(debug=True)


async def test_cancelling_one_session_leaves_the_others_alone() -> None:
    release = asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await release.wait()
        yield ModelResponse("done")

    agent = Agent(RespondingModel(respond))
    first, second = (asyncio.create_task(agent.run(q)) for q in ("one", "two"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cancelled(first)
    release.set()
    assert (await second).status is AgentStatus.COMPLETED
