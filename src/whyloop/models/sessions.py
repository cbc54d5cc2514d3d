"""The HTTP session of each event loop, and the slots for requests under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import aiohttp

_Loop = asyncio.AbstractEventLoop
_Keeper = AsyncGenerator[aiohttp.ClientSession, None]

# All models share them: what tells one model's request from another's is in the request. A model may
# be forgotten while its loop runs on, but a session has to be closed while its loop still runs.
_kept: dict[_Loop, tuple[aiohttp.ClientSession, _Keeper]] = {}


async def session_here() -> aiohttp.ClientSession:
    """The session of the event loop that is running; it is closed when the loop shuts down."""
    loop = asyncio.get_running_loop()
    kept = _kept.get(loop)
    if kept is None or kept[0].closed:
        for other, (session, _) in list(_kept.items()):
            if session.closed or other.is_closed():
                _kept.pop(other, None)
        # An event loop closes its generators when it shuts down, and with this one the session.
        keeper = _opened()
        kept = _kept[loop] = (await anext(keeper), keeper)
    return kept[0]


async def close_here() -> None:
    """Close the session of the event loop that is running, if it has one; the next request opens another."""
    kept = _kept.pop(asyncio.get_running_loop(), None)
    if kept is not None:
        await kept[1].aclose()


async def _opened() -> _Keeper:
    # How many requests are made at once is for the slots to say; cookies would tie one user's
    # requests to another's.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


class Slots:
    """At most so many requests at once on one event loop; None is any number."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._semaphores: dict[_Loop, asyncio.Semaphore] = {}

    def here(self) -> AbstractAsyncContextManager[Any]:
        """A slot of the event loop that is running, to be waited for and given back."""
        if self._most is None:
            return nullcontext()
        loop = asyncio.get_running_loop()
        if loop not in self._semaphores:
            gone = [other for other in self._semaphores if other.is_closed()]
            for other in gone:
                del self._semaphores[other]
            self._semaphores[loop] = asyncio.Semaphore(self._most)
        return self._semaphores[loop]
