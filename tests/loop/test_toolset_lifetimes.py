"""How long a toolset stays open, and what happens while it cannot be opened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support import requests_of, scripted
from whyloop import Agent, AgentState, AgentStatus, ErrorPolicy, ToolContext, ToolDefinition, Toolset
from whyloop.errors import interrupted_state
from whyloop.events import AgentEvent, AgentStepStarted
from whyloop.testing import FakeClock, ScriptedModel, call

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}


class Line(Toolset):
    """A connection that notes when it is opened, used and closed; each of it can be held up."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.notes: list[str] = []
        self.is_open = False
        self.may_open, self.may_close = asyncio.Event(), asyncio.Event()
        self.may_open.set()
        self.may_close.set()
        self.reached = asyncio.Event()
        self.error: BaseException | None = None

    async def list(self) -> Sequence[ToolDefinition]:
        return [ToolDefinition("search", "Search.", SCHEMA, **self.options)]

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        assert self.is_open
        return "found"

    async def __aenter__(self) -> Self:
        assert not self.is_open
        self.reached.set()
        await self.may_open.wait()
        if self.error is not None:
            raise self.error
        self.is_open = True
        self.notes.append("open")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.reached.set()
        await self.may_close.wait()
        self.is_open = False
        self.notes.append("close")


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_toolset_that_is_closing_is_closed_before_it_opens_again() -> None:
    line = Line()
    line.may_close.clear()
    agent = scripted("one", call("search", {}), "two", tools=line)
    first = asyncio.create_task(agent.run("first"))
    await turns()
    second = asyncio.create_task(agent.run("second"))
    await turns()
    assert line.notes == ["open"]
    line.may_close.set()
    await first
    assert (await second).status is AgentStatus.COMPLETED
    assert line.notes == ["open", "close"] * 2


async def test_a_use_that_is_cancelled_before_it_began_does_not_hurry_the_next() -> None:
    line = Line()
    line.may_close.clear()
    agent = scripted("one", call("search", {}), "two", tools=line)
    first = asyncio.create_task(agent.run("first"))
    await turns()
    second = asyncio.create_task(agent.run("second"))
    await turns()
    second.cancel()
    await turns()
    third = asyncio.create_task(agent.run("third"))
    await turns()
    line.may_close.set()
    await first
    await asyncio.wait([second])
    assert (await third).status is AgentStatus.COMPLETED
    assert line.notes == ["open", "close"] * 2


async def test_two_agents_share_a_toolset_and_the_last_one_closes_it() -> None:
    line = Line()
    inner, outer = scripted("in", tools=line), scripted(call("search", {}), "out", tools=line)
    async with outer:
        assert (await inner.run("inner")).status is AgentStatus.COMPLETED
        state = await outer.run("outer")
    assert state.messages[2].text == "found"
    assert line.notes == ["open", "close"]


async def test_a_stop_ends_a_run_whose_toolset_does_not_open() -> None:
    line = Line()
    line.may_open.clear()
    agent = scripted(tools=line)
    run = asyncio.create_task(agent.run("go"))
    await line.reached.wait()
    assert agent.request_stop("enough") == 1
    state = await asyncio.wait_for(run, 5)
    assert (state.status, state.stop_reason) == (AgentStatus.STOPPED, "user_requested")
    assert requests_of(agent) == []
    line.may_open.set()
    assert line.notes == []


async def test_the_time_limit_ends_a_run_whose_toolset_does_not_open() -> None:
    line, clock = Line(), FakeClock()
    line.may_open.clear()
    run = asyncio.create_task(scripted(tools=line, timeout=30, clock=clock).run("go"))
    await line.reached.wait()
    clock.advance(31)
    state = await asyncio.wait_for(run, 5)
    assert (state.status, state.stop_reason) == (AgentStatus.STOPPED, "time_limit")


async def test_a_task_that_is_cancelled_while_a_toolset_opens_leaves_its_state() -> None:
    line = Line()
    line.may_open.clear()
    run = asyncio.create_task(scripted(tools=line).run("go"))
    await line.reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await run
    state = interrupted_state(caught.value)
    assert state is not None
    assert state.messages[0].text == "go"
    assert state.status is AgentStatus.STOPPED


async def test_a_task_that_is_cancelled_while_a_toolset_closes_leaves_its_state() -> None:
    line = Line()
    line.may_close.clear()
    run = asyncio.create_task(scripted("done", tools=line).run("go"))
    while line.notes != ["open"]:
        await asyncio.sleep(0)
    line.reached.clear()
    await line.reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await run
    state = interrupted_state(caught.value)
    assert state is not None
    assert state.last_response == "done"
    line.may_close.set()
    await turns()
    assert line.notes == ["open", "close"]


async def test_a_retry_opens_a_toolset_again() -> None:
    line, clock = Line(), FakeClock()
    line.error = ConnectionError("down")
    events: list[AgentEvent] = []

    def repair(event: AgentEvent) -> None:
        events.append(event)
        if line.reached.is_set():
            line.error = None

    agent = scripted(
        "done", tools=line, error_policy=ErrorPolicy.retry_all(), clock=clock, event_handler=repair
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert [step.failures[0].message for step in state.steps if step.failures] == ["ConnectionError: down"]
    started = [event for event in events if isinstance(event, AgentStepStarted)]
    assert started[-1].available_tools == ("search",)


async def test_an_approved_call_says_that_its_toolset_cannot_be_opened() -> None:
    line = Line(needs_approval=True)
    agent = scripted(call("search", {}), "done", tools=line)
    paused = await agent.run("go")
    line.error = ConnectionError("the line is down")
    state = await agent.resume(paused.approve(paused.pending_calls[0].id))
    assert state.status is AgentStatus.FAILED
    assert state.steps[0].tool_calls[0].error == "not run: ConnectionError: the line is down"


async def test_a_toolset_that_cancels_its_own_opening_is_a_failure_in_the_trace() -> None:
    line = Line()
    line.error = asyncio.CancelledError()
    state = await scripted(tools=line).run("go")
    assert state.status is AgentStatus.FAILED
    assert "the opening of Line was cancelled" in state.steps[0].failures[0].message


async def test_a_toolset_that_broke_down_is_opened_again_for_the_next_run() -> None:
    class Broken(Line):
        async def __aenter__(self) -> Self:
            self.owner = asyncio.current_task()
            return await super().__aenter__()

    line = Broken()
    agent = scripted("one", call("search", {}), "two", tools=line)
    async with agent:
        await agent.run("first")
        assert line.owner is not None
        line.owner.cancel()
        await asyncio.wait([line.owner])
        state = await agent.run("second")
    assert state.messages[2].text == "found"


def test_a_toolset_that_is_open_on_another_event_loop_is_a_failure_in_the_trace() -> None:
    line = Line()
    agent = Agent(ScriptedModel(["one", "two", "three"]), tools=line)
    states: list[AgentState] = []

    async def main() -> None:
        async with agent:
            thread = threading.Thread(target=lambda: states.append(agent.run_sync("elsewhere")))
            thread.start()
            await asyncio.to_thread(thread.join)
            states.append(await agent.run("here"))

    asyncio.run(main())
    assert [state.status for state in states] == [AgentStatus.FAILED, AgentStatus.COMPLETED]
    assert "Line is open on another event loop" in states[0].steps[0].failures[0].message
    assert line.notes == ["open", "close"]
    assert agent.run_sync("afterwards").status is AgentStatus.COMPLETED


def test_a_toolset_with_nothing_to_open_serves_runs_in_several_threads() -> None:
    class Constant(Toolset):
        async def list(self) -> Sequence[ToolDefinition]:
            return [ToolDefinition("one", "Return 1.", SCHEMA)]

        async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
            await asyncio.to_thread(both_run.wait)
            return 1

    both_run, states = threading.Barrier(2, timeout=10), []

    def run() -> None:
        states.append(Agent(ScriptedModel([call("one", {}), "done"]), tools=constant).run_sync("go"))

    constant = Constant()
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.status for state in states] == [AgentStatus.COMPLETED] * 2


@pytest.mark.parametrize(
    ("idempotent", "is_gone", "status"),
    [
        (True, False, AgentStatus.COMPLETED),
        (False, False, AgentStatus.PAUSED),
        (True, True, AgentStatus.PAUSED),
    ],
)
async def test_a_call_that_was_running_is_made_again_only_if_its_tool_is_still_idempotent(
    idempotent: bool, is_gone: bool, status: AgentStatus
) -> None:
    class Slow(Line):
        async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
            self.notes.append(context.idempotency_key)
            if len(self.notes) == 2:
                running.set()
                await asyncio.Event().wait()
            return "found"

    running, line = asyncio.Event(), Slow(idempotent=idempotent)
    agent = scripted(call("search", {}), "done", tools=line, stop_grace=0)
    run = asyncio.create_task(agent.run("go"))
    await running.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await run
    left = interrupted_state(caught.value)
    assert left is not None
    if is_gone:
        agent = scripted("done")
    state = await agent.resume(left)
    assert state.status is status
    keys = [note for note in line.notes if note not in ("open", "close")]
    assert len(keys) == 1 + (status is AgentStatus.COMPLETED)
    assert len(set(keys)) == 1
