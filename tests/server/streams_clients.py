"""Clients of streams that read what the standards say, and no more than they are asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec

# These are never recorded.
LIVE = ("agent.step.started", "agent.stream.chunk")
LONG_ENOUGH = 10.0  # Seconds, for a machine that does a lot at once.


class Event(NamedTuple):
    """What a browser hands to `onmessage`, or a comment, which it keeps to itself."""

    id: str
    data: str
    comment: str | None = None

    @property
    def seq(self) -> int:
        return int(self.id.rpartition(":")[2])


class Parser:
    """Reads a stream of server-sent events by the letter of the standard."""

    def __init__(self) -> None:
        self.retry: int | None = None
        self._left = b""
        self._is_first = True
        self._id = ""
        self._kind = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Event]:
        self._left += piece
        if self._is_first and len(self._left) >= 3:
            self._left = self._left.removeprefix(b"\xef\xbb\xbf")
            self._is_first = False
        *lines, self._left = self._lines(self._left)
        return [event for line in lines for event in self._line(line.decode("utf-8", errors="strict"))]

    @staticmethod
    def _lines(text: bytes) -> list[bytes]:
        """Lines end with CR LF, CR or LF; a CR at the very end may be the first half of one."""
        held = b"\r" if text.endswith(b"\r") else b""
        whole = text.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = whole.split(b"\n")
        lines[-1] += held
        return lines

    def _line(self, line: str) -> list[Event]:
        if not line:
            return self._dispatched()
        if line.startswith(":"):
            return [Event(self._id, "", comment=line[1:].removeprefix(" "))]
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit():
                self.retry = int(value)
        return []

    def _dispatched(self) -> list[Event]:
        data, kind = self._data, self._kind
        self._data, self._kind = [], ""
        assert not kind, "a browser would not hand this to onmessage"
        return [Event(self._id, "\n".join(data))] if data else []


class EventClient:
    """A client of server-sent events, which reads only when it is asked for the next."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.parser = Parser()
        self._events: list[Event] = []

    async def next(self) -> Event | None:
        """The next event or comment; None at the end of the stream."""
        async with asyncio.timeout(LONG_ENOUGH):
            while not self._events:
                piece = await self.response.content.readany()
                if not piece:
                    return None
                self._events += self.parser.feed(piece)
        return self._events.pop(0)

    async def hears(self, *expected: int) -> list[Event]:
        """The next events have these numbers."""
        heard: list[Event] = []
        for _ in expected:
            event = await self.next()
            assert event is not None, f"the stream has ended after {[each.seq for each in heard]}"
            heard.append(event)
        assert [each.seq for each in heard] == list(expected)
        return heard

    async def run(self) -> list[dict[str, Any]]:
        """Every envelope up to the end of a run."""
        heard: list[dict[str, Any]] = []
        while not heard or not is_end(heard[-1]):
            event = await self.next()
            assert event is not None, "the stream has ended"
            if event.comment is None:
                heard.append(read(event.data))
        return heard


class SocketClient:
    """A client of a WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def next(self) -> dict[str, Any]:
        return read(await self.socket.receive_str(timeout=LONG_ENOUGH))

    async def hears(self, *expected: int) -> None:
        heard = [(await self.next())["seq"] for _ in expected]
        assert heard == list(expected)

    async def run(self) -> list[dict[str, Any]]:
        """Every envelope up to the end of a run."""
        heard: list[dict[str, Any]] = []
        while not heard or not is_end(heard[-1]):
            heard.append(await self.next())
        return heard

    async def closed(self) -> tuple[int | None, str]:
        """The code and the words with which it is closed next."""
        message = await self.socket.receive(timeout=LONG_ENOUGH)
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return message.data, str(message.extra)


def read(body: str) -> dict[str, Any]:
    envelope: dict[str, Any] = msgspec.json.decode(body)
    return envelope


def is_end(envelope: dict[str, Any]) -> bool:
    return bool(envelope["event"] == "agent.status" and envelope["data"]["status"] != "in_progress")


def events_url(address: str, agent_id: str = "a", after: str | int | None = None) -> str:
    query = "" if after is None else f"?after={after}"
    return f"{address}/sessions/{agent_id}/events{query}"


class Clients:
    """Opens streams, with small buffers where that is wanted."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    @asynccontextmanager
    async def events(
        self, address: str, agent_id: str = "a", after: str | int | None = None, last: str | None = None
    ) -> AsyncIterator[EventClient]:
        headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
        async with self.http.get(events_url(address, agent_id, after), headers=headers) as response:
            assert response.status == 200, await response.text()
            yield EventClient(response)

    @asynccontextmanager
    async def socket(
        self, address: str, agent_id: str = "a", after: str | int | None = None
    ) -> AsyncIterator[SocketClient]:
        url = events_url(address, agent_id, after)
        async with self.http.ws_connect(url, max_msg_size=0) as opened:
            yield SocketClient(opened)

    async def page(
        self, address: str, agent_id: str = "a", after: str | int | None = None
    ) -> list[dict[str, Any]]:
        """All that is kept, asked for page by page."""
        kept: list[dict[str, Any]] = []
        while True:
            async with self.http.get(events_url(address, agent_id, after)) as response:
                assert response.status == 200, await response.text()
                page = await response.json()
            kept += page["events"]
            after = page["next"]
            if not page["has_more"]:
                return kept


@asynccontextmanager
async def clients(receive_buffer: int | None = None) -> AsyncIterator[Clients]:
    """Clients, with so small a buffer in the kernel if that is given."""

    def make(address: Any) -> socket.socket:
        made = socket.socket(address[0], address[1], address[2])
        made.setblocking(False)
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        return made

    connector = aiohttp.TCPConnector(limit=0, socket_factory=make)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as http:
        yield Clients(http)
