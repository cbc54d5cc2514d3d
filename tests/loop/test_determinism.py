"""Everything that touches the world goes through one port: the same ports give the same run."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from datetime import datetime
from typing import Any

import msgspec
import pytest

from tests.golden.fixed_run import fixed_run
from tests.support import FixedWorld, echo
from whyloop import (
    Agent,
    ErrorPolicy,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolContext,
    ToolDefinition,
    Toolset,
    tool,
)
from whyloop.errors import RateLimitError
from whyloop.events import AgentEvent
from whyloop.testing import FakeClock, ScriptedModel, call, calls


def script() -> list[Any]:
    return [
        RateLimitError("busy"),
        calls(call("echo", {"value": "a"}), call("nope"), usage=10),
        RateLimitError("busy", retry_after=5),
        call("echo", "{oops"),
        "done",
    ]


class RecordingWorld(FixedWorld):
    """Notes everything the loop asks of the world."""

    def __init__(self, clock: FakeClock) -> None:
        model = ScriptedModel(script())
        super().__init__(model, clock)
        self.asked: list[str] = []
        self.model = model
        self._note("now", "monotonic", "sleep", "timeout")

    def _note(self, *names: str) -> None:
        for name in names:
            setattr(self, name, self._noting(name, getattr(self, name)))

    def _noting(self, name: str, function: Any) -> Any:
        def noted(*args: Any) -> Any:
            self.asked.append(name)
            return function(*args)

        return noted

    def new_id(self) -> str:
        self.asked.append("new_id")
        return super().new_id()

    def random(self) -> float:
        self.asked.append("random")
        return super().random()

    def call_tool(
        self, toolset: Toolset, tool: ToolDefinition, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]:
        self.asked.append(f"tool {tool.name}")
        return super().call_tool(toolset, tool, arguments, context)


async def run_once() -> tuple[bytes, bytes, list[str]]:
    world = RecordingWorld(FakeClock())
    events: list[AgentEvent] = []
    agent = Agent(
        world.model, [echo], world=world, error_policy=ErrorPolicy.retry_all(), event_handler=events.append
    )
    state = await agent.run("go")
    return msgspec.json.encode(state.to_dict()), msgspec.json.encode(events), world.asked


async def test_a_whole_execution_run_twice_from_the_same_ports_is_the_same_byte_for_byte() -> None:
    first, second = await run_once(), await run_once()
    assert first == second


async def test_two_queries_with_a_stop_are_the_same_byte_for_byte_too() -> None:
    first, second = await fixed_run(), await fixed_run()
    assert msgspec.json.encode(first.to_dict()) == msgspec.json.encode(second.to_dict())


async def test_ids_randomness_time_and_tools_come_from_the_world() -> None:
    _, _, asked = await run_once()
    assert asked.count("new_id") == 3  # The execution, the session's name and its identity.
    assert asked.count("random") == 2
    assert asked.count("sleep") == 2
    assert asked.count("tool echo") == 1


async def test_time_and_chance_come_from_the_world_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object) -> Any:
        raise AssertionError("the loop went around its port")

    class NoClock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            forbidden()

    import whyloop.values.scalars

    with monkeypatch.context() as patch:
        patch.setattr(whyloop.values.scalars, "datetime", NoClock)
        patch.setattr("os.urandom", forbidden)
        patch.setattr(time, "time", forbidden)
        patch.setattr(random, "random", forbidden)
        document, _, _ = await run_once()
    assert b"done" in document


async def test_the_same_tool_calls_in_parallel_finish_in_any_order_with_the_same_state() -> None:
    async def run(order: list[str]) -> bytes:
        turns = {name: asyncio.Event() for name in order}

        @tool
        async def step(name: str) -> str:
            if order.index(name) > 0:
                await turns[order[order.index(name) - 1]].wait()
            turns[name].set()
            return name

        model = ScriptedModel([calls(*(call("step", {"name": n}) for n in "abc")), "done"])
        agent = Agent(model, [step], world=FixedWorld(model, FakeClock()))
        return msgspec.json.encode((await agent.run("go")).to_dict())

    assert await run(["a", "b", "c"]) == await run(["c", "b", "a"]) == await run(["b", "c", "a"])


async def test_a_model_that_is_asked_through_the_world_may_be_another_one() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield ModelResponse("from the journal")

    model = ScriptedModel([])
    world = FixedWorld(model, FakeClock())
    world.respond = respond
    state = await Agent(model, world=world).run("go")
    assert state.last_response == "from the journal"
