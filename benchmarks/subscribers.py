"""One session and many who follow it over HTTP: the server in a process of its own, its clients in another.

Every envelope is told when the one before it was passed on, so that none share a write: nothing is
harder on a server than this. Times of both processes are of one clock, that of the machine.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.work import lookup
from whyloop import Agent, FinishReason, ModelRequest, ModelResponse, Session, TextDelta, ToolCall
from whyloop.broadcasting import EventFeed
from whyloop.events import AgentEvent
from whyloop.stores import SqliteStore

ROOT = Path(__file__).parent.parent
SUBSCRIBERS = 1000
ENVELOPES = 100
AT_ONCE = 100
PATIENCE = 120.0
BARE_CHARACTERS = 200
LAST = b'"status":"completed"'
REQUEST = b"GET /sessions/bench/events HTTP/1.1\r\nhost: bench\r\naccept: text/event-stream\r\n\r\n"
# The start of a step and a chunk have the number of the envelope before them.
NUMBER = re.compile(
    rb'^id: [^:]+:(\d+)\ndata: \{"v":1,"event":"(?!agent\.step\.started|agent\.stream)', re.MULTILINE
)


# The server


class PacedModel:
    """Asks for a tool whenever everything so far has reached a follower, for as many steps as it takes."""

    def __init__(self) -> None:
        self.sent = self.heard = 0

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        while self.heard < self.sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if self.sent > ENVELOPES:
            yield ModelResponse("done")
        else:
            call = ToolCall(f"call_{self.sent}", "lookup", {"key": "alpha"})
            yield ModelResponse("", (call,), FinishReason.TOOL_CALLS)

    def note(self, event: AgentEvent) -> None:
        self.sent = event.seq


async def serve() -> None:
    """Print the port, wait for a word, run the session, and print when it began."""
    import uvicorn

    from whyloop.server import AgentServer

    with tempfile.TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "whyloop.db") as store:
            model = PacedModel()
            agent = Agent(model, [lookup], max_steps=ENVELOPES, event_handler=model.note)
            session = await Session.open(store, agent, "bench", create=True)
            config = uvicorn.Config(
                AgentServer(store, public=True, origins=["*"]),
                port=0,
                log_level="critical",
                timeout_graceful_shutdown=0,
            )
            server = uvicorn.Server(config)
            running = asyncio.create_task(_run(session, model, server))
            await server.serve()
            await running


async def _run(session: Session, model: PacedModel, server: Any) -> None:
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    following = asyncio.create_task(_follow(session, model))
    await session.send("go")
    following.cancel()
    print(json.dumps({"began": began, "envelopes": model.sent}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    server.should_exit = True


async def _follow(session: Session, model: PacedModel) -> None:
    async with EventFeed(session.store) as feed, aclosing(feed.follow("bench")) as following:
        async for items in following:
            model.heard = items[-1].seq


# The yardstick: a server that only writes as many frames of that size to as many connections


class _Told(asyncio.Protocol):
    def __init__(self, connected: list[asyncio.Transport]) -> None:
        self._connected = connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        self._connected.append(self._transport)


async def serve_bare() -> None:
    """Print the port, wait for a word, write to everybody, and print when it began."""
    connected: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(lambda: _Told(connected), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    for seq in range(1, ENVELOPES + 3):
        event = (
            "agent.tool.started" if seq < ENVELOPES + 2 else 'agent.status","x":{"status":"completed"},"y":"'
        )
        body = f'{{"v":1,"event":"{event}","seq":{seq},"data":{{"text":"{"x" * BARE_CHARACTERS}"}}}}'
        frame = f"id: e1:{seq}\ndata: {body}\n\n".encode()
        for transport in connected:
            transport.write(frame)
        await asyncio.sleep(0)
    print(json.dumps({"began": began, "envelopes": ENVELOPES + 2}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    server.close()


# The clients


class Subscriber(asyncio.Protocol):
    """Keeps what it gets, and says when it has the first and the last of it."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.begun = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        known = max(0, len(self.received) - len(LAST))
        self.received += data
        if not self.begun.done() and self.received.find(b"\r\n\r\n") >= 0:
            self.begun.set_result(None)
        if not self.done.done() and self.received.find(LAST, known) >= 0:
            self.done.set_result(time.monotonic())

    def count(self) -> int:
        """Return how many numbered envelopes it received; 0 if they were not in order, each once."""
        numbers = [int(seq) for seq in NUMBER.findall(self.received)]
        return len(numbers) if numbers == list(range(1, len(numbers) + 1)) else 0


async def hear(port: int) -> None:
    """Connect, say how long that took, and then when the last one had the last of it."""
    loop, subscribers, began = asyncio.get_running_loop(), [], time.monotonic()
    for _ in range(0, SUBSCRIBERS, AT_ONCE):
        connecting = [loop.create_connection(Subscriber, "127.0.0.1", port) for _ in range(AT_ONCE)]
        some = [subscriber for _, subscriber in await asyncio.gather(*connecting)]
        await asyncio.gather(*[each.begun for each in some])
        subscribers += some
    print(time.monotonic() - began, flush=True)
    ended = max(await asyncio.gather(*[each.done for each in subscribers]))
    print(json.dumps({"ended": ended, "counts": [each.count() for each in subscribers]}), flush=True)


# Both


class Measured(NamedTuple):
    """Seconds until all were connected, and then until all had the last one; how many got all in order.

    `bare_seconds` is what a bare server needs, which only writes as many frames.
    """

    connected: float
    seconds: float
    complete: int
    bare_seconds: float

    @property
    def is_whole(self) -> bool:
        return self.complete == SUBSCRIBERS


async def measure() -> Measured:
    """Have everybody connect, tell, and see what they got; before and after, the same with a bare server."""
    before = await _told_by("bare")
    connected, seconds, complete = await _told_by("serve")
    after = await _told_by("bare")
    return Measured(connected, seconds, complete, (before[1] + after[1]) / 2)


async def _told_by(role: str) -> tuple[float, float, int]:
    """Return the seconds to connect and to tell everybody, and how many got all of it in order."""
    server, clients = await _started(role), None
    try:
        async with asyncio.timeout(PATIENCE):
            port = (await _line(server)).strip()
            clients = await _started("hear", port)
            connected = float(await _line(clients))
            _say(server, b"go\n")
            run = json.loads(await _line(server))
            heard = json.loads(await _line(clients))
            _say(server, b"end\n")
            await server.wait()
    finally:
        for process in (server, clients):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
    complete = sum(count == run["envelopes"] for count in heard["counts"])
    return connected, heard["ended"] - run["began"], complete


async def _started(*role: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "benchmarks.subscribers", *role)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode()


def _say(process: asyncio.subprocess.Process, word: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(word)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["bare"]:
            asyncio.run(serve_bare())
        case ["hear", port]:
            asyncio.run(hear(int(port)))
        case _:
            print(asyncio.run(measure()))
