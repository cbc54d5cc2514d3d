"""The envelopes of a session, as server-sent events and over a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, aclosing, suppress
from functools import lru_cache
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from whyloop.broadcasting.feed import FeedItem
from whyloop.errors import StoreError
from whyloop.server.access import PROTOCOL

# Proxies close a connection that is silent for a while, often a minute.
IDLE_SECONDS = 15.0
STILL_HERE = b": still here\n\n"
# How long a browser waits before it connects again.
RETRY = b"retry: 1000\n\n"
BYTES_PER_WRITE = 64_000
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


T = TypeVar("T")

Write = Callable[[bytes], Awaitable[None]]


def event_stream(envelopes: AsyncGenerator[Sequence[FeedItem], None]) -> Response:
    """Return envelopes; each carries its cursor, which a browser sends to reconnect."""

    async def pump(write: Write) -> None:
        async def write_items(items: Sequence[FeedItem]) -> None:
            for piece in in_pieces(map(frame, items)):
                await write(piece)

        await write(RETRY)
        await _pump(envelopes, write_items)

    return EventStream(pump)


class EventStream(Response):
    """Server-sent events that `pump` writes until it ends or the client leaves.

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
                await together(
                    self._pump(write), self._write_while_idle(send), _gone(receive, "http.disconnect")
                )
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_while_idle(self, send: Send) -> None:
        while True:
            self._is_idle = True
            await asyncio.sleep(IDLE_SECONDS)
            if self._is_idle:
                await _write(send, STILL_HERE)


async def web_socket(websocket: WebSocket, envelopes: AsyncGenerator[Sequence[FeedItem], None]) -> None:
    """Send envelopes, one per message, until the client leaves."""

    async def write(items: Sequence[FeedItem]) -> None:
        for item in items:
            await websocket.send_text(item.body)

    await send_over(websocket, _pump(envelopes, write))


async def accept(websocket: WebSocket) -> None:
    """Accept a WebSocket; a browser that offers protocols requires one of them."""
    await websocket.accept(PROTOCOL if PROTOCOL in websocket.scope.get("subprotocols", ()) else None)


async def refuse(websocket: WebSocket, response: Response) -> None:
    """Refuse a WebSocket before accepting it, with the response, or with 403 if that cannot be sent."""
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(response)
    else:
        await websocket.close()


async def send_over(websocket: WebSocket, pump: Coroutine[Any, Any, None]) -> None:
    """Accept a WebSocket and send the output of `pump` until the client leaves."""
    await accept(websocket)
    with suppress(WebSocketDisconnect):
        # Messages of the client are read and dropped.
        await together(pump, _gone(websocket.receive, "websocket.disconnect"))
        # A client that has left may not read any more, and a server waits until it could send.
        if websocket.client_state is not WebSocketState.DISCONNECTED:
            with suppress(RuntimeError):  # It may already be closed.
                await websocket.close(1001)


# A thousand clients may get the same items at about the same time.
@lru_cache(maxsize=500)
def frame(item: FeedItem) -> bytes:
    """Return an envelope as a server-sent event; JSON has no line breaks in it."""
    return f"id: {item.cursor}\ndata: {item.body}\n\n".encode()


def in_pieces(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Yield short frames together, but not too many, since they wait in memory."""
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
    envelopes: AsyncGenerator[Sequence[FeedItem], None],
    write: Callable[[Sequence[FeedItem]], Awaitable[None]],
) -> None:
    """Pass envelopes on until no more can come."""
    async with aclosing(envelopes) as following:
        with suppress(StoreError):  # A client that connects again receives the reason.
            async for items in following:
                await write(items)


async def _write(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _gone(receive: Receive, how: str) -> None:
    """Return when the client goes away."""
    while (await receive())["type"] != how:
        pass


async def until_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return the result of some work; cancel it if the client leaves."""
    found: list[T] = []

    async def carry_out() -> None:
        found.append(await work)

    await together(carry_out(), _gone(receive, "http.disconnect"))
    if not found:
        raise ClientDisconnect
    return found[0]


async def together(*works: Coroutine[Any, Any, None], until: str = asyncio.FIRST_COMPLETED) -> None:
    """Run all of these until one of them has ended or failed; raise its error."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=until)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
