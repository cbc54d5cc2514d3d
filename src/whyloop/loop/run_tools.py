"""Running the tool calls of a step: together, in call order, and whatever they do is data."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from whyloop.errors import ToolTimeoutError
from whyloop.events import ToolCallCompleted, ToolCallStarted
from whyloop.loop.emit import Emitter
from whyloop.loop.hooks import Block, ToolResult
from whyloop.loop.kit import Kit
from whyloop.loop.nesting import current_parent, inside_tool_of
from whyloop.loop.tool import Tool, ToolContext
from whyloop.rules.classify import raised_by_tool, tool_failure, words_of
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import Message, ToolCall
from whyloop.values.state import AgentState
from whyloop.values.step import ToolRun
from whyloop.values.text import clean

Ran = tuple[ToolRun, Message]


class ToolRunner:
    """Runs the calls of one step; `ran` fills up in call order, so that a cut loses nothing that was done."""

    def __init__(
        self, kit: Kit, emit: Emitter, state: AgentState, calls: Sequence[ToolCall], deadline: datetime | None
    ) -> None:
        self._kit = kit
        self._emit = emit
        self._state = state
        self._calls = calls
        self._deadline = deadline
        self._ran: list[Ran | None] = [None] * len(calls)

    async def run(self) -> None:
        if len(self._calls) == 1:
            await self._run(0)
            return
        async with asyncio.TaskGroup() as group:
            for index in range(len(self._calls)):
                group.create_task(self._run(index))

    def results(self, otherwise: str) -> list[Ran]:
        """Every call with its result; one that did not run to its end gets these words for a result."""
        return [ran or skipped(call, otherwise) for call, ran in zip(self._calls, self._ran, strict=True)]

    async def _run(self, index: int) -> None:
        call, world, emit = self._calls[index], self._kit.world, self._emit
        emit(ToolCallStarted, call.name, call.id, call.arguments)
        started = world.monotonic()
        parent = current_parent.set(inside_tool_of(self._state.agent_id))
        try:
            result = await self._result(call)
        except asyncio.CancelledError:
            emit(
                ToolCallCompleted, call.name, call.id, False, "cut off", _ms(world.monotonic() - started), ""
            )
            raise
        finally:
            current_parent.reset(parent)
        duration = _ms(world.monotonic() - started)
        failure, note = result.failure, result.note
        error = failure.message if failure else note
        emit(ToolCallCompleted, call.name, call.id, error is None, error, duration, result.content)
        message = Message.tool(result.content, tool_call_id=call.id, tool_name=call.name)
        self._ran[index] = ToolRun(call.id, call.name, duration, failure, note), message

    async def _result(self, call: ToolCall) -> ToolResult:
        context = self._context(call)
        hooks = self._kit.hooks
        try:
            for before in hooks.before_tool:
                answer = await before(call, context)
                if isinstance(answer, Block):
                    return _blocked(answer)
                if isinstance(answer, ToolResult):
                    return answer
                call = answer
            result = await self._call(call, context)
            for after in hooks.after_tool:
                result = await after(call, result, context)
            return result
        except Exception as error:
            words = f"a hook around {call.name} failed: {words_of(error)}"
            return _failed(tool_failure(ErrorType.UNKNOWN, call, words))

    async def _call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        tool = self._kit.tools.get(call.name)
        if tool is None:
            return _unknown_tool(call, self._kit.tool_names)
        arguments = _checked_arguments(tool, call)
        if isinstance(arguments, ToolResult):
            return arguments
        try:
            value = await self._kit.world.call_tool(tool, arguments, context)
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
        return _encoded(tool, call, value)

    def _context(self, call: ToolCall) -> ToolContext:
        execution = self._state.execution
        number = execution.step_count + 1
        key = f"{execution.id}:{number}:{call.id}"
        return ToolContext(
            self._state.agent_id, execution.id, number, call.id, call.name, key, self._deadline
        )


def skipped(call: ToolCall, words: str) -> Ran:
    """A call that was not run, or not to its end, and says why."""
    message = Message.tool(f"Not completed: {words}", tool_call_id=call.id, tool_name=call.name)
    return ToolRun(call.id, call.name, note=words), message


def _blocked(block: Block) -> ToolResult:
    return ToolResult(f"Blocked: {block.reason}", note=f"blocked: {block.reason}")


def _failed(failure: Failure) -> ToolResult:
    return ToolResult(f"Error: {failure.message}", failure)


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
        except (msgspec.ValidationError, RecursionError) as error:
            problem = str(error)
        except Exception as error:
            problem = words_of(error)
    schema = msgspec.json.encode(tool.spec.parameters).decode()
    words = f"invalid arguments for {tool.name}: {problem}. The arguments must fit this schema: {schema}"
    return _failed(tool_failure(ErrorType.VALIDATION, call, words))


def _encoded(tool: Tool, call: ToolCall, value: object) -> ToolResult:
    """What a tool returned, as the text that a model reads."""
    if isinstance(value, str):
        text = clean(value)
    else:
        try:
            text = msgspec.json.encode(value, enc_hook=_plain).decode()
        except Exception as error:
            words = f"{tool.name} returned a {type(value).__name__} that cannot be encoded: {words_of(error)}"
            return _failed(tool_failure(ErrorType.TOOL, call, words))
    most = tool.max_result_chars
    if most is not None and len(text) > most:
        text = f"{text[:most]}\n[cut here: {len(text):,} characters in all, the first {most:,} are shown]"
    return ToolResult(text)


def _plain(value: Any) -> Any:
    """Pydantic models, known by their method; nothing else has a form that a model could read."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
