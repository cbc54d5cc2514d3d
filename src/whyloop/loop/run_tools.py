"""Running the tool calls of a step: together, in call order, and whatever they do is data."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from whyloop.errors import ToolTimeoutError
from whyloop.events import ToolCallCompleted, ToolCallStarted
from whyloop.loop.emit import Emitter
from whyloop.loop.hooks import Block, ToolResult
from whyloop.loop.kit import Kit
from whyloop.loop.tool import Tool, ToolContext
from whyloop.loop.tool_result import encoded
from whyloop.rules.classify import raised_by_tool, tool_failure, words_of
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import ToolCall
from whyloop.values.state import AgentState


class Ran(NamedTuple):
    """A call that was run to its end."""

    result: ToolResult
    seconds: float


class ToolRuns:
    """The calls of one step; `ran` fills up in call order, so that a cut loses nothing that was done."""

    __slots__ = ("_deadline", "_emit", "_kit", "_state", "calls", "ran")

    def __init__(
        self, kit: Kit, emit: Emitter, state: AgentState, calls: Sequence[ToolCall], deadline: datetime | None
    ) -> None:
        self.calls = calls
        self.ran: list[Ran | None] = [None] * len(calls)
        self._kit = kit
        self._emit = emit
        self._state = state
        self._deadline = deadline

    async def run(self) -> None:
        """Run them all at once and wait for the last."""
        if len(self.calls) == 1:
            await self._run(0)
            return
        async with asyncio.TaskGroup() as group:
            for index in range(len(self.calls)):
                group.create_task(self._run(index))

    async def _run(self, index: int) -> None:
        call, kit, emit, execution = self.calls[index], self._kit, self._emit, self._state.execution
        name, call_id = call.name, call.id
        emit(ToolCallStarted, name, call_id, call.arguments)
        started = kit.world.monotonic()
        number = execution.step_count + 1
        context = ToolContext(self._state.agent_id, execution.id, number, call_id, name, self._deadline)
        run = run_hooked if kit.hooks.around_tools else run_tool
        try:
            result = await run(kit, call, context)
        except asyncio.CancelledError:
            seconds = kit.world.monotonic() - started
            emit(ToolCallCompleted, name, call_id, False, "cut off", seconds * 1000, "")
            raise
        seconds = kit.world.monotonic() - started
        error = result.error
        emit(ToolCallCompleted, name, call_id, error is None, error, seconds * 1000, result.content)
        self.ran[index] = Ran(result, seconds)


async def run_hooked(kit: Kit, call: ToolCall, context: ToolContext) -> ToolResult:
    """Run a call with the agent's hooks around it."""
    try:
        for before in kit.hooks.before_tool:
            answer = await before(call, context)
            if isinstance(answer, Block):
                return ToolResult(f"Blocked: {answer.reason}", f"blocked: {answer.reason}")
            if isinstance(answer, ToolResult):
                return answer
            call = answer
        result = await run_tool(kit, call, context)
        for after in kit.hooks.after_tool:
            result = await after(call, result, context)
        return result
    except Exception as error:
        words = f"a hook around {call.name} failed: {words_of(error)}"
        return _failed(tool_failure(ErrorType.UNKNOWN, call, words))


async def run_tool(kit: Kit, call: ToolCall, context: ToolContext) -> ToolResult:
    """Run a call; whatever goes wrong becomes a result that the model can act on."""
    tool = kit.tools.get(call.name)
    if tool is None:
        return _unknown_tool(call, kit.tool_names)
    arguments = _checked_arguments(tool, call)
    if isinstance(arguments, ToolResult):
        return arguments
    try:
        value = await kit.world.call_tool(tool, arguments, context)
        return ToolResult(encoded(value, tool.max_result_chars))
    except ToolTimeoutError as error:
        return _failed(tool_failure(ErrorType.TIMEOUT, call, words_of(error), seconds=tool.timeout))
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed(raised_by_tool(call, error))  # The tool raised it itself: nobody cancelled us.
    except BaseException as error:
        return _failed(raised_by_tool(call, error))


def _failed(failure: Failure) -> ToolResult:
    return ToolResult(f"Error: {failure.message}", failure.message, failure)


def _unknown_tool(call: ToolCall, names: Sequence[str]) -> ToolResult:
    available = f"The tools are: {', '.join(names)}." if names else "There are no tools."
    words = f"there is no tool named {call.name!r}. {available}"
    return _failed(tool_failure(ErrorType.VALIDATION, call, words))


def _checked_arguments(tool: Tool, call: ToolCall) -> Mapping[str, Any] | ToolResult:
    """Arguments that fit the tool's signature, or a result that tells the model what to correct."""
    if isinstance(call.arguments, str):
        problem = f"the arguments are no JSON object: {call.arguments[:200]!r}"
    else:
        try:
            return tool.arguments.parse(call.arguments)
        except Exception as error:
            problem = str(error) if isinstance(error, msgspec.ValidationError) else words_of(error)
    schema = msgspec.json.encode(tool.spec.parameters).decode()
    words = f"invalid arguments for {tool.name}: {problem}. The arguments must fit this schema: {schema}"
    return _failed(tool_failure(ErrorType.VALIDATION, call, words))
