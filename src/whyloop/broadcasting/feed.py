"""The feed of stored sessions: their envelopes, as pages and as live streams.

Numbered envelopes are read from the journal, whichever process appended them, so none can be missing, late or
numbered twice. Streaming text is not recorded: it only reaches current followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from whyloop.broadcasting.channel import (
    Channel,
    Cursor,
    FeedItem,
    Position,
    Rendered,
    live_items,
    merge_arrivals,
)
from whyloop.errors import ConfigurationError, SessionNotFoundError, SnapshotError
from whyloop.events import AgentEvent
from whyloop.stores.live import Watcher, live
from whyloop.stores.reading import (
    OneSession,
    Reading,
    ReadsJournals,
    find_execution,
    first_reading,
    portions_after,
    read_end,
    with_entries,
    without_history,
)
from whyloop.stores.store import Store
from whyloop.stores.turns import Reason, reading_turns
from whyloop.values.execution import Execution
from whyloop.values.state import AgentState
from whyloop.values.text import clean, shortened
from whyloop.values.transitions import Forked, Queried
from whyloop.wire.envelope import NUMBERED, BroadcastConfig, envelope
from whyloop.wire.journal import JournalEntry
from whyloop.wire.view import INCONSISTENT, events_of

__all__ = ["Cursor", "EventFeed", "FeedItem", "FeedPage", "cursor_of", "read_cursor"]

LATEST = "latest"
PAGE = 100
RECENT = 500
LINGER_SECONDS = 5.0
# What waits for a slow client is a batch, of so many envelopes or characters.
_BATCH, _CHARACTERS = 100, 250_000
# A page reads one envelope too many, to know whether more follow. Small batches keep that cheap.
_PAGE_BATCH = 10
_GREATEST_SEQ = 2**63 - 1
_encode = msgspec.json.Encoder().encode


class FeedPage(Struct, frozen=True):
    """Some envelopes, the cursor after the last of them, and whether there are more."""

    items: tuple[FeedItem, ...]
    cursor: Cursor | None
    has_more: bool


def read_cursor(text: str) -> tuple[str | None, int]:
    """Return the execution and number of a cursor.

    A number alone belongs to the latest execution.
    """
    execution_id, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()) or len(number) > 19 or int(number) > _GREATEST_SEQ:
        raise ConfigurationError(
            f"invalid cursor {shortened(text, 60)!r}: use '<seq>', '<execution_id>:<seq>' or '{LATEST}'"
        )
    return clean(unquote(execution_id)) if execution_id else None, int(number)


def cursor_of(execution: Execution) -> Cursor | None:
    """Return the cursor of an execution's last numbered envelope, or None."""
    return Cursor(execution.id, execution.last_seq) if execution.id else None


class EventFeed:
    """Pages and streams of the envelopes of a store's sessions, for any number of clients.

    Followers of one session share what is read and rendered. A follower that is too slow for the remembered
    envelopes reads the journal again, so no follower has a queue. A new follower also gets the text that has
    streamed in since the last entry. It is remembered for `linger_seconds` after the last follower has left,
    so that a client whose connection broke gets it when it returns. With `keep_events`, each recorded
    envelope comes with its event, whose result is whole, for a reader in this process.

    Use it with `async with`, or `close` it.

    Args:
        recent: The number of envelopes of a session that are remembered for its followers.
        linger_seconds: How long streaming text is remembered without a follower.
        keep_events: True to get each recorded envelope with its event. Default: False.
    """

    def __init__(
        self,
        store: Store,
        config: BroadcastConfig | None = None,
        *,
        recent: int = RECENT,
        linger_seconds: float = LINGER_SECONDS,
        keep_events: bool = False,
    ) -> None:
        self.store = store
        """The store."""
        self.config = config or BroadcastConfig.standard()
        """The choice of envelopes to send, and of their fields."""
        self._recent = recent
        self._linger_seconds = linger_seconds
        self._keep_events = keep_events
        self._channels: dict[tuple[asyncio.AbstractEventLoop, str], Channel] = {}
        self._is_closed = False

    async def latest(self, agent_id: str, *, identity: str | None = None) -> Cursor | None:
        """Return the cursor of a session's last numbered envelope, or None.

        Args:
            identity: The identity of the session. Default: any.
        """
        return cursor_of((await read_end(self._session(identity), agent_id)).state.execution)

    async def cursor(self, agent_id: str, after: str | None, *, identity: str | None = None) -> Cursor | None:
        """Return the cursor that a client sent; None means before the first envelope.

        A number that the latest execution has not reached becomes its last one.

        Args:
            after: The text that the client sent: "<seq>", "<execution_id>:<seq>", "latest", or None.
            identity: The identity of the session. Default: any.
        """
        if after is None or not after:
            return None
        if after == LATEST:
            return await self.latest(agent_id, identity=identity)
        execution_id, seq = read_cursor(after)
        latest = await self.latest(agent_id, identity=identity)
        if latest is None or execution_id not in (None, latest.execution_id):
            return None if execution_id is None else Cursor(execution_id, seq)
        return Cursor(latest.execution_id, min(seq, latest.seq))

    async def page(
        self, agent_id: str, after: Cursor | None = None, limit: int = PAGE, *, identity: str | None = None
    ) -> FeedPage:
        """Return the envelopes after a cursor, or all of them, oldest first.

        Unnumbered envelopes do not count: they are on the page of the numbered one that they follow, and are
        not returned again after its cursor.

        Args:
            after: The cursor. Default: before the first envelope.
            limit: The maximum number of numbered envelopes.
            identity: The identity of the session. Default: any.
        """
        found: list[FeedItem] = []
        numbered, has_more = 0, False
        async with aclosing(self.recorded(agent_id, after, None, _PAGE_BATCH, identity=identity)) as replay:
            async for items in replay:
                for item in items:
                    if not item.is_numbered and item.cursor == after:
                        continue
                    numbered += item.is_numbered
                    has_more = numbered > limit
                    if has_more:
                        break
                    found.append(item)
                if has_more:
                    break
        return FeedPage(tuple(found), found[-1].cursor if found else after, has_more)

    async def follow(
        self, agent_id: str, after: Cursor | None = None, *, identity: str | None = None
    ) -> AsyncGenerator[Sequence[FeedItem], None]:
        """Yield the envelopes after a cursor, or all, and then new ones as they arrive.

        The iterator ends when the feed is closed, and raises a `SessionNotFoundError` when the session is
        deleted.

        Args:
            after: The cursor. Default: before the first envelope.
            identity: The identity of the session. Default: any.
        """
        async with self._channel(agent_id, identity) as channel:
            identity, position = channel.reading.summary.identity, Position(0)
            while True:
                news = channel.since(position)
                if news is None:  # It has just come, or is too slow for the remembered envelopes.
                    replay = self._replay(agent_id, after, position.version, identity=identity)
                    async with aclosing(replay) as batches:
                        async for version, items in batches:
                            position = Position(version)
                            if items:
                                after = items[-1].cursor
                                yield items
                    continue
                items, position = news
                if items:
                    after = items[-1].cursor
                    yield items
                elif channel.has_ended:
                    if channel.error is not None:
                        raise channel.error
                    return
                else:
                    await channel.wait()

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        here = asyncio.get_running_loop()
        for (loop, _), channel in list(self._channels.items()):
            channel.end(None)
            if loop is here and not channel.followers:
                await self._drop(channel)

    async def __aenter__(self) -> EventFeed:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Reading the journal

    def _session(self, identity: str | None) -> ReadsJournals:
        return self.store if identity is None else OneSession(self.store, identity)

    async def recorded(
        self,
        agent_id: str,
        after: Cursor | None,
        until: int | None = None,
        batch: int = _BATCH,
        *,
        identity: str | None = None,
    ) -> AsyncGenerator[Sequence[FeedItem], None]:
        """Yield the recorded envelopes after a cursor, up to a version, in batches.

        Args:
            after: The cursor; None is before the first envelope.
            until: The version of the session. Default: the latest.
            batch: The number of envelopes in a batch.
            identity: The identity of the session. Default: any.
        """
        replay = self._replay(agent_id, after, 0, until, batch, identity=identity)
        async with aclosing(replay) as batches:
            async for _, items in batches:
                if items:
                    yield items

    async def _replay(
        self,
        agent_id: str,
        after: Cursor | None,
        seen: int,
        until: int | None = None,
        batch: int = _BATCH,
        *,
        identity: str | None = None,
    ) -> AsyncGenerator[Rendered, None]:
        """Yield the recorded envelopes after a cursor, in batches, each with the version after it.

        The last batch may be empty. Entries up to the version `seen` are left out: a follower that has seen
        some and reads on here fell behind, and must not hold up the others.
        """
        reason: Reason = "late" if seen else "request"
        session = self._session(identity)
        if after is None:
            reading, has_passed = await first_reading(session, agent_id), True
        else:
            # If the session does not have the execution, everything is new.
            reading, is_found = await find_execution(session, agent_id, after.execution_id, after.seq)
            has_passed = not is_found
        found, size = list[FeedItem](), 0
        async with aclosing(self._read(reading, until, after, reason)) as entries:
            async for items, reading in entries:
                if reading.version > seen:
                    found += items if after is None else _after(items, after, has_passed)
                    size += sum([len(item.body) for item in items])
                has_passed = after is None or has_passed or reading.state.execution.id == after.execution_id
                if len(found) >= batch or size > _CHARACTERS:
                    yield reading.version, found
                    found, size = [], 0
        yield reading.version, found

    async def _read(
        self,
        reading: Reading,
        until: int | None = None,
        after: Cursor | None = None,
        reason: Reason = "request",
    ) -> AsyncGenerator[tuple[list[FeedItem], Reading], None]:
        """Yield the envelopes of each entry after a reading, with the reading after it.

        An entry whose envelopes all come before the cursor is not rendered.
        """
        turns = reading_turns(reason)
        async with aclosing(portions_after(self.store, reading, until, reason)) as portions:
            async for summary, entries in portions:
                for entry in entries:
                    state, version = reading.state, reading.version
                    if version and not (after is not None and _is_before(entry, state, after)):
                        items, state = self._render(state, entry, version)
                        reading = Reading(summary, state, version + 1)
                    else:
                        items, reading = [], with_entries(reading, summary, (entry,))
                    yield items, reading
                    await turns.take()
                reading = without_history(reading)

    def _render(
        self, state: AgentState, entry: JournalEntry, index: int
    ) -> tuple[list[FeedItem], AgentState]:
        """Return the envelopes of an entry, and the state after it."""
        if entry.seq != state.execution.last_seq + 1:
            raise SnapshotError(f"the entry starts at envelope {entry.seq}", f"$[{index}].seq")
        events: list[AgentEvent] = []
        try:
            for transition in entry.transitions:
                events += events_of(state, transition)
                state = transition.apply_to(state)
        except INCONSISTENT as error:
            problem = f"the entry does not follow from those before it: {error}"
            raise SnapshotError(problem, f"$[{index}]") from None
        items = []
        for event in events:
            written = envelope(event, self.config)
            if written is not None:
                body = _encode(written).decode()
                is_numbered, kept = written["event"] in NUMBERED, event if self._keep_events else None
                items.append(FeedItem(event.execution_id, event.seq, is_numbered, body, kept))
        return items, state

    # Following

    @asynccontextmanager
    async def _channel(self, agent_id: str, identity: str | None) -> AsyncIterator[Channel]:
        key = (asyncio.get_running_loop(), agent_id)
        channel = self._channels.get(key)
        if channel is None or not channel.is_of(identity):
            reading = await read_end(self._session(identity), agent_id)
            channel = self._channels.get(key)  # Another follower may have been faster.
            if channel is None or not channel.is_of(reading.summary.identity):
                channel = self._channels[key] = Channel(reading, self._recent, self._pump)
        channel.followers += 1
        if self._is_closed:
            channel.end(None)
        try:
            yield channel
        finally:
            channel.followers -= 1
            if not channel.followers:
                if channel.has_ended or not self._linger_seconds:
                    await self._drop(channel)
                else:
                    channel.linger(self._linger_seconds, self._drop)

    async def _drop(self, channel: Channel) -> None:
        """Forget a channel, unless a follower has returned to it."""
        if not channel.followers:
            key = (asyncio.get_running_loop(), channel.reading.summary.agent_id)
            if self._channels.get(key) is channel:
                del self._channels[key]
            await channel.close()

    async def _pump(self, channel: Channel) -> None:
        """Add new entries and streaming text of a session to its channel."""
        summary, version = channel.reading.summary, channel.reading.version
        try:
            here = live(self.store)
            with here.watching(summary.agent_id, summary.identity, version) as watcher:
                while not channel.has_ended:
                    await watcher.changed.wait()
                    await channel.wanted.wait()
                    watcher.changed.clear()
                    await self._read_news(channel, watcher)
        except Exception as error:
            channel.end(error)

    async def _read_news(self, channel: Channel, watcher: Watcher) -> None:
        chunks, watcher.chunks = watcher.chunks, []
        if watcher.is_gone:
            raise SessionNotFoundError(watcher.agent_id)
        entries: list[Rendered] = []
        reading, count = channel.reading, 0
        async with aclosing(self._read(reading, reason="news")) as read:
            async for items, reading in read:
                entries.append((reading.version, items))
                count += len(items)
                if count >= channel.recent // 2:  # The rest is read when a follower has this.
                    watcher.changed.set()
                    break
        watcher.version = reading.version
        with_text = self.config.include_stream_chunks
        arrived, held = live_items(chunks, with_text=with_text), list[FeedItem]()
        current = reading.state.execution
        if entries:
            # The text of a step is sent before its entry is appended, so all of it can be read now.
            await live(self.store).catch_up()
            known = {item.execution_id for _, items in entries for item in items} | {current.id}
            arrived += live_items(watcher.chunks, with_text=with_text)
            watcher.chunks = []
            held = [item for item in arrived if item.execution_id not in known]
        # Text that comes after an entry that was not read yet.
        held += [each for each in arrived if each.execution_id == current.id and each.seq > current.last_seq]
        watcher.chunks = [item.body for item in held] + watcher.chunks
        entries, text = merge_arrivals(entries, arrived, cursor_of(current))
        channel.add(without_history(reading), entries, text)


def _is_before(entry: JournalEntry, state: AgentState, cursor: Cursor) -> bool:
    """Return whether all envelopes of an entry come before a cursor."""
    if state.execution.id != cursor.execution_id or entry.seq >= cursor.seq:
        return False
    if any(isinstance(transition, Queried | Forked) for transition in entry.transitions):
        return False
    return entry.seq - 1 + sum([transition.envelope_count() for transition in entry.transitions]) < cursor.seq


def _after(items: Sequence[FeedItem], cursor: Cursor, has_passed: bool) -> list[FeedItem]:
    """Return the items after a cursor.

    `has_passed` is whether the execution of the cursor began before them.
    """
    kept = []
    for item in items:
        if item.execution_id == cursor.execution_id:
            has_passed = True
            if item.seq > cursor.seq or (item.seq == cursor.seq and not item.is_numbered):
                kept.append(item)
        elif has_passed:
            kept.append(item)
    return kept
