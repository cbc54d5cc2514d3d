"""Stop requests from outside: the run ends at the next safe point, with their reason."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
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
from whyloop.events import (
    AgentEvent,
    AgentExecutionFinished,
    AgentExecutionStarted,
    AgentStepStarted,
    RetryScheduled,
    StreamChunkReceived,
    ToolCallStarted,
)
from whyloop.testing import FakeClock, assert_stopped, call, calls, capture_events
from whyloop.values.step import Interruption


def assert_stopped_by(state: AgentState, reason: str) -> None:
    assert_stopped(state, reason="user_requested", by=StopRequestedCheck)
    assert state.status is AgentStatus.STOPPED
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for(StopRequestedCheck)
    assert said is not None
    assert said.reason == reason
    assert reason in assert_readable(state)


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


class Talking:
    """A model that streams some chunks and then hangs before it asks for a tool."""

    def __init__(self, *chunks: str) -> None:
        self.chunks = chunks
        self.silent = asyncio.Event()

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        for chunk in self.chunks:
            yield TextDelta(chunk)
        self.silent.set()
        await asyncio.Event().wait()
        yield ModelResponse("".join(self.chunks), (ToolCall("a", "delete", {"name": "x"}),))


async def test_a_stop_interrupts_a_streaming_answer_at_once_and_keeps_its_text() -> None:
    model = Talking("I delete ", "bo\ud800th")
    agent = Agent(model, [echo])
    events = capture_events(agent)
    running = asyncio.create_task(agent.run("go"))
    await model.silent.wait()
    asked_at = time.monotonic()
    agent.request_stop("do not delete anything")
    state = await running
    assert time.monotonic() - asked_at < 0.2
    assert_stopped_by(state, "do not delete anything")
    message = state.messages[-1]
    assert (message.role.value, message.incomplete, message.tool_calls) == ("assistant", True, ())
    assert message.text.startswith("I delete bo")
    assert state.last_response == message.text
    assert state.steps[-1].interrupted is Interruption.STOPPED
    assert not state.steps[-1].usage.reported
    assert not state.usage.reported
    assert [e.kind for e in events.of(StreamChunkReceived)] == ["text", "text"]
    (finished,) = events.of(AgentExecutionFinished)
    assert str(finished).endswith("(user_requested) by StopRequestedCheck: do not delete anything")


async def test_a_stop_before_the_first_chunk_leaves_no_message() -> None:
    model = Talking()
    agent = Agent(model, [echo])
    running = asyncio.create_task(agent.run("go"))
    await model.silent.wait()
    agent.request_stop("never mind")
    state = await running
    assert_stopped_by(state, "never mind")
    assert [m.role.value for m in state.messages] == ["user"]
    assert state.step_count == 1
    assert "a stop was requested" in state.explain()


async def test_a_call_that_has_not_started_is_not_run() -> None:
    ran: list[str] = []

    @tool
    async def delete(name: str) -> str:
        ran.append(name)
        return "deleted"

    agent = scripted(call("delete", {"name": "x"}), tools=[delete])
    unsubscribe = agent.subscribe(
        lambda event: agent.request_stop("do not") if isinstance(event, ToolCallStarted) else None
    )
    state = await agent.run("go")
    unsubscribe()
    assert_stopped_by(state, "do not")
    assert ran == []
    assert state.messages[-1].text == "Not run: a stop was requested"
    assert state.steps[-1].tool_calls[0].error == "not run: a stop was requested"
    assert state.steps[-1].failures == ()


@pytest.mark.parametrize("several", [False, True])
async def test_a_call_that_runs_has_a_grace_period_and_then_its_outcome_is_unknown(several: bool) -> None:
    entered = asyncio.Event()

    @tool
    async def hang() -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    wanted = calls(call("echo", {"value": "kept"}), call("hang")) if several else call("hang")
    agent = scripted(wanted, tools=[echo, hang], clock=None, stop_grace=0.005)
    running = asyncio.create_task(agent.run("go"))
    await entered.wait()
    agent.request_stop("enough")
    state = await running
    assert_stopped_by(state, "enough")
    assert state.messages[-1].text == "Outcome unknown: a stop was requested"
    if several:
        assert state.messages[-2].text == "kept"
    assert state.steps[-1].interrupted is Interruption.STOPPED


async def test_a_call_that_finishes_while_it_is_cancelled_keeps_its_result() -> None:
    entered = asyncio.Event()

    @tool
    async def stubborn() -> str:
        entered.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done all the same"

    agent = scripted(calls(call("stubborn"), call("stubborn")), tools=[stubborn], clock=None, stop_grace=0)
    running = asyncio.create_task(agent.run("go"))
    await entered.wait()
    agent.request_stop("enough")
    state = await running
    assert_stopped_by(state, "enough")
    assert [m.text for m in state.messages if m.is_tool] == ["done all the same"] * 2
    assert not running.cancelled()


async def test_a_stop_during_a_real_wait_for_a_provider_ends_it_at_once() -> None:
    agent = scripted(
        RateLimitError(retry_after=30), "never said", error_policy=ErrorPolicy.retry_all(), clock=None
    )
    events = capture_events(agent)
    running = asyncio.create_task(agent.run("go"))
    while not events.of(RetryScheduled):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    agent.request_stop("do not wait")
    state = await asyncio.wait_for(running, 1)
    assert_stopped_by(state, "do not wait")
    assert len(requests_of(agent)) == 1
    assert state.execution.backoff_seconds < 1


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


async def test_a_stop_request_without_a_run_does_not_stop_the_next_run() -> None:
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


async def test_a_run_that_was_continued_in_the_middle_can_be_stopped() -> None:
    agent = scripted(call("echo"), call("echo"), "never said", tools=[echo])
    iteration = agent.iterate(agent.start("go"))
    state = await anext(iteration)
    await iteration.aclose()  # type: ignore[attr-defined]
    asked: list[int] = []
    agent.subscribe(
        lambda event: (
            asked.append(agent.request_stop("enough")) if isinstance(event, ToolCallStarted) else None
        )
    )
    state = await agent.final_step(state)
    assert asked == [1]
    assert_stopped_by(state, "enough")


@pytest.mark.parametrize("reason", [5, None, b"stop"])
def test_a_reason_to_stop_must_be_text(reason: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be text"):
        scripted().request_stop(reason)


async def test_a_step_that_another_task_takes_is_interrupted_there() -> None:
    waiting = asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        if request.messages[-1].is_tool:
            waiting.set()
            await asyncio.Event().wait()
        yield ModelResponse(tool_calls=(ToolCall("call_1", "echo", {"value": "one"}),))

    agent = Agent(RespondingModel(respond), [echo])
    states = agent.iterate(agent.start("go"))

    async def next_state() -> AgentState:
        return await anext(states)

    await asyncio.create_task(next_state())
    second = asyncio.create_task(next_state())
    await waiting.wait()
    agent.request_stop("enough")
    done, _ = await asyncio.wait([second], timeout=5)  # It cancels nothing: the stop alone must end the step.
    assert done
    assert_stopped_by(second.result(), "enough")
