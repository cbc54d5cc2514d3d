"""Running the tool calls of a step: together, in call order, and whatever they do is data."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from whyloop.errors import NestingError, ScriptError, ToolTimeoutError
from whyloop.events import ToolCallCompleted, ToolCallStarted
from whyloop.loop.draft import Draft
from whyloop.loop.emit import Emitter
from whyloop.loop.hooks import Block, expected
from whyloop.loop.kit import Kit
from whyloop.loop.nesting import running_inside
from whyloop.loop.tool import Tool, ToolContext
from whyloop.loop.tool_result import encoded
from whyloop.rules.classify import raised_by_tool, tool_failure, words_of
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import ToolCall
from whyloop.values.state import AgentState
from whyloop.values.tool_result import ToolResult


async def together(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run several calls at once; each leaves its result in the draft as soon as it has one."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None  # What may leave a tool at all leaves it as itself.


async def run_call(
    kit: Kit, emit: Emitter, state: AgentState, draft: Draft, index: int, call: ToolCall
) -> None:
    """One call, from the event that announces it to the event that says how it went."""
    world, execution = kit.world, state.execution
    name, call_id = call.name, call.id
    emit(ToolCallStarted, world.now(), name, call_id, call.arguments)
    started = world.monotonic()
    context = ToolContext(
        state.agent_id, execution.id, execution.step_count + 1, call_id, name, draft.deadline, index
    )
    run = run_hooked if kit.hooks.around_tools else run_tool
    try:
        result = await run(kit, call, context)
    except (asyncio.CancelledError, KeyboardInterrupt):
        draft.cut[index] = (world.monotonic() - started) * 1000
        raise
    duration = (world.monotonic() - started) * 1000
    error = result.error
    emit(ToolCallCompleted, world.now(), name, call_id, error is None, error, duration, result.content)
    draft.ran[index] = result, duration


async def run_hooked(kit: Kit, call: ToolCall, context: ToolContext) -> ToolResult:
    """Run a call with the agent's hooks around it."""
    try:
        for before in kit.hooks.before_tool:
            answer = await before(call, context)
            if isinstance(answer, Block):
                return ToolResult(f"Blocked: {answer.reason}", f"blocked: {answer.reason}")
            if isinstance(answer, ToolResult):
                return _textual(answer)
            call = expected(ToolCall, answer)
        result = await run_tool(kit, call, context)
        for after in kit.hooks.after_tool:
            result = _textual(expected(ToolResult, await after(call, result, context)))
        return result
    except (ScriptError, NestingError):
        raise
    except Exception as error:
        words = f"a hook around {call.name} failed: {words_of(error)}"
        return _failed(tool_failure(ErrorType.UNKNOWN, call, words))


async def run_tool(kit: Kit, call: ToolCall, context: ToolContext) -> ToolResult:
    """Run a call; whatever goes wrong becomes a result that the model can act on."""
    tool = kit.tools.get(call.name)
    if tool is None:
        return _unknown_tool(call, kit.tool_names)
    if isinstance(call.arguments, str):
        return _invalid(tool, call, f"the arguments are no JSON object: {call.arguments[:200]!r}")
    try:
        arguments = tool.arguments.parse(call.arguments)
    except Exception as error:
        return _invalid(
            tool, call, str(error) if isinstance(error, msgspec.ValidationError) else words_of(error)
        )
    try:
        value = await kit.world.call_tool(tool, arguments, context)
        return ToolResult(encoded(value, tool.max_result_chars))
    except ToolTimeoutError as error:
        return _failed(tool_failure(ErrorType.TIMEOUT, call, words_of(error), seconds=tool.timeout))
    except (KeyboardInterrupt, ScriptError):
        raise
    except NestingError as error:
        if len(running_inside.get()) > 1:
            raise  # Only the outermost agent goes on, or each of them would try again in turn.
        return _failed(raised_by_tool(call, error))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed(raised_by_tool(call, error))  # The tool raised it itself: nobody cancelled us.
    except BaseException as error:
        return _failed(raised_by_tool(call, error))


def _textual(result: ToolResult) -> ToolResult:
    """A hook's result as the text that a message holds."""
    content: object = result.content
    error: object = result.error
    if isinstance(content, str) and isinstance(error, str | None):
        return result
    words = error if isinstance(error, str | None) else encoded(error, None)
    return replace(result, content=encoded(content, None), error=words)


def _failed(failure: Failure) -> ToolResult:
    return ToolResult(f"Error: {failure.message}", failure.message, failure)


def _unknown_tool(call: ToolCall, names: Sequence[str]) -> ToolResult:
    available = f"The tools are: {', '.join(names)}." if names else "There are no tools."
    words = f"there is no tool named {call.name!r}. {available}"
    return _failed(tool_failure(ErrorType.VALIDATION, call, words))


def _invalid(tool: Tool, call: ToolCall, problem: str) -> ToolResult:
    """A result that tells the model what to correct."""
    schema = msgspec.json.encode(tool.spec.parameters).decode()
    words = f"invalid arguments for {tool.name}: {problem}. The arguments must fit this schema: {schema}"
    return _failed(tool_failure(ErrorType.VALIDATION, call, words))
