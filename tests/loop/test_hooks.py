"""Hooks around the model call and around each tool call: typed, ordered, and never a crash."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import assert_readable, broken, echo, requests_of, scripted
from whyloop import (
    AgentStatus,
    Block,
    ErrorPolicy,
    Hook,
    Message,
    ModelRequest,
    ModelResponse,
    ToolCall,
    ToolContext,
    ToolResult,
)
from whyloop.errors import ConfigurationError
from whyloop.events import ToolCallCompleted
from whyloop.testing import assert_stopped, call, calls, capture_events


class Noted(Hook):
    """Writes down when it is asked."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def before_model(self, request: ModelRequest) -> ModelRequest | ModelResponse:
        self.notes.append(f"{self.name} before model")
        return request

    async def after_model(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        self.notes.append(f"{self.name} after model")
        return response

    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult | Block:
        self.notes.append(f"{self.name} before {context.tool_name}")
        return call

    async def after_tool(self, call: ToolCall, result: ToolResult, context: ToolContext) -> ToolResult:
        self.notes.append(f"{self.name} after {context.tool_name}")
        return result


async def test_before_hooks_run_in_order_and_after_hooks_in_the_reverse_order() -> None:
    notes: list[str] = []
    hooks = [Noted("a", notes), Hook(), Noted("b", notes)]
    state = await scripted(call("echo"), "done", tools=[echo], hooks=hooks).run("go")
    assert state.status is AgentStatus.COMPLETED
    around_model = ["a before model", "b before model", "b after model", "a after model"]
    around_tool = ["a before echo", "b before echo", "b after echo", "a after echo"]
    assert notes == around_model + around_tool + around_model


async def test_a_hook_can_change_the_request() -> None:
    class Redact(Hook):
        async def before_model(self, request: ModelRequest) -> ModelRequest:
            hidden = [replace(m, content=m.text.replace("s3cret", "***")) for m in request.messages]
            return replace(request, messages=hidden)

    agent = scripted("done", hooks=[Redact()])
    state = await agent.run("my password is s3cret")
    assert [m.text for m in requests_of(agent)[0].messages] == ["my password is ***"]
    assert state.messages[0].text == "my password is s3cret"


async def test_a_hook_can_answer_in_place_of_the_model_and_later_ones_are_not_asked() -> None:
    notes: list[str] = []

    class Cache(Hook):
        async def before_model(self, request: ModelRequest) -> ModelRequest | ModelResponse:
            return ModelResponse("from the cache")

    agent = scripted(hooks=[Cache(), Noted("late", notes)])
    state = await agent.run("go")
    assert state.last_response == "from the cache"
    assert requests_of(agent) == []
    assert "late before model" not in notes
    assert_stopped(state, reason="completed")


async def test_a_hook_can_change_the_response() -> None:
    class Polite(Hook):
        async def after_model(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
            return replace(response, text=response.text + ", please")

    state = await scripted("wait", hooks=[Polite()]).run("go")
    assert state.messages[-1] == Message.assistant("wait, please")


async def test_a_hook_can_change_a_call() -> None:
    class Louder(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            return replace(call, arguments={"value": str(call.arguments["value"]).upper()})  # type: ignore[index]

    state = await scripted(call("echo", {"value": "hey"}), "done", tools=[echo], hooks=[Louder()]).run("go")
    assert state.messages[2].text == "HEY"


async def test_a_hook_can_answer_in_place_of_a_tool() -> None:
    class Cache(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolResult:
            return ToolResult("remembered")

    state = await scripted(call("broken"), "done", tools=[broken], hooks=[Cache()]).run("go")
    assert state.messages[2].text == "remembered"
    assert state.steps[0].tool_calls[0].success


async def test_a_hook_can_redact_a_result() -> None:
    class Redact(Hook):
        async def after_tool(self, call: ToolCall, result: ToolResult, context: ToolContext) -> ToolResult:
            return replace(result, content=result.content.replace("4111", "****"))

    agent = scripted(call("echo", {"value": "card 4111"}), "done", tools=[echo], hooks=[Redact()])
    events = capture_events(agent)
    state = await agent.run("go")
    assert state.messages[2].text == "card ****"
    assert events.of(ToolCallCompleted)[0].result == "card ****"
    assert requests_of(agent)[1].messages[-1].text == "card ****"


async def test_a_hook_that_blocks_a_call_leaves_its_words_in_the_trace() -> None:
    class Guard(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | Block:
            return Block("nobody deletes on Fridays") if call.name == "broken" else call

    agent = scripted(
        calls(call("echo", {"value": "ok"}), call("broken")), "done", tools=[echo, broken], hooks=[Guard()]
    )
    events = capture_events(agent)
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    ok, blocked = state.steps[0].tool_calls
    assert ok.success
    assert not blocked.success
    assert "nobody deletes on Fridays" in str(blocked.error)
    assert state.steps[0].failures == ()
    assert "nobody deletes on Fridays" in requests_of(agent)[1].messages[-1].text
    assert "nobody deletes on Fridays" in assert_readable(state)
    told = [(e.tool, e.success) for e in events.of(ToolCallCompleted)]
    assert told == [("broken", False), ("echo", True)]  # It is known before anything runs.


async def test_a_blocked_call_is_no_error_to_the_policy() -> None:
    class Guard(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> Block:
            return Block("no")

    state = await scripted(
        call("echo"), "done", tools=[echo], hooks=[Guard()], error_policy=ErrorPolicy.stop_on_any_error()
    ).run("go")
    assert state.status is AgentStatus.COMPLETED


class BadHook(Hook):
    """Raises, or answers nonsense, in one of its methods."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def give(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class BadBeforeModel(BadHook):
    async def before_model(self, request: ModelRequest) -> ModelRequest | ModelResponse:
        return self.give()  # type: ignore[no-any-return]


class BadAfterModel(BadHook):
    async def after_model(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        return self.give()  # type: ignore[no-any-return]


class BadBeforeTool(BadHook):
    async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult | Block:
        return self.give()  # type: ignore[no-any-return]


class BadAfterTool(BadHook):
    async def after_tool(self, call: ToolCall, result: ToolResult, context: ToolContext) -> ToolResult:
        return self.give()  # type: ignore[no-any-return]


@pytest.mark.parametrize("hook", [BadBeforeModel, BadAfterModel, BadBeforeTool, BadAfterTool])
async def test_a_hook_that_raises_is_a_failure_in_the_trace(hook: type[BadHook]) -> None:
    agent = scripted(call("echo"), tools=[echo], hooks=[hook(RuntimeError("the cache is down"))])
    state = await agent.run("go")
    assert state.status is AgentStatus.FAILED
    assert state.steps[0].failures[0].type == "unknown"
    assert "the cache is down" in assert_readable(state)


@pytest.mark.parametrize("hook", [BadBeforeModel, BadAfterModel, BadBeforeTool, BadAfterTool])
@pytest.mark.parametrize("answer", [None, "yes", 42])
async def test_a_hook_that_answers_nonsense_is_a_failure_in_the_trace(
    hook: type[BadHook], answer: Any
) -> None:
    agent = scripted(call("echo"), tools=[echo], hooks=[hook(answer)])
    state = await agent.run("go")
    assert state.status is AgentStatus.FAILED
    assert "hook" in assert_readable(state)


def test_what_is_no_hook_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no hook"):
        scripted(hooks=[object()])
