"""The journal of a running session, and the heartbeat that keeps its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from whyloop.errors import LeaseLostError, SessionNotFoundError, StoreError
from whyloop.logger import Logger
from whyloop.stores.listing import is_listed_alike, summary_of
from whyloop.stores.live import Live
from whyloop.stores.reading import Reading
from whyloop.stores.records import Lease, RequestKey
from whyloop.stores.store import Store
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition
from whyloop.wire.journal import entries_of


class SessionJournal:
    """Append what happens to a session as long as this process holds its lease.

    The entry that ends the run gives the lease back. `key` goes into the first entry.
    """

    def __init__(
        self, store: Store, lease: Lease, reading: Reading, live: Live, key: RequestKey | None = None
    ) -> None:
        self.state = reading.state
        self.version = reading.version
        self.released = False
        self.first_version = 0
        """The version after the first append; 0 before it."""
        self._store = store
        self._lease = lease
        self._live = live
        self._key = key

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        stop, cancelled = None, None
        try:
            await self._live.take_turn(after.agent_id)
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
                summary=None if is_listed_alike(before, after) else summary_of(after),
                release=self.released,
                key=self._key,
            )
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            self.released = False
            raise
        self._key, self.state, self.version = None, after, self.version + len(entries)
        self.first_version = self.first_version or self.version
        self._live.appended(after.agent_id)
        if cancelled is not None:
            raise cancelled
        return stop


BEATS_A_LEASE = 3

_log = Logger()


class Heartbeat:
    """Renew a lease three times in the time that it lasts, and pass stop requests on.

    Once another runner has the session, the run of this process is cancelled: nothing that it does could
    be recorded any more.
    """

    def __init__(
        self, store: Store, lease: Lease, on_stop_request: Callable[[str], object], journal: SessionJournal
    ) -> None:
        self._journal = journal
        self._store = store
        self._lease = lease
        self._on_stop_request = on_stop_request
        self._lost: StoreError | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._runner = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        if self._lost is not None:
            if self._runner is not None:
                self._runner.uncancel()
            if isinstance(error, asyncio.CancelledError):
                raise self._lost from None

    @property
    def is_still(self) -> bool:
        """True once nothing will be renewed any more."""
        return self._timer.cancelled() and (self._renewing is None or self._renewing.done())

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._lease.seconds / BEATS_A_LEASE, self._beat)

    def _beat(self) -> None:
        self._renewing = self._loop.create_task(self._renew())

    async def _renew(self) -> None:
        try:
            reason = await self._store.renew(self._lease)
            if reason is not None:
                self._on_stop_request(reason)
        except (LeaseLostError, SessionNotFoundError) as error:
            if self._journal.released:
                return
            self._lost = error
            if self._runner is not None:
                self._runner.cancel()
            return
        except Exception as error:
            _log.warning("the lease of session %s could not be renewed: %s", self._lease.agent_id, error)
        self._wait()
