"""Tool calls in a run: together, in call order, with a context, and whatever they return."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import threading
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Any

import msgspec
import pydantic
import pytest

from tests.support import assert_readable, echo, requests_of, scripted
from whyloop import AgentStatus, ErrorPolicy, ToolContext, tool
from whyloop.events import ToolCallCompleted, ToolCallStarted
from whyloop.testing import FakeClock, call, calls, capture_events


async def test_several_calls_of_one_step_run_at_the_same_time() -> None:
    everyone = asyncio.Barrier(3)

    @tool
    async def meet(name: str) -> str:
        await everyone.wait()
        return name

    agent = scripted(calls(*(call("meet", {"name": n}) for n in "abc")), "done", tools=[meet])
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert [m.text for m in state.messages if m.is_tool] == ["a", "b", "c"]


async def test_results_are_in_call_order() -> None:
    first_may_finish = asyncio.Event()

    @tool
    async def slow() -> str:
        await first_may_finish.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        return "slow"

    @tool
    async def fast() -> str:
        first_may_finish.set()
        return "fast"

    agent = scripted(calls(call("slow"), call("fast")), "done", tools=[slow, fast])
    events = capture_events(agent)
    state = await agent.run("go")
    assert [e.tool for e in events.of(ToolCallCompleted)] == ["fast", "slow"]
    assert [m.text for m in requests_of(agent)[1].messages if m.is_tool] == ["slow", "fast"]
    assert [run.name for run in state.steps[0].tool_calls] == ["slow", "fast"]


async def test_plain_functions_run_off_the_event_loop_and_together() -> None:
    threads: list[int] = []
    both = threading.Barrier(2, timeout=5)

    @tool
    def block(name: str) -> str:
        threads.append(threading.get_ident())
        both.wait()
        return name

    agent = scripted(calls(call("block", {"name": "a"}), call("block", {"name": "b"})), "done", tools=[block])
    state = await agent.run("go")
    assert [m.text for m in state.messages if m.is_tool] == ["a", "b"]
    assert threading.get_ident() not in threads
    assert len(set(threads)) == 2


async def test_async_functions_run_on_the_event_loop() -> None:
    seen: list[object] = []

    @tool
    async def where() -> str:
        seen.append(asyncio.get_running_loop())
        return "here"

    await scripted(call("where"), "done", tools=[where]).run("go")
    assert seen == [asyncio.get_running_loop()]


async def test_a_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    async def later() -> str:
        return "later"

    @tool(name="work")
    def work() -> Any:
        return later()

    state = await scripted(call("work"), "done", tools=[work]).run("go")
    assert state.messages[2].text == "later"


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


async def test_plain_functions_see_the_callers_context_variables() -> None:
    variable.set("mine")

    @tool
    def look() -> str:
        return variable.get()

    state = await scripted(call("look"), "done", tools=[look]).run("go")
    assert state.messages[2].text == "mine"


async def test_a_tool_gets_its_context_by_type_and_not_by_name() -> None:
    seen: list[ToolContext] = []
    clock = FakeClock()

    @tool
    async def asynchronous(value: int, *, context: ToolContext) -> str:
        seen.append(context)
        return "ok"

    @tool
    def plain(ctx: ToolContext) -> str:
        seen.append(ctx)
        return "ok"

    agent = scripted(
        call("asynchronous", {"value": 1}), call("plain"), "done", tools=[asynchronous, plain], clock=clock
    )
    state = await agent.run("go")
    assert [(c.tool, c.tool_call_id, c.step_number) for c in seen] == [
        ("asynchronous", "call_1", 1),
        ("plain", "call_2", 2),
    ]
    for context in seen:
        assert context.agent_id == state.agent_id
        assert context.execution_id == state.execution.id
        assert context.deadline == clock.now() + timedelta(seconds=300)


async def test_without_a_time_limit_the_deadline_is_none() -> None:
    seen: list[ToolContext] = []

    @tool
    async def look(context: ToolContext) -> str:
        seen.append(context)
        return "ok"

    await scripted(call("look"), "done", tools=[look], timeout=None).run("go")
    assert seen[0].deadline is None


async def test_a_model_cannot_forge_the_context() -> None:
    @tool
    async def look(*, context: ToolContext) -> str:
        return context.agent_id

    forged = call("look", {"context": {"agent_id": "root"}})
    state = await scripted(forged, "done", tools=[look]).run("go")
    assert state.messages[2].text == state.agent_id


async def test_the_idempotency_key_is_stable_for_a_call_and_different_for_every_other() -> None:
    seen: list[str] = []

    @tool
    async def pay(*, context: ToolContext) -> str:
        seen.append(context.idempotency_key)
        return "paid"

    agent = scripted(calls(call("pay"), call("pay")), call("pay"), "done", "again", tools=[pay])
    start = agent.start("go")
    await agent.next_step(start)
    first = list(seen)
    assert len(set(first)) == 2

    retried = scripted(calls(call("pay"), call("pay")), tools=[pay])
    seen.clear()
    await retried.next_step(start)
    assert seen == first


async def test_two_calls_with_the_same_id_still_have_different_keys() -> None:
    seen: list[str] = []

    @tool
    async def pay(*, context: ToolContext) -> str:
        seen.append(context.idempotency_key)
        return "paid"

    agent = scripted(calls(call("pay", id="same"), call("pay", id="same")), "done", tools=[pay])
    await agent.run("go")
    assert len(set(seen)) == 2


class Color(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


class Struct(msgspec.Struct):
    y: int


class Model(pydantic.BaseModel):
    z: int
    at: datetime | None = None


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("text as it is", "text as it is"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (42, "42"),
        (1.5, "1.5"),
        ([1, "a"], '[1,"a"]'),
        ({"a": {"b": None}}, '{"a":{"b":null}}'),
        ((1, 2), "[1,2]"),
        (Color.RED, '"red"'),
        (Point(1), '{"x":1}'),
        (Struct(2), '{"y":2}'),
        (Model(z=3), '{"z":3,"at":null}'),
        ([Model(z=3)], '[{"z":3,"at":null}]'),
        ({"m": Model(z=3, at=datetime(2026, 1, 1, tzinfo=UTC))}, '{"m":{"z":3,"at":"2026-01-01T00:00:00Z"}}'),
        (date(2026, 1, 16), '"2026-01-16"'),
        ("Grüße 🎉", "Grüße 🎉"),
    ],
    ids=repr,
)
async def test_results_become_text_that_a_model_can_read(value: Any, written: str) -> None:
    @tool(name="give")
    async def give() -> Any:
        return value

    state = await scripted(call("give"), "done", tools=[give]).run("go")
    assert state.messages[2].text == written
    assert_readable(state)


async def test_arguments_and_results_may_be_pydantic_models() -> None:
    @tool
    def move(model: Model, by: int = 1) -> Model:
        return Model(z=model.z + by)

    state = await scripted(call("move", {"model": {"z": 1}}), "done", tools=[move]).run("go")
    assert state.messages[2].text == '{"z":2,"at":null}'


async def test_a_tool_that_changes_its_arguments_changes_no_record() -> None:
    @tool
    def shorten(order: dict[str, Any], lines: Any) -> str:
        order["lines"].clear()
        lines.append("another")
        return "done"

    arguments = {"order": {"lines": ["one"]}, "lines": ["two"]}
    agent = scripted(call("shorten", arguments), "done", tools=[shorten])
    events = capture_events(agent)
    state = await agent.run("go")
    [asked] = state.messages[1].tool_calls
    assert asked.arguments == {"order": {"lines": ["one"]}, "lines": ["two"]}
    assert [event.args for event in events.of(ToolCallStarted)] == [asked.arguments]


async def test_a_failed_call_among_others_leaves_the_others_alone() -> None:
    agent = scripted(
        calls(call("echo", {"value": "a"}), call("nope"), call("echo", {"value": "b"})),
        "done",
        tools=[echo],
        error_policy=ErrorPolicy.retry_tool_errors(),
    )
    state = await agent.run("go")
    assert [run.success for run in state.steps[0].tool_calls] == [True, False, True]
    assert [m.text for m in state.messages if m.is_tool and m.tool == "echo"] == ["a", "b"]
    assert state.steps[0].tool_calls[1].error is not None
