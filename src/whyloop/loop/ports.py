"""What the loop needs from the world, and nothing else it touches.

A model answers, a clock tells and passes the time, and a `World` is everything a step does that
is not a pure function: replace it and the very same loop runs on a durable engine, or twice alike.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from whyloop.loop.tool import Tool, ToolContext
from whyloop.values.model import Delta, ModelRequest, ModelResponse
from whyloop.values.state import AgentState
from whyloop.values.transitions import AnyTransition


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
        self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
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
