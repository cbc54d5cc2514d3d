"""Keeping a lease for as long as its session runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from whyloop.errors import LeaseLostError, SessionNotFoundError, StoreError
from whyloop.logger import Logger
from whyloop.stores.records import Lease
from whyloop.stores.store import Store

BEATS_A_LEASE = 3

_log = Logger()


class HasReleased(Protocol):
    """Whether the lease was given back, or is being given back at this moment."""

    released: bool


class Heartbeat:
    """Renews a lease three times in the time that it lasts, and hears of requests to stop.

    Once another runner has the session, what is under way here is cancelled: nothing that it does
    could be recorded any more.
    """

    def __init__(
        self, store: Store, lease: Lease, on_stop_request: Callable[[str], object], journal: HasReleased
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
            words = await self._store.renew(self._lease)
            if words is not None:
                self._on_stop_request(words)
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
