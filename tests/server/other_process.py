"""Another process that runs a session whose answer streams on, and on, until it is stopped.

`python -m tests.server.other_process ADDRESS [SCHEMA]` works on the session `a`. Each piece of its text is
the time at which it was made.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from tests.server.streams_clients import EventClient, read
from tests.server.streams_support import Stage
from tests.support import RespondingModel
from whyloop import Agent, ModelRequest, ModelResponse, Session, TextDelta
from whyloop.stores import Store, open_store

ROOT = Path(__file__).parents[2]
PIECES = 40


async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
    for _ in range(600):
        yield TextDelta(f"{time.time()} ")
        await asyncio.sleep(0.02)
    yield ModelResponse("nobody stopped it")


def opened(address: str, schema: str | None) -> Store:
    if schema is None:
        return open_store(address)
    from whyloop.stores.postgres import PostgresStore

    return PostgresStore(address, schema=schema)


async def main(address: str, schema: str | None = None) -> None:
    async with opened(address, schema) as store:
        session = await Session.open(store, Agent(RespondingModel(respond)), "a")
        await session.send("go")


@contextmanager
def another_process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", __spec__.name, *arguments], cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def latencies(client: EventClient) -> list[float]:
    """How long pieces of text are on their way from the other process to a client, in seconds."""
    found: list[float] = []
    while len(found) < PIECES:
        event = await client.next()
        assert event is not None
        if event.comment is None and read(event.data)["event"] == "agent.stream.chunk":
            found.append(time.time() - float(read(event.data)["data"]["chunk"]))
    return found


async def assert_text_arrives(a: Stage, *arguments: str) -> None:
    """Text of another process reaches a client of this one within 300 ms, in order."""
    async with a.to.events(a.url) as client:
        with another_process(*arguments):
            found = await latencies(client)
    # The first pieces may come before this process has said that it follows.
    assert sorted(found)[PIECES * 9 // 10] < 0.3, found


async def assert_stop_reaches(a: Stage, *arguments: str) -> None:
    """A stop request of this process ends the answer that streams in another one within a second."""
    async with a.to.events(a.url) as client:
        with another_process(*arguments) as process:
            await latencies(client)
            asked = time.monotonic()
            async with a.to.http.post(f"{a.url}/sessions/a/stop", json={"reason": "enough"}) as response:
                assert await response.json() == {"stopped": True}
            envelopes = await client.run()
            assert time.monotonic() - asked < 1.0
            await asyncio.to_thread(process.wait, 10)
    assert envelopes[-1]["data"]["stop_reason"] == "user_requested"
    async with a.to.http.get(f"{a.url}/sessions/a/messages") as response:
        [_, answer] = (await response.json())["messages"]
    assert answer["metadata"]["incomplete"] is True
    times = [float(piece) for piece in answer["content"].split()]
    assert len(times) >= PIECES
    assert all(one < other for one, other in pairwise(times))


async def assert_run_appears(a: Stage, *arguments: str, socket: bool = False) -> None:
    """A run of another process is in the live list within a second, and its text streams."""
    appeared, late = None, list[float]()
    async with _live_events(a.to.http, f"{a.url}/live?list=true&session=a", socket=socket) as events:
        with another_process(*arguments):
            async for name, data in events:
                if name == "list" and any(each["is_running"] for each in data["sessions"]):
                    begun_at = datetime.fromisoformat(data["sessions"][0]["updated_at"]).timestamp()
                    appeared = appeared or time.time() - begun_at
                elif name == "envelope" and data["envelope"]["event"] == "agent.stream.chunk":
                    late.append(time.time() - float(data["envelope"]["data"]["chunk"]))
                if appeared is not None and len(late) >= PIECES:
                    break
    assert appeared is not None
    assert appeared < 1.0
    assert sorted(late)[len(late) * 9 // 10] < 0.3, late


@asynccontextmanager
async def _live_events(
    http: aiohttp.ClientSession, address: str, *, socket: bool
) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """The events of a real server."""

    async def of_socket(connection: aiohttp.ClientWebSocketResponse) -> AsyncIterator[tuple[str, Any]]:
        async for message in connection:
            data = json.loads(message.data)
            yield data["event"], data["data"]

    async def of_stream(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
        name = ""
        async for line in response.content:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])

    if socket:
        async with http.ws_connect(address) as connection:
            yield of_socket(connection)
    else:
        async with http.get(address) as response:
            yield of_stream(response)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
