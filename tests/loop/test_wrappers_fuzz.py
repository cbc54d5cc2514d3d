"""Random runs that are stopped, timed out and cancelled: every wrapper ends, every toolset is closed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Self

import pytest

from whyloop import (
    Agent,
    AgentStatus,
    ErrorPolicy,
    Hook,
    ModelRequest,
    ModelResponse,
    RunContext,
    TextDelta,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolResult,
    Toolset,
    tool,
)
from whyloop.errors import ModelError
from whyloop.loop.hooks import AskModel, RunTool
from whyloop.testing import FakeClock


class Place:
    """Two agents, one inside a tool of the other, that share a toolset; all of them wait at random."""

    def __init__(self, seed: int) -> None:
        self.dice, self.clock = Random(seed), FakeClock()
        self.inside = 0
        self.problems: list[str] = []
        toolset = Shared(self)
        inner = Agent(Talker(self, ["shared"]), tools=toolset, hooks=[Counted(self)], clock=self.clock)

        @tool
        async def nested() -> str:
            """Ask another agent."""
            return (await inner.run("inner")).status

        self.toolset = toolset
        self.agent = Agent(
            Talker(self, ["shared", "shared", "nested"]),
            tools=[toolset, nested],
            hooks=[Counted(self), Counted(self)],
            clock=self.clock,
            error_policy=ErrorPolicy.retry_all(2),
            stop_grace=1,
            max_steps=6,
        )

    async def wait(self, most: int) -> None:
        for _ in range(self.dice.randrange(most)):
            await asyncio.sleep(0)

    async def talk(self) -> None:
        state = await self.agent.run("go")
        for pending in state.pending_calls:
            state = state.approve(pending.id)
        if state.status is not AgentStatus.COMPLETED:
            await self.agent.resume(state)

    async def look(self) -> None:
        """Leave the run after any step."""
        async for _ in self.agent.iterate(self.agent.start("go")):
            if self.dice.random() < 0.3:
                break


class Talker:
    def __init__(self, place: Place, names: Sequence[str]) -> None:
        self.place, self.names = place, names

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        dice = self.place.dice
        await self.place.wait(4)
        yield TextDelta("so")
        await self.place.wait(3)
        if dice.random() < 0.1:
            raise ModelError("it failed", status=500)
        asked = [ToolCall(str(number), dice.choice(self.names), {}) for number in range(dice.randrange(4))]
        yield ModelResponse("so", tuple(asked))


class Counted(Hook):
    def __init__(self, place: Place) -> None:
        self.place = place

    async def around_model(self, request: ModelRequest, context: RunContext, ask: AskModel) -> ModelResponse:
        self.place.inside += 1
        try:
            await self.place.wait(3)
            return await ask(request)
        finally:
            self.place.inside -= 1

    async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
        self.place.inside += 1
        try:
            await self.place.wait(3)
            return await run()
        finally:
            self.place.inside -= 1


class Shared(Toolset):
    def __init__(self, place: Place) -> None:
        self.place, self.open = place, 0
        self.owner: asyncio.Task[Any] | None = None

    def check(self, fine: bool, problem: str) -> None:
        if not fine:
            self.place.problems.append(problem)

    async def list(self) -> Sequence[ToolDefinition]:
        await self.place.wait(3)
        needs_approval = self.place.dice.random() < 0.2
        return [ToolDefinition("shared", "Work.", {"type": "object"}, needs_approval=needs_approval)]

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> object:
        await self.place.wait(5)
        self.check(self.open == 1, "called while it is not open")
        return "done"

    async def __aenter__(self) -> Self:
        self.check(self.open == 0, "opened twice")
        self.owner = asyncio.current_task()
        await self.place.wait(4)
        if self.place.dice.random() < 0.1:
            raise ConnectionError("down")
        self.open += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.check(asyncio.current_task() is self.owner, "closed by another task")
        await self.place.wait(4)
        self.open -= 1


@pytest.mark.parametrize("seed", range(60))
async def test_every_wrapper_ends_and_every_toolset_is_closed_by_its_task(seed: int) -> None:
    place = Place(seed)
    dice, tasks = place.dice, asyncio.all_tasks()
    runs = [asyncio.create_task(dice.choice([place.talk, place.look])()) for _ in range(dice.randrange(1, 4))]
    for _ in range(dice.randrange(60)):
        await asyncio.sleep(0)
        match dice.randrange(50):
            case 0:
                place.agent.request_stop("enough")
            case 1:
                place.clock.advance(400)
            case 2:
                dice.choice(runs).cancel()
    while not all(run.done() for run in runs):
        await asyncio.sleep(0)
        place.clock.advance(3)
    ended = await asyncio.gather(*runs, return_exceptions=True)
    for _ in range(50):  # A run that was left is closed by the event loop.
        await asyncio.sleep(0)
    assert not [error for error in ended if isinstance(error, Exception)]
    assert place.problems == []
    assert (place.inside, place.toolset.open) == (0, 0)
    assert asyncio.all_tasks() == tasks
