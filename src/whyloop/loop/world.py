"""The ports of the loop: the model, the clock, the journal, and the world that this process offers."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from whyloop.errors import ToolTimeoutError
from whyloop.tools.tool import ToolContext, ToolDefinition
from whyloop.tools.toolset import Toolset
from whyloop.values.model import Delta, ModelRequest, ModelResponse
from whyloop.values.scalars import new_id
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition


@runtime_checkable
class Model(Protocol):
    """A language model: yields pieces of text and reasoning as they come, then one complete response."""

    def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]: ...


class Timeout(Protocol):
    """A block of code with a time limit; a `TimeoutError` leaves it once the limit has passed."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def expired(self) -> bool: ...


class Timer(Protocol):
    """A function that will be called later, unless it is cancelled."""

    def cancel(self) -> None: ...


@runtime_checkable
class Clock(Protocol):
    """The time of day, a stopwatch, and the passing of time."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> Timeout: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...


class World(Protocol):
    """Everything in a step that touches the world."""

    def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]: ...

    def call_tool(
        self, toolset: Toolset, tool: ToolDefinition, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]: ...

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> Timeout: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...

    def new_id(self) -> str: ...

    def random(self) -> float: ...


class Journal(Protocol):
    """Where a session is recorded while it runs."""

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        """Make transitions durable as one entry; an error ends the run.

        Return the reason of a stop request that arrived from elsewhere, if there is one. A cancellation must
        not cut the append off: `CancelledError` is raised only when it has ended well.
        """


class StepByStep(Protocol):
    """Anything that can be run one step at a time."""

    def has_next_step(self, state: AgentState) -> bool: ...

    async def next_step(self, state: AgentState) -> AgentState: ...

    async def final_step(self, state: AgentState) -> AgentState: ...

    def iterate(self, state: AgentState) -> AsyncIterator[AgentState]: ...


class SystemClock:
    """The clock of this machine."""

    # Asked many times a step, so these are the functions themselves.
    now = staticmethod(functools.partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> Timeout:
        return asyncio.timeout(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


class LocalWorld:
    """A world that does everything here and now."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self.respond = model.respond
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep
        self.timeout = clock.timeout
        self.call_later = clock.call_later
        self.new_id = new_id
        self.random = random.random

    def call_tool(
        self, toolset: Toolset, tool: ToolDefinition, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]:
        work = toolset.call(tool.name, arguments, context)
        return work if tool.timeout is None else self._timed(tool, tool.timeout, work)

    async def _timed(self, tool: ToolDefinition, seconds: float, work: Coroutine[Any, Any, object]) -> object:
        timeout = self.timeout(seconds)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
            raise ToolTimeoutError(f"{tool.name} did not finish within {seconds:g} s") from None
