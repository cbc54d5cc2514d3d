"""The envelopes of stored sessions: pages of them, and following them as they come.

Numbered envelopes are read from the journal, whichever process appended them, so none can be missing, late
or numbered twice. Streaming text is not recorded: it reaches those who follow at that moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from whyloop.errors import ConfigurationError, SessionNotFoundError
from whyloop.stores.live import Watcher, live
from whyloop.stores.reading import Reading, entries_after, read_end, start_reading
from whyloop.stores.store import Store
from whyloop.values.state import AgentState
from whyloop.values.text import clean, shortened
from whyloop.wire.broadcast_config import BroadcastConfig
from whyloop.wire.envelope import NUMBERED, envelope
from whyloop.wire.journal import JournalEntry
from whyloop.wire.view import read_back

LATEST = "latest"
PAGE = 100
RECENT = 1000
_GREATEST_SEQ = 2**63 - 1


class Cursor(Struct, frozen=True):
    """How far a client has come: the last numbered envelope that it received."""

    execution_id: str
    seq: int

    def __str__(self) -> str:
        return f"{quote(self.execution_id, safe='')}:{self.seq}"


class FeedItem(Struct, frozen=True):
    """An envelope as JSON, and where it stands: an unnumbered one after the numbered one of its `seq`."""

    execution_id: str
    seq: int
    is_numbered: bool
    body: str

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.execution_id, self.seq)


class FeedPage(Struct, frozen=True):
    """Some envelopes, the cursor after the last of them, and whether there are more."""

    items: tuple[FeedItem, ...]
    cursor: Cursor | None
    has_more: bool


def read_cursor(text: str) -> tuple[str | None, int]:
    """Return the execution and the number of a cursor; a number alone is of the latest execution."""
    execution_id, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()) or len(number) > 19 or int(number) > _GREATEST_SEQ:
        raise ConfigurationError(
            f"invalid cursor {shortened(text, 60)!r}: use '<seq>', '<execution_id>:<seq>' or '{LATEST}'"
        )
    return clean(unquote(execution_id)) if execution_id else None, int(number)


class EventFeed:
    """Pages and streams of the envelopes of a store's sessions, for any number of clients.

    Followers of one session share what is read and rendered. One that is too slow for what is remembered
    reads from the journal again, so nobody has a queue. Use it with `async with`, or `close` it.
    """

    def __init__(self, store: Store, config: BroadcastConfig | None = None, *, recent: int = RECENT) -> None:
        self.store = store
        self.config = config or BroadcastConfig.standard()
        self._recent = recent
        self._channels: dict[tuple[asyncio.AbstractEventLoop, str], _Channel] = {}
        self._is_closed = False

    async def latest(self, agent_id: str) -> Cursor:
        """Return the cursor of the last numbered envelope of a session."""
        state = (await read_end(self.store, agent_id)).state
        return Cursor(state.execution.id, state.execution.last_seq)

    async def cursor(self, agent_id: str, after: str | None) -> Cursor | None:
        """Return the cursor that a client shows; None before the first envelope of the session."""
        if after is None or not after:
            return None
        if after == LATEST:
            return await self.latest(agent_id)
        execution_id, seq = read_cursor(after)
        if execution_id is None:
            return Cursor((await self.latest(agent_id)).execution_id, seq)
        return Cursor(execution_id, seq)

    async def page(self, agent_id: str, after: Cursor | None = None, limit: int = PAGE) -> FeedPage:
        """Return the envelopes after a cursor, or from the first on, oldest first."""
        found: list[FeedItem] = []
        async with aclosing(self._replay(agent_id, after, None)) as replay:
            async for items in replay:
                found += items
                if len(found) > limit:
                    break
        page = tuple(found[:limit])
        cursor = page[-1].cursor if page else after
        return FeedPage(page, cursor, len(found) > limit)

    async def follow(
        self, agent_id: str, after: Cursor | None = None
    ) -> AsyncGenerator[Sequence[FeedItem], None]:
        """Yield the envelopes after a cursor, or from the first on, and then new ones as they come.

        It ends when the feed is closed, and with a `SessionNotFoundError` when the session is deleted.
        """
        async with self._channel(agent_id) as channel:
            index, version, cursor = channel.count, channel.reading.version, after
            replaying = True
            while True:
                if replaying:
                    async with aclosing(self._replay(agent_id, cursor, version)) as replay:
                        async for items in replay:
                            yield items
                            cursor = items[-1].cursor
                news = channel.since(index)
                replaying = news is None
                if news is None:  # Too slow for what is remembered.
                    index, version = channel.count, channel.reading.version
                elif news:
                    yield news
                    index, cursor = index + len(news), news[-1].cursor
                elif channel.has_ended:
                    if channel.error is not None:
                        raise channel.error
                    return
                else:
                    await channel.changed.wait()

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            channel.end(None)

    async def __aenter__(self) -> EventFeed:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Reading the journal

    async def _replay(
        self, agent_id: str, after: Cursor | None, until: int | None
    ) -> AsyncGenerator[list[FeedItem], None]:
        """Yield what is recorded after a cursor, up to a version."""
        if after is None:
            summary = (await self.store.read(agent_id, limit=0)).summary
            reading, has_passed = Reading(summary, AgentState(agent_id=agent_id), 0), True
        else:
            reading = await start_reading(
                self.store, agent_id, execution_id=after.execution_id, seq=after.seq
            )
            # Of an execution that the session does not have, everything is new.
            has_passed = reading.version == 0
        async with aclosing(entries_after(self.store, reading, until)) as entries:
            async for entry, before, _ in entries:
                items = list(self._render(before, entry))
                if after is not None:
                    items, has_passed = _after(items, after, has_passed)
                if items:
                    yield items

    def _render(self, before: Reading, entry: JournalEntry) -> Iterator[FeedItem]:
        for event in read_back(before.state, entry.transitions):
            told = envelope(event, self.config)
            if told is not None:
                body = msgspec.json.encode(told).decode()
                yield FeedItem(event.execution_id, event.seq, told["event"] in NUMBERED, body)

    # Following

    @asynccontextmanager
    async def _channel(self, agent_id: str) -> AsyncIterator[_Channel]:
        key = (asyncio.get_running_loop(), agent_id)
        channel = self._channels.get(key)
        if channel is None or channel.has_ended:
            reading = await read_end(self.store, agent_id)
            channel = self._channels.get(key)  # Another follower may have been faster.
            if channel is None or channel.has_ended:
                channel = self._channels[key] = _Channel(self, reading, self._recent)
        channel.followers += 1
        if self._is_closed:
            channel.end(None)
        try:
            yield channel
        finally:
            channel.followers -= 1
            if not channel.followers:
                if self._channels.get(key) is channel:
                    del self._channels[key]
                await channel.close()

    async def pump(self, channel: _Channel) -> None:
        """Add what is appended to a session to its channel, and the text that streams in."""
        agent_id = channel.reading.state.agent_id
        try:
            with live(self.store).watching(agent_id, channel.reading.version) as watcher:
                while not channel.has_ended:
                    await watcher.changed.wait()
                    watcher.changed.clear()
                    await self._read_news(channel, watcher)
        except Exception as error:
            channel.end(error)

    async def _read_news(self, channel: _Channel, watcher: Watcher) -> None:
        chunks, watcher.chunks = watcher.chunks, []
        if watcher.is_gone:
            raise SessionNotFoundError(watcher.agent_id)
        news: list[FeedItem] = []
        reading = channel.reading
        async for entry, before, after in entries_after(self.store, reading):
            news += self._render(before, entry)
            reading = Reading(before.summary, after, before.version + 1)
        channel.reading, watcher.version = reading, reading.version
        if chunks and self.config.include_stream_chunks:
            news = _merged(news, [_chunk_item(body) for body in chunks])
        channel.add(news)


class _Channel:
    """The latest envelopes of one session, for those who follow it in this process."""

    def __init__(self, feed: EventFeed, reading: Reading, recent: int) -> None:
        self.reading = reading
        self.count = 0
        self.followers = 0
        self.has_ended = False
        self.error: Exception | None = None
        self.changed = asyncio.Event()
        self._latest: deque[FeedItem] = deque(maxlen=recent)
        self._pump = asyncio.create_task(feed.pump(self), name="whyloop feed")

    def add(self, items: Sequence[FeedItem]) -> None:
        if items:
            self._latest.extend(items)
            self.count += len(items)
            self._wake()

    def since(self, index: int) -> list[FeedItem] | None:
        """Return what was added after the first `index` items; None if some of it is forgotten."""
        missing = self.count - index
        if missing > len(self._latest):
            return None
        return [self._latest[i] for i in range(len(self._latest) - missing, len(self._latest))]

    def end(self, error: Exception | None) -> None:
        if not self.has_ended:
            self.has_ended, self.error = True, error
        self._wake()

    async def close(self) -> None:
        self.end(None)
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _after(items: Sequence[FeedItem], cursor: Cursor, has_passed: bool) -> tuple[list[FeedItem], bool]:
    """Return what comes after a cursor, and whether its place has been passed."""
    kept = []
    for item in items:
        if item.execution_id == cursor.execution_id:
            has_passed = True
            if item.seq > cursor.seq or (item.seq == cursor.seq and not item.is_numbered):
                kept.append(item)
        elif has_passed:
            kept.append(item)
    return kept, has_passed


class _ChunkEnvelope(Struct):
    execution_id: str
    seq: int


_chunk_decoder = msgspec.json.Decoder(_ChunkEnvelope)


def _chunk_item(body: str) -> FeedItem:
    chunk = _chunk_decoder.decode(body)
    return FeedItem(chunk.execution_id, chunk.seq, False, body)


def _merged(recorded: Sequence[FeedItem], chunks: Sequence[FeedItem]) -> list[FeedItem]:
    """Return both in order: a chunk comes before the envelopes with a greater number."""
    merged, waiting = [], list(chunks)
    for item in recorded:
        if item.is_numbered:
            early = [c for c in waiting if c.execution_id == item.execution_id and c.seq < item.seq]
            merged += early
            waiting = [c for c in waiting if c not in early] if early else waiting
        merged.append(item)
    return merged + waiting
