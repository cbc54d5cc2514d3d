"""Changes that the server records itself, while no runner has the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from whyloop.broadcasting.transports import AgentEventEnvelopeAdapter
from whyloop.errors import ConflictError, SessionRunningError
from whyloop.rules.criteria import stop_transitions
from whyloop.server.requests import Precondition
from whyloop.stores.live import live
from whyloop.stores.reading import Reading, entries_after, read_session, read_version, release
from whyloop.stores.records import RequestKey
from whyloop.stores.store import Store
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.text import clean
from whyloop.wire.view import read_back

# A runner that has paused a session gives its lease back within a moment.
A_MOMENT, MOMENTS = 0.02, 25

Plan = Callable[[AgentState], Sequence[AnyTransition]]
"""From the state of a session to the transitions to record; none if there is nothing to do."""


class Recorder:
    """Records transitions, and sends their events to the transports that the events of runs go to."""

    def __init__(self, store: Store, events: AgentEventEnvelopeAdapter | None) -> None:
        self._store = store
        self._events = events

    async def record(
        self,
        agent_id: str,
        plan: Plan,
        *,
        key: RequestKey | None = None,
        precondition: Precondition | None = None,
    ) -> tuple[Reading, bool]:
        """Record what a plan makes of the session as it is, and return the session after it.

        The second value is False if there was nothing to record. The precondition holds for the very
        version at which the transitions are recorded.
        """
        reading, patience = None, MOMENTS
        while True:
            reading = await read_session(self._store, agent_id, reading)
            if precondition is not None:
                precondition.check(reading.summary.identity, reading.version)
            transitions = plan(reading.state)
            if not transitions:
                return reading, False
            try:
                return await self._write(reading, transitions, key), True
            except ConflictError:
                continue  # Another change came first, and the plan may be another one now.
            except SessionRunningError:
                if reading.state.status is not AgentStatus.PAUSED or not patience:
                    raise
                patience -= 1
                await asyncio.sleep(A_MOMENT)

    async def stop(self, agent_id: str, reason: str, key: RequestKey | None = None) -> Reading | bool:
        """End the run of a session, wherever it runs.

        Return the session if the stop was recorded here, True if a runner was asked, and False if there
        was nothing to stop.
        """
        reason = clean(reason)
        while not await self._store.ask_to_stop(agent_id, reason):
            reading = await read_session(self._store, agent_id)
            state = reading.state
            if state.status.has_ended or not state.messages:
                return False
            stopped = stop_transitions(state, reason, self._store.now(), key.key if key else None)
            try:
                return await self._write(reading, stopped, key)
            except (ConflictError, SessionRunningError):
                continue  # A runner continued it at this very moment, and is to be asked.
        return True

    def send(self, before: AgentState, transitions: Sequence[AnyTransition]) -> None:
        """Send the events of recorded transitions, as a run sends its own."""
        live(self._store).appended(before.agent_id)
        if self._events is not None:
            for event in read_back(before, transitions):
                self._events(event)

    async def send_entry(self, agent_id: str, version: int) -> None:
        """Send the events of an entry that was recorded with the session itself."""
        if self._events is not None:
            before = await read_version(self._store, agent_id, version - 1)
            async with aclosing(entries_after(self._store, before, version)) as entries:
                async for entry, reading, _ in entries:
                    self.send(reading.state, entry.transitions)

    async def _write(
        self, reading: Reading, transitions: Sequence[AnyTransition], key: RequestKey | None
    ) -> Reading:
        release(reading.state)
        state = await self._store.write(reading, transitions, key=key)
        version = reading.version + 1  # Only a query makes more than one entry.
        self.send(reading.state, transitions)
        return Reading(replace(reading.summary, version=version, runner=None), state, version)
