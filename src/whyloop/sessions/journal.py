"""The journal of a running session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from whyloop.stores.records import Lease, summary_of
from whyloop.stores.store import Store
from whyloop.values.state import AgentState
from whyloop.wire.journal import entry_between


class SessionJournal:
    """Writes what changes to the store, entry after entry, as long as it holds the session's lease.

    The entry that ends the run gives the lease back.
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
        self._waiting = 0

    async def record(self, state: AgentState) -> None:
        if self._waiting or not self._recorded_at_once(state):
            self._waiting += 1
            try:
                async with self._one_by_one:
                    work = self._append(state)
                    await (work if self._store.inline else _to_its_end(work))
            finally:
                self._waiting -= 1

    def _recorded_at_once(self, state: AgentState) -> bool:
        """Nearly every entry is one that a store can add without ado; False if this one was not."""
        if self._is_listed_otherwise(state) or not self._store.adds_at_once:
            return False
        if not self._store.add_at_once(self._lease, entry_between(self.state, state), self.version):
            return False
        self.state = state
        self.version += 1
        return True

    def _is_listed_otherwise(self, state: AgentState) -> bool:
        return state.status is not self.state.status or state.metadata is not self.state.metadata

    async def _append(self, state: AgentState) -> None:
        # One that is paused keeps it for a moment: somebody may just have asked for a stop.
        self.released = state.status.has_ended  # A heartbeat that finds the lease gone knows why.
        try:
            words = await self._store.append(
                state.agent_id,
                [entry_between(self.state, state)],
                after=self.version,
                lease=self._lease,
                summary=summary_of(state) if self._is_listed_otherwise(state) else None,
                release=self.released,
            )
        except BaseException:
            self.released = False
            raise
        self.state = state
        self.version += 1
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
