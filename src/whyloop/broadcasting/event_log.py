"""What is told of sessions, kept in their store: replayed for who missed it, and followed as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from types import TracebackType
from typing import Self

import msgspec
from msgspec.structs import replace

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.channel import Channel, Seen
from whyloop.broadcasting.delivery import Delivery
from whyloop.broadcasting.places import LATEST, place_of, read_place
from whyloop.broadcasting.words import words_of
from whyloop.errors import BroadcastError, SessionNotFoundError, StoreUnavailableError
from whyloop.stores.records import Told
from whyloop.stores.store import EVENTS, Store

CHUNK, STATUS = "agent.stream.chunk", "agent.status"
END_OF_STEP = ("agent.step.completed", "agent.continuation")
# Of sessions that nobody follows, so many are remembered with what their model says at the moment.
_MOST_CHANNELS = 1000
# After this the store is asked again that could not be.
_PAUSE_SECONDS = 1.0


class EventLog:
    """A transport that keeps envelopes in the store of their sessions, all but stream chunks.

    What is kept can be read by any process with the same store, after whatever a client has heard last:
    see `page`, and `follow` for what comes after that. Envelopes are kept before they are passed on to
    those who follow. Chunks are told, and kept by nobody: who follows in the process that runs the
    session gets them, and `recent` envelopes of each session are remembered for those who come late.

    It sends in the background as every `Delivery` does. Use it with `async with`, or `close` it.
    """

    def __init__(self, store: Store, *, capacity: int = 1000, recent: int = 500) -> None:
        self.store = store
        self._recent = recent
        # For minutes: a database that is restarted or moved should cost nobody what was told meanwhile.
        self._delivery = Delivery(self._keep, capacity=capacity, batch=EVENTS, retries=20)
        self._channels: dict[tuple[asyncio.AbstractEventLoop, str], Channel] = {}
        self._is_closed = False

    # As a transport

    def broadcast(self, event: Envelope) -> None:
        """Take an envelope; it is kept when there is time."""
        self._delivery.broadcast(event)

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Take envelopes; they are kept when there is time."""
        self._delivery.broadcast_batch(events)

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many envelopes of each event were neither kept nor passed on."""
        return self._delivery.dropped

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Keep what is left, for so many seconds at most; those who follow come to an end."""
        await self._delivery.close(timeout)
        self._is_closed = True
        for (loop, _), channel in list(self._channels.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(channel.end)
        self._channels.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For those who watch

    async def latest(self, agent_id: str) -> str | None:
        """The place of what was kept last; None if nothing was."""
        last = await self.store.last_event(agent_id)
        return None if last is None else place_of(last)

    async def page(self, agent_id: str, after: str | None = None, limit: int = EVENTS) -> tuple[Told, ...]:
        """What was kept after a place, or from the first on, the oldest first."""
        seen = await self.seen(agent_id, after)
        return await self.store.events(agent_id, after=seen.position, limit=limit)

    async def follow(
        self, agent_id: str, after: str | Seen | None = None
    ) -> AsyncGenerator[Sequence[Told], None]:
        """What was kept after a place, or from the first on, and then what is told, as it comes.

        It comes in order, and whatever is missing in between were chunks. It ends when the log is closed,
        and with a `SessionNotFoundError` when the session is deleted.
        """
        seen = after if isinstance(after, Seen) else await self.seen(agent_id, after)
        channel = await self._channel(agent_id)
        with self._following(agent_id, channel):
            await self._must_be_of(agent_id, channel)
            while True:
                news = channel.after(seen)
                while news is None:
                    kept = await self.store.events(agent_id, after=seen.position)
                    if not kept:  # Another session has the id by now.
                        raise SessionNotFoundError(agent_id)
                    yield kept
                    seen = _seen(kept[-1])
                    news = channel.after(seen)
                while news is not None:
                    count, told = news
                    if told:
                        yield told
                        seen = _seen(told[-1])
                    await channel.changed(count)
                    if channel.is_over(count):
                        if channel.why_ended is not None:
                            raise channel.why_ended
                        return
                    # The store may have shown it to this one before it came to the channel.
                    news = channel.since(count, seen)

    async def seen(self, agent_id: str, after: str | None) -> Seen:
        """How far a client has heard that shows this place."""
        if after is None or after == LATEST:
            last = None if after is None else await self.store.last_event(agent_id)
            return Seen(0) if last is None else _seen(last)
        execution_id, seq = read_place(after)
        if execution_id is None:
            last = await self.store.last_event(agent_id)
            execution_id = "" if last is None else last.execution_id
        last = await self.store.last_event(agent_id, execution_id=execution_id, up_to=seq)
        if last is not None:
            return Seen(last.position, execution_id, seq)
        return Seen(await self._before(agent_id, execution_id), execution_id, seq)

    async def _before(self, agent_id: str, execution_id: str) -> int:
        """The position before the first envelope of an execution; 0 if nothing of it was kept."""
        position = 0
        while kept := await self.store.events(agent_id, after=position):
            for told in kept:
                if told.execution_id == execution_id:
                    return told.position - 1
            position = kept[-1].position
        return 0

    # How it comes to them

    async def _keep(self, envelopes: Sequence[Envelope]) -> None:
        done = 0
        for session_id, some in groupby(envelopes, lambda envelope: str(envelope["session_id"])):
            told = list(some)
            try:
                await self._keep_of(session_id, told)
            except StoreUnavailableError as error:
                raise BroadcastError(str(error), sent=done) from error
            except Exception as error:  # What is wrong with one session is no harm to the others.
                self._delivery.give_up_on(told, words_of(error))
            done += len(told)

    async def _keep_of(self, session_id: str, envelopes: Sequence[Envelope]) -> None:
        told = [
            (Told(each["execution_id"], each["seq"], _text(each)), each["event"] != CHUNK)
            for each in envelopes
        ]
        kept = [each for each, is_kept in told if is_kept]
        channel = await self._channel(session_id)
        async with channel.lock:
            position = channel.position
            if kept:
                position = await self._added(session_id, channel, kept) - len(kept)
                if position < channel.position:  # It was there already, or another session has the id by now.
                    channel.forget()
                await self._catch_up(session_id, channel, position)
                channel.is_in_doubt = False
            for each, is_kept in told:
                position += is_kept
                channel.add(replace(each, position=position), is_kept)
        channel.tell()
        latest = envelopes[-1]
        channel.is_told_here = latest["event"] != STATUS or latest["data"].get("status") == "in_progress"
        if not channel.followers:
            self._let_go(session_id, channel, latest)

    async def _added(self, session_id: str, channel: Channel, kept: Sequence[Told]) -> int:
        """The position of the last one, which the store may have from an attempt that seemed to fail."""
        last = kept[-1]
        if channel.is_in_doubt:
            there = await self.store.last_event(session_id, execution_id=last.execution_id, up_to=last.seq)
            if there is not None and there.body == last.body:
                return there.position
        channel.is_in_doubt = True
        return await self.store.add_events(session_id, kept)

    async def _catch_up(self, agent_id: str, channel: Channel, up_to: int | None = None) -> None:
        """Pass on what somebody else has kept; by who holds the lock of the channel."""
        while up_to is None or channel.position < up_to:
            limit = EVENTS if up_to is None else min(EVENTS, up_to - channel.position)
            kept = await self.store.events(agent_id, after=channel.position, limit=limit)
            for told in kept:
                channel.add(told, True)
            if not kept:
                return

    async def _must_be_of(self, agent_id: str, channel: Channel) -> None:
        """What is remembered of a session that was deleted is nobody's to hear."""
        try:
            await self.store.has_events(agent_id, after=channel.position)
        except SessionNotFoundError:
            self._forget(agent_id, channel)
            raise

    async def _channel(self, agent_id: str) -> Channel:
        key = (asyncio.get_running_loop(), agent_id)
        if key not in self._channels:
            last = await self.store.last_event(agent_id)
            position = 0 if last is None else last.position
            channel = self._channels.setdefault(key, Channel(position, self._recent))
            if self._is_closed:
                channel.end()
        return self._channels[key]

    def _let_go(self, agent_id: str, channel: Channel, latest: Envelope) -> None:
        """Whoever comes finds in the store what was kept; chunks are of use until the end of their step."""
        if not channel.is_told_here:
            self._forget(agent_id, channel)
        elif latest["event"] in END_OF_STEP:
            channel.forget()
        if len(self._channels) > _MOST_CHANNELS:
            for key, other in list(self._channels.items())[:-_MOST_CHANNELS]:
                if not other.followers:
                    self._channels.pop(key, None)

    def _forget(self, agent_id: str, channel: Channel) -> None:
        key = (asyncio.get_running_loop(), agent_id)
        if self._channels.get(key) is channel:
            del self._channels[key]

    @contextmanager
    def _following(self, agent_id: str, channel: Channel) -> Iterator[None]:
        """Count somebody who follows; for as long as there is anybody, the store is listened to."""
        channel.followers += 1
        if channel.feeder is None:
            channel.feeder = asyncio.create_task(self._feed(agent_id, channel), name="whyloop event log")
        try:
            yield
        finally:
            channel.followers -= 1
            if not channel.followers:
                channel.feeder.cancel()
                channel.feeder = None
                if not channel.is_told_here:
                    self._forget(agent_id, channel)

    async def _feed(self, agent_id: str, channel: Channel) -> None:
        """Pass on what other processes tell."""
        while not channel.has_ended:
            try:
                await self.store.wait_for_events(agent_id, after=channel.position)
                async with channel.lock:
                    await self._catch_up(agent_id, channel)
                channel.tell()
            except StoreUnavailableError:
                await asyncio.sleep(_PAUSE_SECONDS)
            except Exception as error:
                self._forget(agent_id, channel)
                channel.end(error)


def _seen(told: Told) -> Seen:
    return Seen(told.position, told.execution_id, told.seq)


def _text(envelope: Envelope) -> str:
    return msgspec.json.encode(envelope).decode()
