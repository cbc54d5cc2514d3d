"""The ports of the loop: the model, the clock, the journal, the world."""

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
    """A language model.

    It may declare how it gives typed answers, as `output_mode`: "native" if it takes `request.output`, "tool"
    (the default) or "prompt"; or a function of the keywords `with_tools` and `schema` that returns one.
    """

    def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Yield pieces of text and reasoning as they arrive, then one complete response."""


class Timeout(Protocol):
    """A block of code with a time limit, which ends it with a `TimeoutError`."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def expired(self) -> bool:
        """Return whether the limit has passed."""


class Timer(Protocol):
    """A function that will be called later, unless it is cancelled."""

    def cancel(self) -> None:
        """Do not call the function."""


@runtime_checkable
class Clock(Protocol):
    """The time of day, a stopwatch, and the passing of time."""

    def now(self) -> datetime:
        """Return the time of day, with its time zone."""

    def monotonic(self) -> float:
        """Return the reading of a stopwatch, in seconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds.

        Args:
            seconds: The length of the wait.
        """

    def timeout(self, seconds: float | None) -> Timeout:
        """Return an asynchronous context that ends its block with a `TimeoutError` when its time is up.

        Args:
            seconds: The length of the time limit; None for no limit.
        """

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call a function after some seconds, unless the timer is cancelled.

        Args:
            seconds: The time until then.
            callback: The function.
        """


class World(Protocol):
    """Every effect of a step on the outside.

    Its methods are those of a model and of a clock, and a few more.
    """

    def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]: ...

    def call_tool(
        self, toolset: Toolset, tool: ToolDefinition, arguments: Mapping[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, object]:
        """Run a tool, within its own time limit."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> Timeout: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...

    def new_id(self) -> str:
        """Return a new identifier."""

    def random(self) -> float:
        """Return a random number from 0 to 1."""


class Journal(Protocol):
    """The record of a session while it runs."""

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        """Make transitions durable as one entry; an error ends the run.

        Return the reason of a stop request that arrived from elsewhere, if there is one. A cancellation must
        not cut the append off: `CancelledError` is raised only when it has ended well.
        """


class StepByStep(Protocol):
    """An object that can be run one step at a time."""

    def has_next_step(self, state: AgentState) -> bool:
        """Return whether the execution has not ended."""

    async def next_step(self, state: AgentState) -> AgentState:
        """Return the state after one more step."""

    async def final_step(self, state: AgentState) -> AgentState:
        """Return the state at the end of the execution."""

    def iterate(self, state: AgentState) -> AsyncIterator[AgentState]:
        """Yield the state after every step."""


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
    """The world of this process."""

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
        return work if tool.timeout is None else self._run_timed(tool, tool.timeout, work)

    async def _run_timed(
        self, tool: ToolDefinition, seconds: float, work: Coroutine[Any, Any, object]
    ) -> object:
        timeout = self.timeout(seconds)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
            raise ToolTimeoutError(f"{tool.name} did not finish within {seconds:g} s") from None
