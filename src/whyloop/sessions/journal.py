"""The journal of a running session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from whyloop.stores.records import Lease, summary_of
from whyloop.stores.store import Store
from whyloop.values.state import AgentState, AgentStatus
from whyloop.wire.journal import entry_between


class SessionJournal:
    """Writes what changes to the store, entry after entry, as long as it holds the session's lease.

    The entry that ends the run, or pauses it, gives the lease back.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        state: AgentState,
        version: int,
        on_stop_request: Callable[[str], object],
    ) -> None:
        self.state = state
        self.version = version
        self.released = False
        self._store = store
        self._lease = lease
        self._on_stop_request = on_stop_request
        self._one_by_one = asyncio.Lock()

    async def record(self, state: AgentState) -> None:
        if self._recorded_at_once(state):
            return
        async with self._one_by_one:
            work = self._append(state)
            await (work if self._store.inline else _to_its_end(work))

    def _recorded_at_once(self, state: AgentState) -> bool:
        """Nearly every entry is one that a store can add without ado; False if this one was not."""
        before = self.state
        if state.status is not before.status or state.metadata is not before.metadata:
            return False
        if self._one_by_one.locked():
            return False
        if not self._store.add_at_once(self._lease, entry_between(before, state), self.version):
            return False
        self.state = state
        self.version += 1
        return True

    async def _append(self, state: AgentState) -> None:
        before = self.state
        listed_otherwise = state.status is not before.status or state.metadata is not before.metadata
        ends = state.status.has_ended or state.status is AgentStatus.PAUSED
        words = await self._store.append(
            state.agent_id,
            [entry_between(before, state)],
            after=self.version,
            lease=self._lease,
            summary=summary_of(state) if listed_otherwise else None,
            release=ends,
        )
        self.state = state
        self.version += 1
        self.released = ends
        if words is not None:
            self._on_stop_request(words)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do the work; a cancellation waits until it is done.

    A write that was cut off may have happened or not, and nobody could go on from that.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        task.result()
    else:
        task.exception()  # Heard, if there is one: the cancellation comes first.
        raise cancelled
