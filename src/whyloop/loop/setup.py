"""What an agent is made of, as the loop sees it, and who receives its events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from whyloop.events import AgentEvent
from whyloop.loop.hooks import Hooks
from whyloop.loop.ports import World
from whyloop.loop.request import RequestParts
from whyloop.loop.tool import Tool
from whyloop.rules.backoff import Backoff
from whyloop.rules.continuation.criteria import ContinuationCriteria
from whyloop.values.model import ToolSpec

if TYPE_CHECKING:
    from whyloop.loop.run import Run

Handler = Callable[[AgentEvent], object]

_log = logging.getLogger("whyloop")


class Handlers:
    """The event handlers of an agent, and those that one run has beside them."""

    def __init__(self, handlers: Iterable[Handler] = (), agent: Handlers | None = None) -> None:
        self._own = tuple(handlers)
        self._agent = agent

    @property
    def all(self) -> tuple[Handler, ...]:
        """Every handler once, those of the agent first."""
        if self._agent is None:
            return self._own
        shared = self._agent.all
        return (*shared, *[handler for handler in self._own if handler not in shared])

    def add(self, handler: Handler) -> Callable[[], None]:
        """Add a handler; call the function that is returned to remove it."""
        self._own = (*self._own, handler)

        def remove() -> None:
            kept = list(self._own)
            if handler in kept:
                kept.remove(handler)
            self._own = tuple(kept)

        return remove


def send(handlers: Sequence[Handler], events: Sequence[AgentEvent]) -> None:
    """Give events to every handler in turn. One that raises is logged and never breaks the run."""
    for handler in handlers:
        for event in events:
            try:
                handler(event)
            except (Exception, SystemExit):
                _log.exception("an event handler failed on: %s", event)


class Setup(Struct, frozen=True):
    """The parts of an agent that a run needs; only `runs` changes while it runs."""

    name: str
    world: World
    tools: Mapping[str, Tool]
    tool_specs: tuple[ToolSpec, ...]
    tool_names: tuple[str, ...]
    instructions: str | None
    request_parts: RequestParts
    criteria: ContinuationCriteria
    hooks: Hooks
    backoff: Backoff
    handlers: Handlers
    runs: set[Run]
    """The runs of this agent in progress in this process, so that they can be asked to stop."""
    plans_calls: bool = False
    """True if a hook may change a call, or a tool may need a person's approval."""
    stop_grace: float = 5.0
    """Seconds that a running tool call has to finish after a stop request or a deadline."""
