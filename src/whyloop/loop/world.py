"""The ports of the loop: the model, the clock, the journal, the world."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from whyloop.values.model import Delta, ModelRequest, ModelResponse
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition, CallFinished

if TYPE_CHECKING:
    from whyloop.loop.run import Run
    from whyloop.loop.setup import Setup
    from whyloop.loop.step import StepInProgress


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
        """Cancel the call of the function."""


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
        """Return an async context that raises a `TimeoutError` when its time is up.

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
    """Every effect of a run on the outside: the work of models and tools, time, ids, randomness.

    `LocalWorld` does the work in this process; another engine does it elsewhere.
    """

    async def answer(self, run: Run, step: StepInProgress) -> Sequence[AnyTransition]:
        """Ask the model, and return the transitions of its answer or failure.

        If it is cancelled, the step keeps the part of the answer that has arrived.
        """

    async def run_call(
        self, setup: Setup, state: AgentState, index: int, deadline: datetime | None
    ) -> CallFinished:
        """Run one call of the open step; an error becomes its result."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...

    def new_id(self) -> str:
        """Return a new identifier."""

    def random(self) -> float:
        """Return a random number from 0 to 1."""

    @property
    def is_replaying(self) -> bool:
        """True while a run is repeated from its records, so that its log exists already."""


class Journal(Protocol):
    """The record of a session while it runs."""

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        """Make transitions durable as one entry; an error ends the run.

        Return the reason of a stop request that arrived from elsewhere, if there is one. A cancellation must
        not interrupt the append: `CancelledError` is raised only after it has succeeded.
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
