"""The journal of a running session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from whyloop.stores.live import Live
from whyloop.stores.reading import Reading
from whyloop.stores.records import Lease, RequestKey
from whyloop.stores.store import Store
from whyloop.stores.turns import turns
from whyloop.stores.writing import entries_of, summary_of
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition


class SessionJournal:
    """Append what happens to a session as long as this process holds its lease.

    The entry that ends the run gives the lease back. `key` goes into the first entry.
    """

    def __init__(
        self, store: Store, lease: Lease, reading: Reading, live: Live, key: RequestKey | None = None
    ) -> None:
        self.state = reading.state
        self.version = reading.version
        self.summary = reading.summary
        self.released = False
        self.first_version = 0
        """The version after the first append; 0 before it."""
        self._store = store
        self._lease = lease
        self._live = live
        self._key = key
        self._turns = turns()

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        stop, cancelled = None, None
        try:
            await self._turns.take()
            await self._live.flush(after.agent_id)
        except asyncio.CancelledError as error:  # It is delivered after the append.
            cancelled = error
        entries = entries_of(transitions, before)
        # A paused run keeps its lease for a moment: a stop may just have been requested.
        self.released = after.status.has_ended  # A heartbeat that finds the lease gone knows why.
        try:
            stop = await self._store.append(
                after.agent_id,
                entries,
                after=self.version,
                lease=self._lease,
                summary=summary_of(after) if _is_listed(before, after) else None,
                release=self.released,
                key=self._key,
            )
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            self.released = False
            raise
        self._key = None
        self.state, self.version = after, self.version + len(entries)
        self.first_version = self.first_version or self.version
        self._live.appended(after.agent_id)
        if cancelled is not None:
            raise cancelled
        return stop


def _is_listed(before: AgentState, after: AgentState) -> bool:
    """Return whether a list shows the session differently now."""
    return (
        after.status is not before.status
        or after.execution.id != before.execution.id
        or after.question_count != before.question_count
    )
