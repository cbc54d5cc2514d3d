"""One stream for a whole page: the list of sessions as it changes, and the envelopes of several sessions."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from functools import lru_cache

import msgspec
from msgspec import Struct
from starlette.responses import Response
from starlette.websockets import WebSocket

from whyloop.broadcasting.feed import FeedItem
from whyloop.errors import ConfigurationError, SessionNotFoundError, StoreError, WhyloopError
from whyloop.logger import Logger
from whyloop.server.access import Access
from whyloop.server.inputs import LiveQuery
from whyloop.server.requests import BadRequestError, problem_of
from whyloop.server.streams import RETRY, EventStream, Write, in_pieces, send_over, together
from whyloop.server.views import state_view, summaries_view
from whyloop.stores.reading import read_end, release
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.redaction import Redaction
from whyloop.values.state import AgentStatus

POLL_SECONDS = 0.5
# Sessions have times from the clocks of their runners, which may be late by this much.
LATE = timedelta(seconds=10)
PAGE, MOST_PAGES = 200, 5
# The number of sessions whose last change is remembered, for slow clients.
MOST_CHANGED = 1000
# A list changes with the status of a session. Up to this many running ones are read for their steps.
MOST_RUNNING, MOST_READ, NOT_READ = 200, 20, -1
# The polls between two searches for deletions in other processes: 1.2 ms for 1,200 sessions (SQLite).
POLLS_PER_SEARCH = 2

_log = Logger()


class LiveEvent(Struct, frozen=True):
    """An event of the stream: its name, and its data as JSON."""

    name: str
    data: str

    def frame(self) -> bytes:
        """Return it as a server-sent event; JSON has no line breaks in it."""
        return f"event: {self.name}\ndata: {self.data}\n\n".encode()

    def message(self) -> str:
        """Return it as a message of a WebSocket."""
        return f'{{"event":"{self.name}","data":{self.data}}}'


Send = Callable[[Iterable[LiveEvent]], Awaitable[None]]
Following = AsyncGenerator[Sequence[FeedItem], None]


class LiveStream:
    """The stream of one client.

    Each of its sessions is followed from its own cursor. One that cannot be followed, or is deleted, ends
    with an event `ended`, and the others continue. A client that is slow delays only itself.
    """

    def __init__(
        self,
        changes: SessionChanges,
        query: LiveQuery,
        access: Access,
        follow: Callable[[str, str], Awaitable[Following]],
        redaction: Redaction | None,
    ) -> None:
        if query.after and len(query.after) != len(query.session):
            raise BadRequestError(
                f"{len(query.session)} sessions and {len(query.after)} cursors were given: give one `after` "
                "for each `session`, empty for the first envelope"
            )
        if not query.with_list and not query.session:
            raise BadRequestError("nothing to follow: give list=true, or a session")
        if len(set(query.session)) < len(query.session):
            raise BadRequestError("a session was given twice: give each once")
        self._changes, self._access = changes, access
        self._open, self._redaction = follow, redaction
        self._with_list = query.with_list
        self._followed = dict(zip(query.session, query.after or [""] * len(query.session), strict=True))
        self.size = len(self._followed) + query.with_list
        """How many streams it counts as."""

    def response(self) -> Response:
        """Return it as server-sent events."""

        async def pump(write: Write) -> None:
            async def send(events: Iterable[LiveEvent]) -> None:
                for piece in in_pieces(event.frame() for event in events):
                    await write(piece)

            await write(RETRY)
            await self._pump(send)

        return EventStream(pump)

    async def serve(self, websocket: WebSocket) -> None:
        """Send it over a WebSocket, an event in each message."""

        async def send(events: Iterable[LiveEvent]) -> None:
            for event in events:
                await websocket.send_text(event.message())

        await send_over(websocket, self._pump(send))

    async def _pump(self, write: Send) -> None:
        """Pass on events until the server closes."""
        writing = asyncio.Lock()

        async def send(events: Iterable[LiveEvent]) -> None:
            async with writing:
                await write(events)

        works = [self._follow(agent_id, after, send) for agent_id, after in self._followed.items()]
        if self._with_list:
            works.append(self._send_list(send))
        with suppress(StoreError):
            works.append(self._changes.wait_closed())
            await together(*works, until=asyncio.FIRST_EXCEPTION)

    async def _send_list(self, send: Send) -> None:
        async with aclosing(self._changes.follow(self._access)) as changes:
            async for data in changes:
                await send([LiveEvent("list", data)])

    async def _follow(self, agent_id: str, after: str, send: Send) -> None:
        try:
            async with aclosing(await self._open(agent_id, after)) as following:
                async for items in following:
                    await send(_envelope_event(agent_id, item) for item in items)
        except (SessionNotFoundError, ConfigurationError) as error:
            _, problem = problem_of(error, self._redaction)
            ended = {"session": agent_id, "error": problem}
            await send([LiveEvent("ended", msgspec.json.encode(ended).decode())])


# Many clients follow the same sessions.
@lru_cache(maxsize=500)
def _envelope_event(agent_id: str, item: FeedItem) -> LiveEvent:
    data = {"session": agent_id, "cursor": str(item.cursor), "envelope": msgspec.Raw(item.body.encode())}
    return LiveEvent("envelope", msgspec.json.encode(data).decode())


# The list


class _Change(Struct, frozen=True):
    """The last change of a session: how it is listed now, as JSON; None if it was deleted."""

    number: int
    summary: Summary
    body: bytes | None


class SessionChanges:
    """The changes of the list of sessions, for any number of clients.

    While a client listens, one task polls the store for changes. A client that is too slow for the remembered
    changes is disconnected, and reads the list again when it reconnects.
    """

    def __init__(self, store: Store, redaction: Redaction | None) -> None:
        self._store = store
        self._redaction = redaction
        self._changes: OrderedDict[str, _Change] = OrderedDict()
        self._deleted: dict[str, Summary] = {}
        self._running: dict[str, int] = {}
        self._newest: dict[str, Summary] = {}
        self._count = self._forgotten = 0
        self._listeners = 0
        self._polls = 0
        self._asked_at: datetime | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    async def follow(self, access: Access) -> AsyncGenerator[str, None]:
        """Yield the changes of a client's sessions, each as the data of an event.

        The first one is empty: every change from then on follows, so this is the moment to read the list.
        """
        self._listeners += 1
        try:
            if self._task is None or self._task.done():
                self._asked_at = self._store.now()
                self._task = asyncio.create_task(self._poll(), name="whyloop list")
            position = self._count
            yield _list_data([], [])
            while not self._closed.is_set():
                changed = self._changed
                if position < self._forgotten:
                    raise StoreError("the client is too slow for the changes of the list: connect again")
                news = [change for change in self._since(position) if _may_see(access, change.summary)]
                position = self._count
                if news:
                    gone = [change.summary.agent_id for change in news if change.body is None]
                    yield _list_data([change.body for change in news if change.body is not None], gone)
                else:
                    await changed.wait()
        finally:
            self._listeners -= 1

    def delete(self, summary: Summary) -> None:
        """Notify clients that this process deleted a session."""
        if self._listeners:
            self._deleted[summary.agent_id] = summary

    async def wait_closed(self) -> None:
        """Return when the server closes."""
        await self._closed.wait()

    async def close(self) -> None:
        """End all streams."""
        self._closed.set()
        self._wake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _since(self, position: int) -> list[_Change]:
        found = []
        for change in reversed(self._changes.values()):
            if change.number <= position:
                break
            found.append(change)
        return found

    # Asking the store

    async def _poll(self) -> None:
        is_failing, is_first = False, True
        while self._listeners:
            try:
                if is_first:
                    await self._begin()
                    is_first = False
                await self._look()
                is_failing = False
            except Exception as error:
                if not is_failing:
                    known = isinstance(error, WhyloopError)
                    _log.warning("the list cannot be read: %s", error, exc_info=None if known else error)
                is_failing = True
            await asyncio.sleep(POLL_SECONDS)
        self._changes.clear()
        self._running.clear()
        self._newest.clear()

    async def _begin(self) -> None:
        """Find the running sessions and the first page of a list, to notice deletions."""
        page = await self._store.sessions(status=AgentStatus.IN_PROGRESS, limit=MOST_RUNNING)
        self._running = dict.fromkeys([summary.agent_id for summary in page.sessions], NOT_READ)
        page = await self._store.sessions(limit=PAGE)
        self._newest = {summary.agent_id: summary for summary in page.sessions}

    async def _look(self) -> None:
        before = self._count
        asked_at, since = self._store.now(), (self._asked_at or self._store.now()) - LATE
        cursor = None
        for _ in range(MOST_PAGES):
            page = await self._store.sessions(updated_after=since, limit=PAGE, after=cursor)
            await self._add([summary for summary in page.sessions if self._is_new(summary)])
            cursor = page.next
            if cursor is None:
                break
        await self._look_at_running()
        self._polls += 1
        if self._polls % POLLS_PER_SEARCH == 0:
            await self._compare_versions()
        deleted, self._deleted = self._deleted, {}
        for summary in deleted.values():
            self._put(summary, None)
        self._asked_at = asked_at
        if self._count > before:
            self._wake()

    def _is_new(self, summary: Summary) -> bool:
        known = self._changes.get(summary.agent_id)
        return known is None or known.body is None or _mark(known.summary) != _mark(summary)

    async def _add(self, summaries: Sequence[Summary]) -> None:
        for summary, shown in zip(summaries, await summaries_view(summaries, self._redaction), strict=True):
            agent_id = summary.agent_id
            is_running = summary.status is AgentStatus.IN_PROGRESS
            if not is_running:
                self._running.pop(agent_id, None)
            elif agent_id in self._running and agent_id in self._changes:
                continue  # It is read for its steps.
            elif len(self._running) < MOST_RUNNING:
                self._running.setdefault(agent_id, NOT_READ)
            self._put(summary, msgspec.json.encode(shown))

    async def _look_at_running(self) -> None:
        """Update running sessions with the steps since they were listed."""
        versions = await self._store.versions(list(self._running)) if self._running else {}
        changed = [
            agent_id
            for agent_id, version in self._running.items()
            if agent_id not in versions or versions[agent_id][1] != version
        ]
        for agent_id in changed[:MOST_READ]:
            try:
                reading = await read_end(self._store, agent_id)
            except SessionNotFoundError:
                del self._running[agent_id]
                continue
            shown = state_view(reading, self._redaction).body.session
            summary = msgspec.structs.replace(reading.summary, version=reading.version)
            self._put(summary, msgspec.json.encode(shown))
            self._running.pop(agent_id)
            if reading.state.status is AgentStatus.IN_PROGRESS:  # At the end, so that all of them get a turn.
                self._running[agent_id] = reading.version
            release(reading.state)

    async def _compare_versions(self) -> None:
        """Find sessions that were deleted, and those of which only the metadata changed."""
        changed = {key: change.summary for key, change in self._changes.items() if change.body is not None}
        known = self._newest | changed
        versions = await self._store.versions(list(known)) if known else {}
        for agent_id, summary in known.items():
            if agent_id not in versions or versions[agent_id][0] != summary.identity:
                self._put(summary, None)
                self._newest.pop(agent_id, None)
        stale = [
            agent_id
            for agent_id, summary in known.items()
            if agent_id in versions
            and versions[agent_id] != (summary.identity, summary.version)
            and agent_id not in self._running
        ]
        for agent_id in stale[:MOST_READ]:
            with suppress(SessionNotFoundError):
                self._newest[agent_id] = (await self._store.read(agent_id, limit=0)).summary
                await self._add([self._newest[agent_id]])

    def _put(self, summary: Summary, body: bytes | None) -> None:
        self._count += 1
        self._changes[summary.agent_id] = _Change(self._count, summary, body)
        self._changes.move_to_end(summary.agent_id)
        if len(self._changes) > MOST_CHANGED:
            _, oldest = self._changes.popitem(last=False)
            self._forgotten = oldest.number

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _mark(summary: Summary) -> tuple[str, int, str | None]:
    return summary.identity, summary.version, summary.runner


def _may_see(access: Access, summary: Summary) -> bool:
    try:
        access.check(summary)
    except SessionNotFoundError:
        return False
    return True


def _list_data(bodies: Sequence[bytes], deleted: Sequence[str]) -> str:
    return f'{{"sessions":[{b",".join(bodies).decode()}],"deleted":{msgspec.json.encode(deleted).decode()}}}'
