"""The stream of one run: its events in order, and what happens if its reader leaves early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support import echo, scripted
from whyloop import Agent, AgentStatus, ModelRequest, ModelResponse, Session, TextDelta, tool
from whyloop.errors import ConfigurationError, ScriptError
from whyloop.events import (
    AgentEvent,
    AgentExecutionFinished,
    AgentExecutionStarted,
    ContinuationEvaluated,
    StreamChunkReceived,
    ToolCallCompleted,
)
from whyloop.loop.stream import RunStream
from whyloop.stores import MemoryStore
from whyloop.testing import ScriptedModel, call, capture_events


class Endless:
    """Writes until it is stopped."""

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        while True:
            yield TextDelta("on and ")
            await asyncio.sleep(0)


async def _read(run: RunStream) -> list[AgentEvent]:
    return [event async for event in run]


async def test_a_stream_yields_the_events_of_the_run_in_order_and_ends_with_its_state() -> None:
    agent = scripted(call("echo", {"value": "hey"}), "done", tools=[echo])
    everything = capture_events(agent)
    async with agent.stream("go") as run:
        events = [event async for event in run]
    assert run.state.last_response == "done"
    assert events == list(everything)
    assert isinstance(events[0], AgentExecutionStarted)
    assert isinstance(events[-1], AgentExecutionFinished)
    kinds = {type(event) for event in events}
    assert {StreamChunkReceived, ToolCallCompleted, ContinuationEvaluated} <= kinds


async def test_a_stream_takes_the_state_of_an_earlier_run() -> None:
    agent = scripted("one", "two")
    state = await agent.run("first")
    async with agent.stream("second", state) as run:
        async for _ in run:
            pass
    assert (run.state.agent_id, len(run.state.messages)) == (state.agent_id, 4)


async def test_concurrent_streams_of_one_agent_receive_their_own_events_only() -> None:
    agent = scripted("a", "b")

    async def read() -> tuple[str, set[str]]:
        async with agent.stream("go") as run:
            ids = {event.agent_id async for event in run}
        return run.state.agent_id, ids

    first, second = await asyncio.gather(read(), read())
    assert [first[1], second[1]] == [{first[0]}, {second[0]}]


async def test_leaving_a_stream_early_stops_the_run() -> None:
    agent = Agent(Endless())
    async with asyncio.timeout(30), agent.stream("go") as run:
        async for event in run:
            if isinstance(event, StreamChunkReceived):
                break
    assert run.state.status is AgentStatus.STOPPED
    assert run.state.stop_reason == "user_requested"
    assert run.state.messages[-1].incomplete
    assert agent.request_stop("nothing is left to stop") == 0


async def test_an_error_in_the_block_stops_the_run_and_is_raised() -> None:
    stream = Agent(Endless()).stream("go")

    async def read() -> None:
        async with stream as run:
            await anext(run)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()
    assert stream.state.stop_reason == "user_requested"


async def test_an_error_of_the_run_is_raised_once_where_the_events_are_read() -> None:
    async with scripted().stream("go") as run:
        assert isinstance(await anext(run), AgentExecutionStarted)
        with pytest.raises(ScriptError, match="no reply"):
            await _read(run)


async def test_an_error_of_the_run_that_was_not_read_is_raised_at_the_end_of_the_block() -> None:
    done = asyncio.Event()

    @tool
    async def fail() -> str:
        done.set()
        raise ScriptError("the script of a tool ended")

    async def leave() -> None:
        async with scripted(call("fail"), tools=[fail]).stream("go"):
            await done.wait()

    with pytest.raises(ScriptError, match="of a tool"):
        await leave()


async def test_a_cancelled_reader_cancels_the_run() -> None:
    agent, reading = Agent(Endless()), asyncio.Event()

    async def read() -> None:
        async with agent.stream("go") as run:
            async for _ in run:
                reading.set()

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert agent.request_stop("nothing is left to stop") == 0


async def test_a_stream_says_how_it_is_used() -> None:
    stream = scripted("done").stream("go")
    with pytest.raises(RuntimeError, match="enter the stream"):
        await anext(stream)
    async with stream as run:
        with pytest.raises(RuntimeError, match="in progress"):
            run.state
        async for _ in run:
            pass
    with pytest.raises(RuntimeError, match="entered once"):
        await stream.__aenter__()


async def test_a_stream_that_is_not_read_does_not_hold_up_its_run() -> None:
    ended, agent = asyncio.Event(), scripted(call("echo", {"text": "a"}), "done", tools=[echo])
    agent.subscribe(lambda event: ended.set() if isinstance(event, AgentExecutionFinished) else None)
    async with asyncio.timeout(30), agent.stream("go") as run:
        await ended.wait()
    assert (run.state.status, run.state.last_response) == ("completed", "done")


async def test_a_stream_that_is_not_entered_runs_nothing() -> None:
    model = ScriptedModel(["done"])
    stream = Agent(model).stream("go")
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="the run has not started: enter the stream"):
        stream.state
    assert model.requests == []


async def test_a_session_streams_its_run_and_keeps_what_it_recorded() -> None:
    async with MemoryStore() as store:
        session = await Session.open(store, scripted("done"), "s-1", create=True)
        async with session.stream("go") as run:
            events = [event async for event in run]
        assert isinstance(events[-1], AgentExecutionFinished)
        assert session.state.last_response == run.state.last_response == "done"


async def test_leaving_the_stream_of_a_session_early_leaves_it_stopped_and_free() -> None:
    async with MemoryStore() as store:
        session = await Session.open(store, Agent(Endless()), "s-1", create=True)
        async with session.stream("go") as run:
            await anext(run)
        assert session.state.stop_reason == "user_requested"
        again = await Session.open(store, scripted("done"), "s-1")
        assert (await again.send("more")).last_response == "done"


async def test_a_stream_that_is_left_at_once_records_nothing() -> None:
    async with MemoryStore() as store:
        session = await Session.open(store, Agent(Endless()), "s-1", create=True)
        async with session.stream("go") as run:
            pass
        with pytest.raises(RuntimeError, match="it was cancelled"):
            run.state
        again = await Session.open(store, scripted("done"), "s-1")
        assert again.history() == ()
        assert (await again.send("more")).last_response == "done"


async def test_on_event_receives_the_events_of_one_run_only() -> None:
    agent, seen = scripted("one", "two"), list[AgentEvent]()
    first = await agent.run("first", on_event=seen.append)
    count = len(seen)
    await agent.run("second")
    assert count == len(seen) > 0
    assert {event.agent_id for event in seen} == {first.agent_id}


async def test_an_async_event_handler_is_refused() -> None:
    async def handle(event: AgentEvent) -> None: ...

    with pytest.raises(ConfigurationError, match="is async"):
        await scripted("done").run("go", on_event=handle)
