"""The envelopes of a session, as server-sent events and over a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from functools import lru_cache
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from whyloop.broadcasting.feed import Cursor, EventFeed, FeedItem
from whyloop.errors import StoreError

# Proxies cut a connection that was silent for a while, often a minute.
IDLE_SECONDS = 15.0
STILL_HERE = b": still here\n\n"
# How long a browser waits before it connects again.
RETRY = b"retry: 1000\n\n"
BYTES_PER_WRITE = 64_000
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


Write = Callable[[bytes], Awaitable[None]]


def event_stream(feed: EventFeed, agent_id: str, after: Cursor | None) -> Response:
    """Return the envelopes after a cursor; each carries its own, which a browser sends to reconnect."""

    async def pump(write: Write) -> None:
        async def write_items(items: Sequence[FeedItem]) -> None:
            for piece in in_pieces(map(frame, items)):
                await write(piece)

        await write(RETRY)
        await _pump(feed, agent_id, after, write_items)

    return EventStream(pump)


class EventStream(Response):
    """Server-sent events that `pump` writes until there are no more, or its client goes away.

    The resources in `held` are closed at its end.
    """

    def __init__(
        self,
        pump: Callable[[Write], Coroutine[Any, Any, None]],
        headers: Mapping[str, str] | None = None,
        held: ExitStack | None = None,
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._pump = pump
        self._held = held or ExitStack()
        self._is_idle = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(piece: bytes) -> None:
            self._is_idle = False
            await _write(send, piece)

        with self._held, suppress(OSError):  # The client may be gone.
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if scope["method"] != "HEAD":
                await _first_of(
                    self._pump(write), self._write_while_idle(send), _gone(receive, "http.disconnect")
                )
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_while_idle(self, send: Send) -> None:
        while True:
            self._is_idle = True
            await asyncio.sleep(IDLE_SECONDS)
            if self._is_idle:
                await _write(send, STILL_HERE)


async def web_socket(websocket: WebSocket, feed: EventFeed, agent_id: str, after: Cursor | None) -> None:
    """Send the envelopes after a cursor, each in a message of its own, until the client goes away."""

    async def write(items: Sequence[FeedItem]) -> None:
        for item in items:
            await websocket.send_text(item.body)

    await send_over(websocket, _pump(feed, agent_id, after, write))


async def send_over(websocket: WebSocket, pump: Coroutine[Any, Any, None]) -> None:
    """Accept a WebSocket and send over it what `pump` does, until the client goes away."""
    await websocket.accept()
    with suppress(WebSocketDisconnect):
        # Messages of the client are read and dropped.
        await _first_of(pump, _gone(websocket.receive, "websocket.disconnect"))
        with suppress(RuntimeError):  # It may be closed already.
            await websocket.close(1001)


# A thousand clients get the same items at about the same time.
@lru_cache(maxsize=500)
def frame(item: FeedItem) -> bytes:
    """Return an envelope as a server-sent event; JSON has no line breaks in it."""
    return f"id: {item.cursor}\ndata: {item.body}\n\n".encode()


def in_pieces(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Yield frames together as far as they are short: what is written waits in memory."""
    held: list[bytes] = []
    size = 0
    for each in frames:
        held.append(each)
        size += len(each)
        if size >= BYTES_PER_WRITE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


async def _pump(
    feed: EventFeed,
    agent_id: str,
    after: Cursor | None,
    write: Callable[[Sequence[FeedItem]], Awaitable[None]],
) -> None:
    """Pass envelopes on until no more can come."""
    async with aclosing(feed.follow(agent_id, after)) as following:
        with suppress(StoreError):  # A client that connects again receives the reason.
            async for items in following:
                await write(items)


async def _write(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _gone(receive: Receive, how: str) -> None:
    """Return when the client goes away."""
    while (await receive())["type"] != how:
        pass


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of these until one of them has ended, and raise its error."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
