"""Somebody outside asks for a stop: the run ends at the next safe point, with their words."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import RespondingModel, assert_readable, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    ErrorPolicy,
    ModelRequest,
    ModelResponse,
    StopRequestedCheck,
    TextDelta,
    ToolCall,
    tool,
)
from whyloop.errors import ConfigurationError, RateLimitError
from whyloop.events import AgentEvent, AgentExecutionStarted, AgentStepStarted, ToolCallStarted
from whyloop.testing import FakeClock, assert_stopped, call, capture_events


def assert_stopped_by(state: AgentState, words: str) -> None:
    assert_stopped(state, reason="user_requested", by=StopRequestedCheck)
    assert state.status is AgentStatus.STOPPED
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for(StopRequestedCheck)
    assert said is not None
    assert said.reason == words
    assert words in assert_readable(state)


async def test_another_task_ends_the_run_at_the_next_safe_point() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        entered.set()
        await release.wait()
        return "finished anyway"

    agent = scripted(call("wait"), "never said", tools=[wait])
    running = asyncio.create_task(agent.run("go"))
    await entered.wait()
    assert agent.request_stop("Maria closed the chat") == 1
    release.set()
    state = await running
    assert_stopped_by(state, "Maria closed the chat")
    assert state.messages[-1].text == "finished anyway"
    assert len(requests_of(agent)) == 1


async def test_a_tool_can_ask_its_own_agent_to_stop() -> None:
    agents: list[Agent] = []

    @tool
    def hang_up() -> str:
        agents[0].request_stop("the caller hung up")
        return "ok"

    agents.append(scripted(call("hang_up"), "never said", tools=[hang_up]))
    assert_stopped_by(await agents[0].run("go"), "the caller hung up")


async def test_another_thread_can_ask() -> None:
    @tool
    async def wait() -> str:
        thread = threading.Thread(target=lambda: agent.request_stop("from a thread"))
        thread.start()
        thread.join()
        return "ok"

    agent = scripted(call("wait"), "never said", tools=[wait])
    assert_stopped_by(await agent.run("go"), "from a thread")


async def test_an_event_handler_can_ask_before_the_first_step() -> None:
    agent = scripted("never said")

    def refuse(event: AgentEvent) -> None:
        if isinstance(event, AgentExecutionStarted):
            agent.request_stop("closed today")

    agent.subscribe(refuse)
    states = [state async for state in agent.iterate(agent.start("go"))]
    assert len(states) == 1
    assert_stopped_by(states[0], "closed today")
    assert states[0].step_count == 0
    assert requests_of(agent) == []


async def test_a_stop_between_two_steps_keeps_the_model_from_being_asked_again() -> None:
    agent = scripted(call("echo"), "never said", tools=[echo])
    last = None
    async for state in agent.iterate(agent.start("go")):
        if state.step_count == 1 and last is None:
            agent.request_stop("that is enough")
        last = state
    assert last is not None
    assert_stopped_by(last, "that is enough")
    assert last.step_count == 1
    assert len(requests_of(agent)) == 1
    assert last.steps[-1].outcome == last.last_continuation_outcome


async def test_a_stop_while_the_model_thinks_keeps_its_tools_from_running() -> None:
    thinking, answer = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @tool
    async def delete(name: str) -> str:
        ran.append(name)
        return "deleted"

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        thinking.set()
        await answer.wait()
        yield ModelResponse("I delete both.", (ToolCall("a", "delete", {"name": "x"}),))

    agent = Agent(RespondingModel(respond), [delete])
    events = capture_events(agent)
    running = asyncio.create_task(agent.run("go"))
    await thinking.wait()
    agent.request_stop("do not delete anything")
    answer.set()
    state = await running
    assert_stopped_by(state, "do not delete anything")
    assert ran == []
    assert not events.of(ToolCallStarted)
    assert state.messages[1].text == "I delete both."
    assert "do not delete anything" in state.messages[-1].text
    assert not state.steps[-1].tool_calls[0].success


async def test_only_the_session_that_is_named_is_stopped() -> None:
    entered = asyncio.Semaphore(0)
    release = asyncio.Event()

    @tool
    async def wait() -> str:
        entered.release()
        await release.wait()
        return "ok"

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        if len(request.messages) == 1:
            yield ModelResponse("", (ToolCall("a", "wait", {}),))
        else:
            yield ModelResponse("done")

    agent = Agent(RespondingModel(respond), [wait])
    first, second = agent.start("one"), agent.start("two")
    runs = [asyncio.create_task(agent.final_step(state)) for state in (first, second)]
    await entered.acquire()
    await entered.acquire()
    assert agent.request_stop("only you", agent_id=first.agent_id) == 1
    assert agent.request_stop("nobody", agent_id="no such session") == 0
    release.set()
    stopped, finished = await asyncio.gather(*runs)
    assert_stopped_by(stopped, "only you")
    assert finished.status is AgentStatus.COMPLETED


async def test_without_a_name_everything_under_way_is_stopped() -> None:
    release = asyncio.Event()

    @tool
    async def wait() -> str:
        await release.wait()
        return "ok"

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield ModelResponse("", (ToolCall("a", "wait", {}),))

    agent = Agent(RespondingModel(respond), [wait])
    started = asyncio.Semaphore(0)
    agent.subscribe(lambda event: started.release() if isinstance(event, ToolCallStarted) else None)
    runs = [asyncio.create_task(agent.run(f"query {n}")) for n in range(3)]
    for _ in runs:
        await started.acquire()
    assert agent.request_stop("shutting down") == 3
    release.set()
    for state in await asyncio.gather(*runs):
        assert_stopped_by(state, "shutting down")


async def test_with_nothing_under_way_nobody_is_told_and_the_next_run_is_not_stopped() -> None:
    agent = scripted("done")
    assert agent.request_stop("too early") == 0
    assert (await agent.run("go")).status is AgentStatus.COMPLETED


async def test_a_stop_ends_one_execution_and_the_next_query_runs() -> None:
    agent = scripted(call("echo"), "hello again", tools=[echo])
    unsubscribe = agent.subscribe(
        lambda event: agent.request_stop("enough") if isinstance(event, AgentStepStarted) else None
    )
    stopped = await agent.run("go")
    unsubscribe()
    assert_stopped_by(stopped, "enough")
    assert (await agent.run("next", state=stopped)).status is AgentStatus.COMPLETED


async def test_a_stopped_execution_can_be_resumed() -> None:
    agent = scripted(call("echo"), "done", tools=[echo])
    unsubscribe = agent.subscribe(
        lambda event: agent.request_stop("lunch") if isinstance(event, ToolCallStarted) else None
    )
    stopped = await agent.run("go")
    unsubscribe()
    assert_stopped_by(stopped, "lunch")
    done = await agent.resume(stopped)
    assert done.status is AgentStatus.COMPLETED
    assert done.execution.id == stopped.execution.id


async def test_a_stop_during_backoff_ends_the_run_before_the_next_attempt() -> None:
    class StoppingClock(FakeClock):
        async def sleep(self, seconds: float) -> None:
            agent.request_stop("do not wait")
            await super().sleep(seconds)

    agent = scripted(
        RateLimitError(), "never said", error_policy=ErrorPolicy.retry_all(), clock=StoppingClock()
    )
    state = await agent.run("go")
    assert_stopped_by(state, "do not wait")
    assert len(requests_of(agent)) == 1


async def test_a_run_that_was_taken_up_again_in_the_middle_can_be_stopped() -> None:
    agent = scripted(call("echo"), call("echo"), "never said", tools=[echo])
    iteration = agent.iterate(agent.start("go"))
    state = await anext(iteration)
    await iteration.aclose()  # type: ignore[attr-defined]
    told: list[int] = []
    agent.subscribe(
        lambda event: (
            told.append(agent.request_stop("enough")) if isinstance(event, ToolCallStarted) else None
        )
    )
    state = await agent.final_step(state)
    assert told == [1]
    assert_stopped_by(state, "enough")


@pytest.mark.parametrize("reason", [5, None, b"stop"])
def test_a_reason_is_given_in_words(reason: Any) -> None:
    with pytest.raises(ConfigurationError, match="given in words"):
        scripted().request_stop(reason)
