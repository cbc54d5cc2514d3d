"""Many sessions on one agent and one event loop: none waits for another, none sees another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

from tests.support import RespondingModel, assert_readable, echo, scripted
from whyloop import Agent, AgentStatus, ErrorPolicy, ModelRequest, ModelResponse, TextDelta, ToolCall
from whyloop.errors import RateLimitError
from whyloop.testing import FakeClock, ScriptedModel, assert_stopped, call


async def test_one_agent_serves_many_sessions_at_once_without_mixing_them_up() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await asyncio.sleep(0)
        query = request.messages[0].text
        asked = sum(m.is_tool for m in request.messages)
        if asked < 3:
            yield ModelResponse("", (ToolCall(f"c{asked}", "echo", {"value": f"{query}/{asked}"}),))
        else:
            yield ModelResponse(f"done with {query}")

    agent = Agent(RespondingModel(respond), [echo], clock=FakeClock())
    states = await asyncio.gather(*(agent.run(f"query {n}") for n in range(50)))
    assert len({state.agent_id for state in states}) == 50
    for number, state in enumerate(states):
        assert state.last_response == f"done with query {number}"
        results = [m.text for m in state.messages if m.is_tool]
        assert results == [f"query {number}/{n}" for n in range(3)]
        assert_readable(state)


async def test_a_run_whose_parts_never_wait_still_lets_others_run() -> None:
    model = ScriptedModel(call("echo", {"value": str(n)}) for n in itertools.count())
    agent = Agent(model, [echo], clock=FakeClock(), max_steps=5_000, timeout=None)
    running = asyncio.create_task(agent.run("go"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert agent.request_stop("enough") == 1
    state = await running
    assert_stopped(state, reason="user_requested")
    assert state.step_count < 5_000


async def test_a_stop_wakes_a_run_that_is_backing_off() -> None:
    sleeping = asyncio.Event()

    class PatientClock(FakeClock):
        async def sleep(self, seconds: float) -> None:
            sleeping.set()
            await asyncio.Event().wait()

    agent = scripted(
        RateLimitError(), "never said", error_policy=ErrorPolicy.retry_all(), clock=PatientClock()
    )
    running = asyncio.create_task(agent.run("go"))
    await sleeping.wait()
    agent.request_stop("do not wait")
    async with asyncio.timeout(1):
        state = await running
    assert_stopped(state, reason="user_requested", by="StopRequestedCheck")
    assert_readable(state)


async def test_a_provider_that_asks_for_more_time_than_there_is_ends_in_a_time_limit() -> None:
    clock = FakeClock()
    agent = scripted(
        *[RateLimitError(retry_after=30)] * 2, error_policy=ErrorPolicy.retry_all(), timeout=5, clock=clock
    )
    state = await agent.run("go")
    assert_stopped(state, reason="time_limit", by="ExecutionTimeLimit")
    assert state.status is AgentStatus.STOPPED
    assert_readable(state)
