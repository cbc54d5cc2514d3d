"""Requests that are sent again under the same `Idempotency-Key`: carried out once, answered each time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TypeVar

import msgspec

from whyloop.errors import KeyUsedError, SessionExistsError, SessionNotFoundError, SessionRunningError
from whyloop.server.problems import BadRequestError
from whyloop.stores.records import RequestKey
from whyloop.stores.store import Store

A = TypeVar("A")

# The first request may be on its way in another process: its key is recorded within a moment.
A_MOMENT, MOMENTS = 0.02, 10


class Keys:
    """Carries out a request unless its key was used, and answers it from what the first one recorded."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    async def once(
        self,
        agent_id: str,
        key: RequestKey | None,
        work: Callable[[], Awaitable[A]],
        again: Callable[[int], Awaitable[A]],
    ) -> A:
        """Return the answer to `work`; `again` answers from the version that the first request recorded.

        Requests with one key come one after the other. A key that came with another request before is 422.
        """
        if key is None:
            return await work()
        async with self._one_at_a_time(agent_id, key.key):
            version = await self.version(agent_id, key)
            if version is None:
                try:
                    return await work()
                except KeyUsedError as error:
                    version = _checked(key, error.digest, error.version)
                except SessionExistsError:
                    version = await self.version(agent_id, key)
                    if version is None:
                        raise
                except SessionRunningError:
                    version = await self._wait_for(agent_id, key)
                    if version is None:
                        raise
            return await again(version)

    async def version(self, agent_id: str, key: RequestKey) -> int | None:
        """Return the version that was recorded under a key; None if there is none."""
        try:
            found = await self._store.key(agent_id, key.key)
        except SessionNotFoundError:
            return None
        return None if found is None else _checked(key, *found)

    async def _wait_for(self, agent_id: str, key: RequestKey) -> int | None:
        for _ in range(MOMENTS):
            version = await self.version(agent_id, key)
            if version is not None:
                return version
            await asyncio.sleep(A_MOMENT)
        return None

    @asynccontextmanager
    async def _one_at_a_time(self, agent_id: str, key: str) -> AsyncIterator[None]:
        """Hold a lock that exists for as long as a request of this process uses it."""
        lock, users = self._locks.get((agent_id, key), (asyncio.Lock(), 0))
        self._locks[agent_id, key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[agent_id, key]
            if users > 1:
                self._locks[agent_id, key] = lock, users - 1
            else:
                del self._locks[agent_id, key]


def session_id_of(key: RequestKey, within: Mapping[str, object], *origin: str) -> str:
    """Return the id of the session that a request creates under a key, the same for the same client.

    Keys belong to sessions, so the second request has to find the session of the first one.
    """
    named = msgspec.json.encode([key.key, within, origin], order="sorted")
    return sha256(named).hexdigest()[:32]


def _checked(key: RequestKey, digest: str, version: int) -> int:
    if digest != key.digest:
        raise BadRequestError(
            "another request was sent under this Idempotency-Key: use a new key for a new request",
            422,
            "key_reused",
        )
    return version
