"""The events of one run, as an asynchronous iterator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Self

from whyloop.events import AgentEvent
from whyloop.loop.setup import Handler
from whyloop.values.generics import T_co
from whyloop.values.state import AgentState

LEFT = "The stream of the run was closed before its end"

StartedRun = tuple[Coroutine[Any, Any, AgentState], Callable[[str], object]]
"""A run to be awaited, and the function that stops it for a reason."""


class RunStream(Generic[T_co]):
    """One run and its events, in order, for one reader.

    The run works in a task of its own and never waits for the reader. Leaving the `async with` block before
    the end stops the run. `state` is the state at its end.
    """

    def __init__(self, start: Callable[[Handler], StartedRun]) -> None:
        self._start = start
        self._stop: Callable[[str], object] | None = None
        self._events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        self._task: asyncio.Task[AgentState] | None = None
        self._has_begun = False
        self._has_raised = False

    @property
    def state(self) -> AgentState[T_co]:
        """The state at the end of the run; a `RuntimeError` while the run is in progress."""
        if self._task is None or not self._task.done():
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
            return event
        self._has_raised = True
        await self._task  # An error of the run is raised here.
        raise StopAsyncIteration

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, stop = self._task, self._stop
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
        # An error in the block goes first, and one that the reader has seen is not raised again.
        if error is None and not self._has_raised and not task.cancelled():
            task.result()
        elif not task.cancelled():
            task.exception()
