"""Followers who come and go at random while a run goes on, and what each of them has to receive."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from random import Random
from typing import Any, NamedTuple

from tests.server.recorded import Recorder
from tests.server.streams_clients import EventClient, SocketClient, read
from tests.server.streams_support import Stage
from whyloop.broadcasting import EventFeed
from whyloop.wire.envelope import NUMBERED

Envelope = dict[str, Any]
Next = Callable[[], Awaitable[Envelope]]
"""Waits for the next envelope of a connection."""
LAST = "last"
"""The execution whose end is the end of everything."""
WAYS = ("own", "own", "own", "page", "latest", "beginning")


class Place(NamedTuple):
    """An execution, and a number in it."""

    execution_id: str
    seq: int


def place_of(envelope: Envelope) -> Place:
    return Place(envelope["execution_id"], envelope["seq"])


class Source(ABC):
    """A session that can be followed, and read page by page."""

    @abstractmethod
    def connect(self, after: Place | None) -> AbstractAsyncContextManager[Next]: ...

    @abstractmethod
    async def page(self) -> list[Envelope]: ...


class FeedSource(Source):
    """A feed in this process."""

    def __init__(self, feed: EventFeed, agent_id: str = "a") -> None:
        self._feed, self._agent_id = feed, agent_id

    @asynccontextmanager
    async def connect(self, after: Place | None) -> AsyncGenerator[Next, None]:
        cursor = await self._feed.cursor(self._agent_id, after and f"{after.execution_id}:{after.seq}")
        async with aclosing(self._feed.follow(self._agent_id, cursor)) as following:
            waiting: list[Envelope] = []

            async def following_one() -> Envelope:
                while not waiting:
                    waiting.extend([read(item.body) for item in await anext(following)])
                return waiting.pop(0)

            yield following_one

    async def page(self) -> list[Envelope]:
        return [read(item.body) for item in (await self._feed.page(self._agent_id, limit=10_000)).items]


class HttpSource(Source):
    """A server, followed over server-sent events or WebSockets."""

    def __init__(self, staged: Stage, way: str) -> None:
        self._staged, self._way = staged, way

    @asynccontextmanager
    async def connect(self, after: Place | None) -> AsyncGenerator[Next, None]:
        text = after and f"{after.execution_id}:{after.seq}"
        async with getattr(self._staged.to, self._way)(self._staged.url, after=text) as client:

            async def of_events(client: EventClient = client) -> Envelope:
                event = await client.next()
                assert event is not None, "the stream has ended"
                return read(event.data)

            async def of_socket(client: SocketClient = client) -> Envelope:
                return await client.next()

            yield of_events if self._way == "events" else of_socket

    async def page(self) -> list[Envelope]:
        return await self._staged.to.page(self._staged.url)


class Connection(NamedTuple):
    """What one connection got after its cursor."""

    after: Place | None
    heard: list[Envelope]

    def problem(self, recorded: Sequence[Place]) -> str | None:
        """Return what is wrong with it, given all places of the journal."""
        start = 0 if self.after is None else recorded.index(self.after) + 1
        found = [place_of(each) for each in self.heard if each["event"] in NUMBERED]
        if found != list(recorded[start : start + len(found)]):
            return f"after {self.after}: {found} instead of {recorded[start : start + len(found)]}"
        last, index = self.after, -1
        for each in self.heard:
            if each["event"] in NUMBERED:
                last = place_of(each)
            elif place_of(each) != last:
                return f"text of {place_of(each)} came after {last}"
            elif each["data"]["chunk_index"] <= index:
                return f"text {each['data']['chunk_index']} came after text {index}"
            else:
                index = each["data"]["chunk_index"]
        return None


class Follower:
    """A client that connects and leaves at random until it has the last envelope."""

    def __init__(self, source: Source, random: Random) -> None:
        self._source, self._random = source, random
        self.connections: list[Connection] = []

    async def run(self) -> None:
        place = None
        while True:
            place = await self._arrive(self._random.choice(WAYS), place)
            async with self._source.connect(place) as following:
                connection = Connection(place, [])
                self.connections.append(connection)
                for _ in range(self._random.randrange(1, 12)):
                    heard = await following()
                    connection.heard.append(heard)
                    place = place_of(heard)
                    if place.execution_id == LAST:
                        return
            await breathe(self._random)

    async def _arrive(self, way: str, own: Place | None) -> Place | None:
        if way == "own":
            return own
        if way == "beginning":
            return None
        page = await self._source.page()
        if not page or place_of(page[-1]).execution_id == LAST:
            return own
        if way == "latest":
            await breathe(self._random)
        return place_of(page[-1])


async def breathe(random: Random) -> None:
    """Let the others have some turns, sometimes a lot."""
    for _ in range(random.choice((0, 0, 1, 2, 5, 30))):
        await asyncio.sleep(0)


async def write(recorder: Recorder, random: Random, runs: int) -> None:
    """Record runs with steps and streaming text, and a last one."""
    for number in range(runs):
        execution = f"e{number}"
        await recorder.record("begin", execution=execution)
        for _ in range(random.randrange(1, 8)):
            for _ in range(random.randrange(0, 5)):
                await recorder.record("chunk")
                await breathe(random)
            await recorder.record("step", execution=execution)
            await breathe(random)
        await recorder.record("end", execution=execution)
    await recorder.record("begin", execution=LAST)


async def problems_of(source: Source, writing: Awaitable[None], random: Random, followers: int) -> list[str]:
    """Return what followers of a session got wrong while it was written to."""
    all_of_them = [Follower(source, Random(random.random())) for _ in range(followers)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for each in all_of_them:
            group.create_task(each.run())
        await writing
    recorded = [place_of(each) for each in await source.page() if each["event"] in NUMBERED]
    connections = [connection for each in all_of_them for connection in each.connections]
    assert len(connections) >= followers
    found = [connection.problem(recorded) for connection in connections]
    return [f"{len(found)} connections"] + [each for each in found if each] if any(found) else []
