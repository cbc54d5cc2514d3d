"""Everything an agent tells its listeners, kept for a test to look at."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from whyloop.events import AgentEvent
from whyloop.loop.agent import Agent

E = TypeVar("E", bound=AgentEvent)


class CapturedEvents(list[AgentEvent]):
    """The events in order. As a context manager it listens only inside the block."""

    _unsubscribe: Callable[[], None] | None = None

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self if isinstance(event, kind)]

    def kinds(self) -> list[str]:
        """The names of the events, in order."""
        return [type(event).__name__ for event in self]

    def stop(self) -> None:
        """Listen no more."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def __enter__(self) -> CapturedEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def capture_events(agent: Agent) -> CapturedEvents:
    """A list that fills with the agent's events from now on."""
    captured = CapturedEvents()
    captured._unsubscribe = agent.subscribe(captured.append)
    return captured
