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
    """Who hears the events of an agent; `beside` those of a session are all the others of its agent."""

    def __init__(self, handlers: Iterable[Handler] = (), beside: Listeners | None = None) -> None:
        self._own = tuple(handlers)
        self._beside = beside

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """Those who listen now; who is there beside others already does not hear twice."""
        if self._beside is None:
            return self._own
        others = self._beside.handlers
        return (*others, *[handler for handler in self._own if handler not in others])

    def add(self, handler: Handler) -> Callable[[], None]:
        """One listener more; what is returned takes it away again."""
        self._own = (*self._own, handler)

        def remove() -> None:
            kept = list(self._own)
            if handler in kept:
                kept.remove(handler)
            self._own = tuple(kept)

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
