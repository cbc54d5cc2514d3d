"""Telling everyone who listens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Concatenate, ParamSpec

from whyloop.events import AgentEvent
from whyloop.values.state import AgentState

P = ParamSpec("P")
Handler = Callable[[AgentEvent], object]

_log = logging.getLogger("whyloop")


class Listeners:
    """Who hears the events of an agent; a new tuple at every change, so that telling needs no copy."""

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self.handlers = tuple(handlers)

    def add(self, handler: Handler) -> Callable[[], None]:
        """One listener more; what is returned takes it away again."""
        self.handlers = (*self.handlers, handler)

        def remove() -> None:
            kept = list(self.handlers)
            if handler in kept:
                kept.remove(handler)
            self.handlers = tuple(kept)

        return remove


class Emitter:
    """Makes the events of one step and hands each to every listener, in order.

    A listener that raises is reported to the log and never breaks the run.
    """

    __slots__ = ("_handlers", "_whose")

    def __init__(self, listeners: Listeners, state: AgentState, step_number: int) -> None:
        self._handlers = listeners.handlers
        self._whose = (state.agent_id, state.parent_agent_id, state.execution.id, step_number)

    def __call__(
        self,
        kind: Callable[Concatenate[str, str | None, str, int, datetime, P], AgentEvent],
        time: datetime,
        *args: P.args,
        **_: P.kwargs,
    ) -> None:
        """Tell everyone that this happened at that time; the event's own fields go by position."""
        if not self._handlers:
            return
        event = kind(*self._whose, time, *args)  # type: ignore[call-arg]
        for handler in self._handlers:
            try:
                handler(event)
            except (Exception, SystemExit):
                _log.exception("an event handler failed on: %s", event)
