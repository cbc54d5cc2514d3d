"""A server on loopback that sends exactly the given bytes, and misbehaves on command."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from whyloop import AgentState

KEY = "secret-key-0123456789"


class Request(NamedTuple):
    """What a client asked."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Line(NamedTuple):
    """The two ends of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with suppress(ConnectionError):
            await self.writer.drain()


Behaviour = Callable[[Line], Awaitable[None]]


class FaultyServer:
    """Answers request after request as its behaviours say; the last one is for all that follow.

    It may be so hasty as to read only the head of a request, or nothing but that somebody is there.
    """

    def __init__(
        self, *behaviours: Behaviour, reads: Literal["everything", "head", "nothing"] = "everything"
    ) -> None:
        self.behaviours = list(behaviours)
        self._reads = reads
        self.requests: list[Request] = []
        self.connections = 0
        self.at_once = 0
        self.most_at_once = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> FaultyServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24, backlog=512)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while not writer.is_closing():
                await self._listen(reader)
                await self._answer(Line(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # The client has left, or the test is over.
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        if self._reads == "nothing":
            await reader.readexactly(1)
            return
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = int(headers["content-length"]) if self._reads == "everything" else 0
        self.requests.append(Request(first.split()[1], headers, await reader.readexactly(size)))

    async def _answer(self, line: Line) -> None:
        behaviour = self.behaviours[0] if len(self.behaviours) == 1 else self.behaviours.pop(0)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await behaviour(line)
        finally:
            self.at_once -= 1


@contextmanager
def in_a_thread(server: FaultyServer) -> Iterator[FaultyServer]:
    """The server on an event loop of its own, for tests that have none or start their own."""
    ready, done = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with server:
            loops.append(asyncio.get_running_loop())
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loops[0].call_soon_threadsafe(done.set)
        thread.join()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is about to be true."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


# What a connection can do


def say(data: bytes) -> Behaviour:
    """Answer, and stay for the next request."""

    async def behave(line: Line) -> None:
        await line.send(data)

    return behave


def cut(data: bytes = b"") -> Behaviour:
    """Send this much, and close."""

    async def behave(line: Line) -> None:
        await line.send(data)
        line.writer.close()

    return behave


def reset(data: bytes = b"") -> Behaviour:
    """Send this much, and break the connection off."""

    async def behave(line: Line) -> None:
        await line.send(data)
        await asyncio.sleep(0.02)
        at_once = struct.pack("ii", 1, 0)
        line.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        line.writer.close()

    return behave


def hang(data: bytes = b"") -> Behaviour:
    """Send this much, then nothing, until the client gives up."""

    async def behave(line: Line) -> None:
        await line.send(data)
        await line.reader.read(1)
        line.writer.close()

    return behave


def trickle(data: bytes, pause: float, size: int = 1) -> Behaviour:
    """Send a little at a time."""

    async def behave(line: Line) -> None:
        for start in range(0, len(data), size):
            if line.reader.at_eof() or line.writer.is_closing():
                break
            await line.send(data[start : start + size])
            await asyncio.sleep(pause)

    return behave


def slow(data: bytes, seconds: float) -> Behaviour:
    """Think first, then answer."""

    async def behave(line: Line) -> None:
        await asyncio.sleep(seconds)
        await line.send(data)

    return behave


# What can be said


def head(status: int = 200, content_type: str = "text/event-stream", **headers: object) -> bytes:
    """The head of a response; the names of headers are written with underscores."""
    lines = [f"HTTP/1.1 {status} Whatever", f"content-type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(
    body: bytes | object, status: int = 200, content_type: str = "application/json", **headers: object
) -> bytes:
    """A complete response with a length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(status, content_type, content_length=len(data), **headers) + data


def until_close(body: bytes, **headers: Any) -> bytes:
    """A stream that ends when the connection does."""
    return head(connection="close", **headers) + body


def chunked(body: bytes, size: int = 0, **headers: Any) -> bytes:
    """A stream with marked pieces and a marked end."""
    size = size or len(body) or 1
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head(transfer_encoding="chunked", **headers) + framed + b"0\r\n\r\n"


def event(document: object, name: str = "") -> bytes:
    """One server-sent event."""
    data = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    first = f"event: {name}\n" if name else ""
    return f"{first}data: {data}\n\n".encode()


DONE = event("[DONE]")


def chat_events(*pieces: str, calls: list[Any] | None = None, finish: str | None = "stop") -> bytes:
    """A chat completion, piece by piece, up to but without its [DONE]."""
    deltas: list[Any] = [{"content": piece} for piece in pieces]
    deltas += [{"tool_calls": [call]} for call in calls or ()]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    if finish:
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    return b"".join(event({"id": "c1", "choices": [choice]}) for choice in choices)


def call_piece(name: str, arguments: str, index: int = 0, id: str = "call_a") -> dict[str, Any]:
    """One tool call in one piece of a stream."""
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": id, "type": "function", "function": function}


def chat_answer(text: str = "Hello.", **usage: int) -> bytes:
    """A complete chat completion as a stream that ends well."""
    counted = event({"id": "c1", "choices": [], "usage": usage}) if usage else b""
    return chunked(chat_events(text) + counted + DONE)


def chat_call(name: str, arguments: str = "{}", id: str = "call_a") -> bytes:
    """A chat completion that asks for one tool."""
    return chunked(chat_events(calls=[call_piece(name, arguments, id=id)], finish="tool_calls") + DONE)


def assert_model_failed(state: AgentState, kind: str, *words: str) -> None:
    """The trace says what failed, in these words, and the history is as it was."""
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for("ErrorPolicyCriterion")
    assert said is not None
    assert (state.status, said.context["error_type"]) == ("failed", kind), state.explain()
    for word in words:
        assert word in said.context["message"]
    assert [message.role for message in state.messages] == ["user"]
