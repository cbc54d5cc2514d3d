"""What is told of a session, as server-sent events and over a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from whyloop.broadcasting.channel import Seen
from whyloop.broadcasting.event_log import EventLog
from whyloop.broadcasting.places import place_of
from whyloop.errors import StoreError
from whyloop.stores.records import Told
from whyloop.stores.store import EVENTS

# Proxies cut a connection on which nothing was heard for a while, often a minute.
IDLE_SECONDS = 15.0
STILL_HERE = b": still here\n\n"
# How long a browser waits before it connects again.
RETRY = b"retry: 1000\n\n"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


def event_stream(log: EventLog, agent_id: str, seen: Seen) -> Response:
    """Envelope after envelope, each with its place, which a browser shows when it connects again."""
    return _EventStream(log, agent_id, seen)


class _EventStream(Response):
    """A response that goes on for as long as there is somebody to hear it."""

    def __init__(self, log: EventLog, agent_id: str, seen: Seen) -> None:
        super().__init__(headers=HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._log, self._agent_id, self._seen = log, agent_id, seen
        self._is_idle = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(told: Sequence[Told]) -> None:
            self._is_idle = False
            await _write(send, b"".join([frame(each) for each in told]))

        with suppress(OSError):  # There may be nobody left to write to.
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if scope["method"] != "HEAD":
                await _write(send, RETRY)
                await _first_of(
                    _pump(self._log, self._agent_id, self._seen, write),
                    self._say_so_while_idle(send),
                    _gone(receive, "http.disconnect"),
                )
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _say_so_while_idle(self, send: Send) -> None:
        while True:
            self._is_idle = True
            await asyncio.sleep(IDLE_SECONDS)
            if self._is_idle:
                await _write(send, STILL_HERE)


async def web_socket(websocket: WebSocket, log: EventLog, agent_id: str, seen: Seen) -> None:
    """Envelope after envelope, each in a message of its own, until the client goes away."""

    async def write(told: Sequence[Told]) -> None:
        for each in told:
            await websocket.send_text(each.body)

    await websocket.accept()
    with suppress(WebSocketDisconnect):
        # What a client says meanwhile is nothing that anybody waits for.
        await _first_of(_pump(log, agent_id, seen, write), _gone(websocket.receive, "websocket.disconnect"))
        with suppress(RuntimeError):  # It may be closed already.
            await websocket.close(1001)


# A thousand clients get the same batch at about the same time.
@lru_cache(maxsize=2 * EVENTS)
def frame(told: Told) -> bytes:
    """An envelope as a server-sent event; JSON has no line breaks in it."""
    return f"id: {place_of(told)}\ndata: {told.body}\n\n".encode()


async def _pump(
    log: EventLog, agent_id: str, seen: Seen, write: Callable[[Sequence[Told]], Awaitable[None]]
) -> None:
    """Pass on what is told until there is nothing more to come."""
    async with aclosing(log.follow(agent_id, seen)) as following:
        with suppress(StoreError):  # Who connects again hears what the matter is.
            async for told in following:
                await write(told)


async def _write(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _gone(receive: Receive, how: str) -> None:
    """Return when the client goes away."""
    while (await receive())["type"] != how:
        pass


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of these until one of them comes to its end; raises what that raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
