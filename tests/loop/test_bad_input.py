"""Models that misbehave: each leaves a clear outcome in the trace and a state that can be read."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support import RespondingModel, assert_can_be_read, assert_readable, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    Block,
    ContinuationDecision,
    ContinuationEvaluation,
    ErrorPolicy,
    Hook,
    Message,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolCall,
    ToolContext,
    tool,
)
from whyloop.errors import ModelError
from whyloop.testing import FakeClock, ScriptedModel, assert_stopped, call, text


@tool
async def keep(value: Any) -> str:
    """Takes anything."""
    return "kept"


@pytest.mark.parametrize(
    "arguments",
    [
        "this is not JSON",
        "{",
        '{"value": }',
        "{'value': 1}",
        '{"value": 1} trailing',
        "[]",
        "[[1]]",
        '"text"',
        "17",
        "true",
        "null",
        '{"value": NaN}',
        '{"value": Infinity}',
        '{"value": -Infinity}',
        "\x00",
        '{"value": "\ud800"}',
        '{"val',
        "x" * 1_000_000,
        '{"unknown": 1}',
        "{}",
    ],
    ids=lambda a: repr(a[:30]),
)
async def test_arguments_that_do_not_fit_are_a_validation_error_in_the_trace(arguments: str) -> None:
    state = await scripted(call("keep", arguments), tools=[keep]).run("go")
    assert state.status is AgentStatus.FAILED
    assert_stopped(state, reason="error", by="ErrorPolicyCriterion")
    assert state.steps[0].failures[0].type == "validation"
    assert "keep" in assert_readable(state)


def from_deep_inside(frames: int, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call a function inside so many others, as in a web framework."""
    return from_deep_inside(frames - 1, function) if frames else function()


@pytest.mark.parametrize("depth", [1, 10, 100, 400, 700, 800, *range(900, 1030, 10), 5_000, 200_000])
async def test_deeply_nested_arguments_leave_a_state_that_can_be_read(depth: int) -> None:
    arguments = '{"value":' + "[" * depth + "]" * depth + "}"
    agent = scripted(
        call("keep", arguments), "done", tools=[keep], error_policy=ErrorPolicy.retry_tool_errors()
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    document = from_deep_inside(150, state.to_dict)
    restored = AgentState.from_dict(document)
    assert restored.explain() == state.explain()
    assert restored == state


@pytest.mark.parametrize(
    "number", ["1e999", "123456789012345678901234567890", "-9223372036854775809", "1e-999"]
)
async def test_numbers_without_measure_leave_a_state_that_can_be_read(number: str) -> None:
    agent = scripted(
        call("keep", f'{{"value": {number}}}'), "done", tools=[keep], error_policy=ErrorPolicy.retry_all()
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert_readable(state)


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, b"\xff", (1, 2), {1: 2}, float("nan"), {"x": float("-inf")}],
    ids=["object", "set", "bytes", "tuple", "number as key", "NaN", "infinity"],
)
async def test_a_response_that_json_cannot_hold_leaves_a_readable_state(
    value: Any,
) -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield ModelResponse("", (ToolCall("c1", "keep", {"value": value}),))

    state = await Agent(RespondingModel(respond), [keep], max_steps=1).run("go")
    assert assert_can_be_read(state).explain() == state.explain()


@pytest.mark.parametrize("reply", [text("", usage=7), text("", finish_reason="other", usage=7)])
async def test_an_empty_reply_is_a_validation_failure_whose_tokens_count(reply: Any) -> None:
    state = await scripted(reply).run("go")
    assert_stopped(state, reason="error", by="ErrorPolicyCriterion")
    assert state.steps[0].failures[0].type == "validation"
    assert state.execution.usage.total == 7
    assert [m.role.value for m in state.messages] == ["user"]
    assert "empty" in assert_readable(state)


async def test_an_empty_reply_can_be_retried() -> None:
    state = await scripted(text(""), "there", error_policy=ErrorPolicy.retry_all()).run("go")
    assert [m.text for m in state.messages] == ["go", "there"]
    assert_stopped(state, reason="completed")


async def test_an_empty_reply_after_tool_results_of_the_same_execution_is_an_answer() -> None:
    agent = scripted(call("keep", {"value": 1}), text(""), text(""), tools=[keep])
    state = await agent.run("go")
    assert_stopped(state, reason="completed", by="ToolCallPresenceCheck")
    assert "empty" in assert_readable(state)
    # The results of an earlier query are no reason to say nothing to this one.
    state = await agent.run("and?", state=state)
    assert_stopped(state, reason="error", by="ErrorPolicyCriterion")


async def test_a_stream_that_yields_nothing_at_all_is_a_validation_error() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        nothing: tuple[TextDelta, ...] = ()
        for piece in nothing:
            yield piece

    state = await Agent(RespondingModel(respond)).run("go")
    assert_stopped(state, reason="error")
    assert state.steps[0].failures[0].type == "validation"
    assert_readable(state)


async def test_a_model_that_always_calls_a_tool_is_stopped_by_the_steps_limit() -> None:
    model = ScriptedModel(call("echo", {"value": str(n)}) for n in itertools.count())
    state = await Agent(model, [echo], clock=FakeClock()).run("go")
    assert_stopped(state, reason="steps_limit", by="StepsLimit")
    assert state.step_count == 20
    assert state.status is AgentStatus.STOPPED
    assert "20 of 20 steps" in assert_readable(state)


async def test_a_model_that_always_invents_tools_is_stopped_by_the_retries() -> None:
    model = ScriptedModel(itertools.repeat(call("serach")))
    agent = Agent(model, [echo], clock=FakeClock(), error_policy=ErrorPolicy.retry_tool_errors(2))
    state = await agent.run("go")
    assert_stopped(state, reason="retry_limit")
    assert state.step_count == 3
    assert "Validation error after 3 consecutive failures (max: 2)" in assert_readable(state)


SURROGATE = "lone \ud800 half"


async def test_half_characters_in_a_query_leave_a_state_that_can_be_read() -> None:
    agent = scripted("done")
    state = await agent.run(SURROGATE)
    assert_can_be_read(state)
    state = await scripted("done").run(Message.user(SURROGATE))
    assert_can_be_read(state)


@pytest.mark.parametrize(
    "reply",
    [
        text(SURROGATE),
        call("echo", {"value": "x"}, text=SURROGATE),
        call("echo", json.dumps({"value": SURROGATE})),
        call(SURROGATE),
        call("echo", id=SURROGATE),
        ModelError(SURROGATE),
        RuntimeError(SURROGATE),
    ],
    ids=["text", "words", "arguments", "name", "id", "model-error", "error"],
)
async def test_half_characters_from_a_model_leave_a_state_that_can_be_read(reply: Any) -> None:
    state = await scripted(reply, tools=[echo], max_steps=1).run("go")
    assert_can_be_read(state)


async def test_half_characters_from_a_stop_request_leave_a_state_that_can_be_read() -> None:
    agent = scripted(call("echo"), tools=[echo])
    agent.subscribe(lambda event: agent.request_stop(SURROGATE) and None)
    assert_can_be_read(await agent.run("go"))


async def test_half_characters_from_a_rule_or_a_hook_leave_a_state_that_can_be_read() -> None:
    class Guard(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> Block:
            return Block(SURROGATE)

    allow = ContinuationDecision.ALLOW_CONTINUATION
    said = ContinuationEvaluation("Guard", allow, SURROGATE, {SURROGATE: SURROGATE})
    agent = scripted(call("echo"), "done", tools=[echo], hooks=[Guard()], criteria=lambda state: said)
    assert_can_be_read(await agent.run("go"))


@pytest.mark.parametrize(
    "name", ["x" * 1_000_000, "two\nlines", "\x1b[31mred"], ids=["long", "lines", "escape"]
)
async def test_a_tool_name_without_measure_does_not_spoil_the_explanation(name: str) -> None:
    state = await scripted(call(name), tools=[echo]).run("go")
    explanation = assert_readable(state)
    assert len(explanation) < 20_000
    assert len(explanation.splitlines()) < 20


async def test_a_reply_with_very_many_tool_calls_is_run() -> None:
    many = tuple(ToolCall(f"c{n}", "echo", {"value": str(n)}) for n in range(500))

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield ModelResponse("", many) if len(request.messages) == 1 else ModelResponse("done")

    state = await Agent(RespondingModel(respond), [echo]).run("go")
    assert [m.text for m in state.messages if m.is_tool] == [str(n) for n in range(500)]
    assert_readable(state)


async def test_a_very_long_answer_is_kept_whole() -> None:
    agent = scripted("x" * 5_000_000)
    state = await agent.run("go")
    assert len(state.last_response) == 5_000_000
    assert len(requests_of(agent)) == 1
