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
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from whyloop.stores import SqliteStore, Summary
from whyloop.values.state import AgentStatus

ROOT = Path(__file__).parent.parent
SUBSCRIBERS = 1000
ENVELOPES = 100
AT_ONCE = 100
PATIENCE = 120.0
REQUEST = b"GET /sessions/bench/events HTTP/1.1\r\nhost: bench\r\naccept: text/event-stream\r\n\r\n"
ID = re.compile(rb"^id: e1:(\d+)\r?$", re.MULTILINE)


def envelope(seq: int) -> dict[str, Any]:
    """What is told of a tool call."""
    return {
        "v": 1,
        "event": "agent.tool.completed",
        "seq": seq,
        "timestamp": "2026-01-16T10:05:01.123Z",
        "agent_id": "bench",
        "session_id": "bench",
        "execution_id": "e1",
        "data": {
            "tool": "lookup",
            "tool_call_id": f"call_{seq}",
            "success": True,
            "error": None,
            "duration_ms": 12.345,
            "result_summary": f"the value of alpha, at most {seq}",
        },
    }


# The server


async def serve() -> None:
    """Say the port, wait for a word, tell, and say when it began."""
    import uvicorn

    from whyloop.server import AgentServer

    with tempfile.TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "whyloop.db") as store:
            now = datetime.now(UTC)
            await store.create(Summary("bench", AgentStatus.IN_PROGRESS, now, now), ["first"])
            app = AgentServer(store)
            app.events.broadcast(envelope(1))
            config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=0)
            server = uvicorn.Server(config)
            telling = asyncio.create_task(_tell(app, server))
            await server.serve()
            await telling


async def _tell(app: Any, server: Any) -> None:
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    async with aclosing(app.events.follow("bench")) as following:
        async for told in following:
            if told[-1].seq > ENVELOPES:
                break
            app.events.broadcast(envelope(told[-1].seq + 1))
    print(began, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    server.should_exit = True


# The clients


class Subscriber(asyncio.Protocol):
    """Keeps what it gets, and says when it has the first and the last of it."""

    def __init__(self, count: int) -> None:
        self.received = bytearray()
        self.begun = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()
        self._last = b"id: e1:%d\n" % (count + 1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        known = max(0, len(self.received) - len(self._last))
        self.received += data
        if not self.begun.done() and self.received.find(b"id: e1:1\n") >= 0:
            self.begun.set_result(None)
        if not self.done.done() and self.received.find(self._last, known) >= 0:
            self.done.set_result(time.monotonic())

    def is_complete(self, count: int) -> bool:
        """Whether it got all of them, in order and once."""
        return [int(seq) for seq in ID.findall(self.received)] == list(range(1, count + 2))


async def hear(port: int) -> None:
    """Connect, say how long that took, and then when the last one had the last of it."""
    loop, subscribers, began = asyncio.get_running_loop(), [], time.monotonic()
    for _ in range(0, SUBSCRIBERS, AT_ONCE):
        connecting = [
            loop.create_connection(lambda: Subscriber(ENVELOPES), "127.0.0.1", port) for _ in range(AT_ONCE)
        ]
        some = [subscriber for _, subscriber in await asyncio.gather(*connecting)]
        await asyncio.gather(*[each.begun for each in some])
        subscribers += some
    print(time.monotonic() - began, flush=True)
    ended = max(await asyncio.gather(*[each.done for each in subscribers]))
    complete = sum(each.is_complete(ENVELOPES) for each in subscribers)
    print(json.dumps({"ended": ended, "complete": complete}), flush=True)


# Both


class Measured(NamedTuple):
    """Seconds until all were connected, and then until all had the last one; how many got all in order."""

    connected: float
    seconds: float
    complete: int


async def measure() -> Measured:
    """Have everybody connect, tell, and see what they got."""
    server, clients = await _started("serve"), None
    try:
        async with asyncio.timeout(PATIENCE):
            port = (await _line(server)).strip()
            clients = await _started("hear", port)
            connected = float(await _line(clients))
            _say(server, b"go\n")
            began = float(await _line(server))
            heard = json.loads(await _line(clients))
            _say(server, b"end\n")
            await server.wait()
    finally:
        for process in (server, clients):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
    return Measured(connected, heard["ended"] - began, heard["complete"])


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
        case ["hear", port]:
            asyncio.run(hear(int(port)))
        case _:
            print(asyncio.run(measure()))
