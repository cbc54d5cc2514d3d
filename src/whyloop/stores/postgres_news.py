"""Hearing from PostgreSQL of which sessions something was told, without asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection

CHANNEL = "whyloop_events"
# A notice may get lost with the connection that it was to come by.
LOOK_AGAIN_SECONDS = 5.0
POLL_SECONDS = 0.25

Connect = Callable[[], Awaitable[AsyncConnection[Any]]]


class News:
    """One connection that listens for all who wait; it is made when the first one does.

    While there is none, because the server is away or a pooler in between does not pass notices on, those
    who wait look for themselves.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._listens = False
        self._listener: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @contextmanager
    def of(self, agent_id: str) -> Iterator[asyncio.Event]:
        """Something that is set once there may be news of a session."""
        self._begin()
        heard = asyncio.Event()
        self._waiting.setdefault(agent_id, set()).add(heard)
        try:
            yield heard
        finally:
            others = self._waiting.get(agent_id, set())
            others.discard(heard)
            if not others:
                self._waiting.pop(agent_id, None)

    async def wait(self, heard: asyncio.Event) -> None:
        """Wait for news, or until it is time to look anyway."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_SECONDS if self._listens else POLL_SECONDS):
                await heard.wait()

    async def close(self) -> None:
        """Listen no more; those who wait look once more, and find that the store is closed."""
        self._closed = True
        listener, self._listener = self._listener, None
        if listener is not None and self._loop is asyncio.get_running_loop():
            listener.cancel()
            await asyncio.wait([listener])
            self._ring(*self._waiting)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self._closed or (self._loop is not loop and self._loop is not None and self._loop.is_running()):
            return  # The connections say so to whoever asks them.
        if self._loop is not loop or self._listener is None or self._listener.done():
            if self._loop is not loop:
                self._waiting = {}
            self._loop, self._listens = loop, False
            self._listener = loop.create_task(self._listen(), name="whyloop news")

    async def _listen(self) -> None:
        while True:
            with suppress(psycopg.Error, OSError):
                async with await self._connect() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._listens = True
                    self._ring(*self._waiting)  # What was told before that was not heard.
                    async for notice in connection.notifies():
                        self._ring(notice.payload)
            self._listens = False
            await asyncio.sleep(POLL_SECONDS)

    def _ring(self, *agent_ids: str) -> None:
        for agent_id in agent_ids:
            for heard in self._waiting.get(agent_id, ()):
                heard.set()
