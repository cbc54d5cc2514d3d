"""A run that is interrupted at any moment leaves a complete state that can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support import RespondingModel, assert_readable, broken, echo
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    ErrorPolicy,
    Hook,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from whyloop.errors import RateLimitError, interrupted_state
from whyloop.loop.hooks import RunTool
from whyloop.testing import FakeClock, assert_stopped


@tool
async def slow(value: str) -> str:
    """Takes a few turns of the event loop."""
    for _ in range(3):
        await asyncio.sleep(0)
    return value


@tool
def plain(value: str) -> str:
    """Runs in a thread."""
    return value


class Slow(Hook):
    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        result = await run()
        await asyncio.sleep(0)
        return result


def busy_agent() -> Agent:
    """An agent with something of everything: streaming, retries, several tools, failures, hooks."""
    attempts = 0

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(0)
        if attempts == 1:
            raise RateLimitError("busy")
        yield TextDelta("thinking")
        await asyncio.sleep(0)
        done = sum(message.is_tool for message in request.messages)
        if done == 0:
            wanted = [
                ToolCall(f"a{n}", name, {"value": "x"}) for n, name in enumerate(("echo", "slow", "plain"))
            ]
            yield ModelResponse("thinking", tuple(wanted))
        elif done == 3:
            yield ModelResponse(
                "thinking", (ToolCall("b", "broken", {}), ToolCall("c", "slow", {"value": "y"}))
            )
        else:
            yield ModelResponse("thinking done")

    return Agent(
        RespondingModel(respond),
        [echo, slow, plain, broken],
        clock=FakeClock(),
        error_policy=ErrorPolicy.retry_all(),
        hooks=[Slow()],
    )


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("moment", range(45))
async def test_a_run_that_is_cancelled_at_any_moment_can_be_resumed(moment: int) -> None:
    agent = busy_agent()
    start = agent.start("go")
    running = asyncio.create_task(agent.final_step(start))
    await turns(moment)
    running.cancel()
    try:
        state: AgentState | None = await running
    except asyncio.CancelledError as error:
        state = interrupted_state(error)
    if state is None:
        # Only a task that was cancelled before its first line ran has nothing to leave behind.
        assert moment == 0
        return
    assert_readable(state)
    if state.status is AgentStatus.COMPLETED:
        return
    assert_stopped(state, reason="user_requested")
    done = await busy_agent().resume(AgentState.from_dict(state.to_dict()))
    if done.status is AgentStatus.PAUSED:
        assert all("unknown" in pending.question for pending in done.pending_calls)
        for pending in done.pending_calls:
            done = done.approve(pending.id)
        done = await busy_agent().resume(done)
    assert done.status is AgentStatus.COMPLETED
    assert_readable(done)


@pytest.mark.parametrize("moment", range(45))
async def test_a_run_that_is_stopped_at_any_moment_can_be_resumed(moment: int) -> None:
    agent = busy_agent()
    running = asyncio.create_task(agent.run("go"))
    await turns(moment)
    told = agent.request_stop("enough")
    state = await running
    assert_readable(state)
    if not told:
        assert state.status is AgentStatus.COMPLETED
        return
    assert_stopped(state, reason="user_requested", by="StopRequestedCheck")
    done = await busy_agent().resume(state)
    assert done.status is AgentStatus.COMPLETED
    assert_readable(done)
