"""The events of one run, as an asynchronous iterator."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self

import msgspec

from whyloop.events import AgentEvent, AgentStepStarted, OutputChunkReceived
from whyloop.loop.setup import Handler
from whyloop.values.encoding import MAX_DEPTH
from whyloop.values.model import OUTPUT_FIELD
from whyloop.values.scalars import T_co
from whyloop.values.state import AgentState

LEFT = "The stream of the run was closed before its end"

StartedRun = tuple[Coroutine[Any, Any, AgentState], Callable[[str], object]]
"""A run to be awaited, and the function that stops it for a reason."""


class RunStream(Generic[T_co]):
    """One run and its events, in order, for one reader.

    The run has its own task and never waits for the reader. Leaving the `async with` block before
    the end stops the run. `state` is the state at its end.

    Args:
        start: A function from the handler of the events to a run; `agent.stream` passes it.
    """

    def __init__(self, start: Callable[[Handler], StartedRun]) -> None:
        self._start = start
        self._stop: Callable[[str], object] | None = None
        self._events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        self._task: asyncio.Task[AgentState] | None = None
        self._has_begun = False
        self._has_raised = False
        self._output: list[OutputChunkReceived] = []

    @property
    def partial_output(self) -> Any:
        """The JSON data of a typed answer that has arrived so far; None before it.

        Nothing is checked yet: texts may be cut off, and fields may be missing. `state.output` is the
        complete value.
        """
        text = "".join([event.chunk for event in self._output])
        data = partial_json(text)
        if not self._output or not self._output[0].is_wrapped:
            return data
        return data.get(OUTPUT_FIELD) if isinstance(data, dict) else data

    @property
    def state(self) -> AgentState[T_co]:
        """The state at the end of the run; a `RuntimeError` while the run is in progress."""
        if self._task is None:
            raise RuntimeError(
                "the run has not started: enter the stream, with `async with agent.stream(…) as run`"
            )
        if not self._task.done():
            raise RuntimeError("the run is in progress: read its events to the end first")
        if self._task.cancelled():
            raise RuntimeError("the run has no state: it was cancelled")
        return self._task.result()

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a stream is one run, so it can be entered once: call stream() again")
        work, self._stop = self._start(self._receive)
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(lambda _: self._events.put_nowait(None))
        return self

    def _receive(self, event: AgentEvent) -> None:
        self._has_begun = True
        self._events.put_nowait(event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentEvent:
        if self._task is None:
            raise RuntimeError("enter the stream before you read it: `async with agent.stream(…) as run`")
        event = None if self._task.done() and self._events.empty() else await self._events.get()
        if event is not None:
            self._keep(event)
            return event
        self._has_raised = True
        await self._task  # An error of the run is raised here.
        raise StopAsyncIteration

    def _keep(self, event: AgentEvent) -> None:
        """Keep the pieces of a typed answer; each step starts a new one."""
        if isinstance(event, OutputChunkReceived):
            self._output.append(event)
        elif isinstance(event, AgentStepStarted):
            self._output = []

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, stop = self._task, self._stop
        self._stop = None  # Not a cycle: the run has this stream as a handler.
        assert task is not None
        assert stop is not None
        if isinstance(error, asyncio.CancelledError) or not self._has_begun:
            task.cancel()
        elif not task.done():
            stop(LEFT)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        # An error in the block takes precedence, and one that the reader has seen is not raised again.
        if error is None and not self._has_raised and not task.cancelled():
            task.result()
        elif not task.cancelled():
            task.exception()


# One token: a whole string; a string that is cut off, up to its last complete escape; a bracket or sign; or
# another scalar.
_TOKEN = re.compile(
    r'"(?:[^"\\]++|\\.)*+"'
    r'|(?P<cut>"(?:[^"\\]++|\\(?:u[0-9a-fA-F]{4}|[^u]))*+)(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z'
    r'|[{}\[\]:,]|[^\s"{}\[\]:,]++',
    re.DOTALL,
)
_CLOSES = {"{": "}", "[": "]"}


def partial_json(text: str) -> Any:
    """Return the data at the beginning of a JSON document; None if there is none yet.

    A string that is cut off is included; a number or a key that may continue is not. What is nested deeper
    than any value of a run may be is not read.
    """
    text = text[next((index for index, char in enumerate(text) if char in _CLOSES), len(text)) :]
    closing, ends, before = list[str](), [(0, "")], ""
    for token in _TOKEN.finditer(text):
        piece = token["cut"] or token[0]
        is_key = before in ("{", ",") and closing[-1] == "}"
        if piece in _CLOSES:
            closing.append(_CLOSES[piece])
        elif piece in ("}", "]") and closing:
            closing.pop()
        may_continue = is_key or piece in (",", ":") or (piece[0] not in '"{}[]' and token.end() == len(text))
        if not may_continue or piece in ("}", "]"):
            rest = '"' if token["cut"] else ""
            ends = [ends[-1], (token.start(), f"{piece}{rest}{''.join(reversed(closing))}")]
        if not closing or len(closing) > MAX_DEPTH:
            break
        before = piece
    for end, rest in reversed(ends):  # Half a character at the end of a text is not JSON.
        with suppress(msgspec.DecodeError, RecursionError, UnicodeError):
            return msgspec.json.decode(text[:end] + rest)
    return None
