"""Telling everyone who listens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Concatenate, ParamSpec

from whyloop.events import AgentEvent
from whyloop.values.state import AgentState

P = ParamSpec("P")
Handler = Callable[[AgentEvent], object]

_log = logging.getLogger("whyloop")


class Emitter:
    """Makes the events of one step and hands each to every listener, in order.

    A listener that raises is reported to the log and never breaks the run.
    """

    __slots__ = ("_agent_id", "_execution_id", "_handlers", "_now", "_parent_agent_id", "_step_number")

    def __init__(
        self, handlers: Sequence[Handler], now: Callable[[], datetime], state: AgentState, step_number: int
    ) -> None:
        self._handlers = handlers
        self._now = now
        self._agent_id = state.agent_id
        self._parent_agent_id = state.parent_agent_id
        self._execution_id = state.execution.id
        self._step_number = step_number

    def __call__(
        self,
        kind: Callable[Concatenate[str, str | None, str, int, datetime, P], AgentEvent],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        if not self._handlers:
            return
        event = kind(
            self._agent_id,
            self._parent_agent_id,
            self._execution_id,
            self._step_number,
            self._now(),
            *args,
            **kwargs,
        )
        for handler in tuple(self._handlers):
            try:
                handler(event)
            except Exception:
                _log.exception("an event handler failed on: %s", event)
