"""Tools that misbehave: each leaves a clear outcome in the trace and a state that can be read."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from tests.support import assert_readable, echo, requests_of, scripted
from whyloop import AgentState, AgentStatus, ErrorPolicy, Tool, tool
from whyloop.errors import ToolDefinitionError
from whyloop.testing import assert_stopped, call, calls


async def failed_run(made: Tool) -> tuple[AgentState, str]:
    """The state of a run whose only tool call fails, and what it says about it."""
    state = await scripted(call(made.name), tools=[made]).run("go")
    assert state.status is AgentStatus.FAILED
    assert_stopped(state, reason="error", by="ErrorPolicyCriterion")
    assert state.messages[-1].is_tool
    return state, assert_readable(state)


def test_a_tool_without_a_signature_is_refused_when_it_is_made() -> None:
    with pytest.raises(ToolDefinitionError, match="signature"):
        tool(max)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


class Unrepresentable:
    def __repr__(self) -> str:
        raise RuntimeError("no words for it")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": object()},
        {1, object()},
        lambda: 1,
        (n for n in "abc"),
        Unrepresentable(),
        CYCLE,
        deep(100_000),
        {("a", "tuple"): 1},
        10**5000,
        ["\ud800"],
        sys,
    ],
    ids=[
        "object",
        "nested",
        "set",
        "function",
        "generator",
        "no-repr",
        "cycle",
        "deep",
        "tuple-key",
        "huge-int",
        "surrogate",
        "module",
    ],
)
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_a_result_that_cannot_be_encoded_is_a_failure(value: Any, plain: bool) -> None:
    async def give_async() -> Any:
        return value

    def give() -> Any:
        return value

    made = tool(name="give")(give if plain else give_async)
    state, explanation = await failed_run(made)
    assert state.steps[0].failures[0].type == "tool"
    assert "it returned a value of type " in state.messages[-1].text
    assert "cannot be encoded" in state.messages[-1].text
    assert "give failed" in explanation


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "\ud800 lone"], ids=["nan", "inf", "surrogate"]
)
async def test_a_tool_that_returns_odd_values_leaves_a_state_that_can_be_read(value: Any) -> None:
    @tool(name="give")
    async def give() -> Any:
        return value

    state = await scripted(call("give"), "done", tools=[give]).run("go")
    assert state.status is AgentStatus.COMPLETED
    assert_readable(state)


class Quit(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        Quit("I quit"),
        SystemExit("I quit"),
        GeneratorExit("I quit"),
        StopIteration("I quit"),
        StopAsyncIteration("I quit"),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
@pytest.mark.parametrize("together", [True, False], ids=["two calls", "one call"])
async def test_a_tool_that_raises_any_baseexception_is_a_failed_tool(
    error: BaseException, plain: bool, together: bool
) -> None:
    async def leave_async() -> Any:
        raise error

    def leave() -> Any:
        raise error

    made = tool(name="leave")(leave if plain else leave_async)
    reply = calls(call("echo"), call("leave")) if together else call("leave")
    state = await scripted(reply, tools=[echo, made]).run("go")
    assert_stopped(state, reason="error", by="ErrorPolicyCriterion")
    explanation = assert_readable(state)
    # Python itself turns a StopIteration in a coroutine into a RuntimeError that names it.
    name = "RuntimeError" if isinstance(error, StopIteration) and not plain else type(error).__name__
    assert f"{name} in leave" in explanation
    assert "I quit" not in explanation
    debugged = state.explain(debug=True)
    assert "I quit" in debugged or "raised StopIteration" in debugged
    assert state.steps[0].failures[0].type == "tool"


async def test_a_keyboard_interrupt_in_a_thread_is_a_failed_tool() -> None:
    @tool
    def interrupt() -> str:
        raise KeyboardInterrupt

    _, explanation = await failed_run(interrupt)
    assert "KeyboardInterrupt" in explanation


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        SilentError(),
        Exception(),
        Exception("\ud800"),
        Exception("x" * 1_000_000),
        Exception("two\nlines"),
        RecursionError("too deep"),
        MemoryError(),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
    ],
    ids=["silent", "empty", "surrogate", "long", "lines", "recursion", "memory", "group"],
)
async def test_a_tool_that_raises_odd_errors_is_a_failed_tool(error: Exception) -> None:
    @tool
    async def fail() -> str:
        raise error

    _, explanation = await failed_run(fail)
    assert type(error).__name__ in explanation
    assert len(explanation) < 10_000


async def test_the_error_of_a_failed_tool_is_cut_for_the_model() -> None:
    @tool
    async def fail() -> str:
        raise RuntimeError("x" * 10_000_000)

    state, _ = await failed_run(fail)
    assert len(state.messages[-1].text) < 1_000_000
    assert len(json.dumps(state.to_dict())) < 3_000_000


async def test_ten_megabytes_are_cut_and_marked_as_cut() -> None:
    @tool
    async def dump() -> str:
        return "x" * 10_000_000

    agent = scripted(call("dump"), "done", tools=[dump])
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    sent = requests_of(agent)[1].messages[-1].text
    assert len(sent) < 300_000
    assert "10,000,000 characters" in sent
    assert_readable(state)


async def test_ten_megabytes_of_json_are_cut_too() -> None:
    @tool(max_result_chars=100)
    def dump() -> list[int]:
        return list(range(1_000_000))

    state = await scripted(call("dump"), "done", tools=[dump]).run("go")
    assert state.messages[2].text.startswith("[0,1,2,")
    assert len(state.messages[2].text) < 300
    assert "cut" in state.messages[2].text


async def test_a_tool_can_say_that_its_results_are_never_cut() -> None:
    @tool(max_result_chars=None)
    async def dump() -> str:
        return "x" * 300_000

    state = await scripted(call("dump"), "done", tools=[dump]).run("go")
    assert len(state.messages[2].text) == 300_000


async def test_a_tool_that_never_returns_is_cut_off_and_the_run_says_so() -> None:
    @tool(timeout=0.01)
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    state = await scripted(call("hang"), tools=[hang], clock=None).run("go")
    assert_stopped(state, reason="error")
    assert "hang did not finish within 0.01 s" in assert_readable(state)


async def test_a_tool_that_recurses_without_end_is_a_failed_tool() -> None:
    @tool
    def recurse() -> int:
        return int(recurse()) + 1

    _, explanation = await failed_run(recurse)
    assert "RecursionError" in explanation


async def test_any_error_of_a_tool_can_be_ignored_by_a_policy() -> None:
    @tool
    async def leave() -> str:
        raise SystemExit(3)

    agent = scripted(call("leave"), "done", tools=[leave], error_policy=ErrorPolicy.ignore_tool_errors())
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert "SystemExit" in requests_of(agent)[1].messages[-1].text
