"""Where a run changes its state: a transition is applied, recorded, and then sent as events."""

from __future__ import annotations

import asyncio
from datetime import datetime

from whyloop.events import AgentEvent
from whyloop.logger import log_end
from whyloop.loop.setup import Handler, RequestParts, send
from whyloop.loop.world import Journal
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.transitions import Noted
from whyloop.wire.view import VIEWS


class Recorder:
    """The state of a session while a run changes it.

    `add` applies a transition; `record` appends all new ones to the journal as one entry and then sends
    their events, so nothing is announced that is not recorded.
    """

    def __init__(self, handlers: tuple[Handler, ...], state: AgentState, journal: Journal | None) -> None:
        self.state, self.journal = state, journal
        self.stop: str | None = None
        """Why the run was asked to stop, by this process or through the journal by another one."""
        self.handlers = handlers
        self._recorded = state
        self._unrecorded: list[AnyTransition] = []
        self._unsent: list[AgentEvent] = []
        self._unlogged: list[AgentState] = []
        self._noted: RequestParts | None = None
        self._known_parts: set[str] | None = None

    @property
    def must_stop(self) -> bool:
        """True if a stop was requested, whether or not that is recorded yet."""
        return self.stop is not None or self.state.execution.stop_request is not None

    def add(self, transition: AnyTransition) -> None:
        """Apply a transition. Readers and handlers see it after the next `record`."""
        state = self.state
        if self.journal is not None:
            self._unrecorded.append(transition)
        if self.handlers and (view := VIEWS.get(type(transition))) is not None:
            self._unsent += view(state, transition)
        self.state = transition.apply_to(state)

    def log_end(self) -> None:
        """Write how the run ended or paused to the log, after the next `record`."""
        self._unlogged.append(self.state)

    async def record(self) -> None:
        """Append all new transitions as one entry, then send their events."""
        if self._unrecorded and self.journal is not None:
            new, self._unrecorded = self._unrecorded, []
            before, self._recorded = self._recorded, self.state
            try:
                stop = await self.journal.append(new, before, self.state)
            except asyncio.CancelledError:  # Delivered after the append: see `Journal`.
                self._send_events()
                raise
            self.stop = self.stop or stop
        if self._unsent or self._unlogged:
            self._send_events()

    def _send_events(self) -> None:
        events, self._unsent = self._unsent, []
        send(self.handlers, events)
        ended, self._unlogged = self._unlogged, []
        for state in ended:
            log_end(state)

    def note(self, request: RequestParts, now: datetime) -> None:
        """Add the texts of a request that this session has not recorded yet, before the answer to it."""
        if request is self._noted:
            return
        self._noted = request
        if self._known_parts is None:
            held = self.state.request_parts
            self._known_parts = {part.hash for part in held[held.start :]}
        for part in request.parts:
            if part.hash not in self._known_parts:
                self._known_parts.add(part.hash)
                self.add(Noted(now, part=part))
