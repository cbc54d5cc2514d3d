"""How envelopes come to the store and to those who follow, session by session."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import msgspec
from msgspec.structs import replace

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.channel import Channel
from whyloop.errors import SessionNotFoundError, StoreUnavailableError
from whyloop.stores.records import Told
from whyloop.stores.store import EVENTS, Store

CHUNK, STATUS = "agent.stream.chunk", "agent.status"
END_OF_STEP = "agent.step.completed"
# Of sessions that nobody follows, so many are remembered with what their model says at the moment.
_MOST = 1000
# After this the store is asked again that could not be.
_PAUSE_SECONDS = 1.0

# Each with whether it is kept.
_AllTold = Sequence[tuple[Told, bool]]


class Channels:
    """The channels of a log: one for each session that is told of or followed, on each event loop."""

    def __init__(self, store: Store, recent: int) -> None:
        self._store = store
        self._recent = recent
        self._channels: dict[tuple[asyncio.AbstractEventLoop, str], Channel] = {}
        self._in_doubt: set[str] = set()  # The sessions of which the store may have what it was given last.
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._channels)

    def close(self) -> None:
        """Nothing more comes; those who follow hear what is there."""
        self._is_closed = True
        for (loop, _), channel in list(self._channels.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(channel.end)
        self._channels.clear()

    @asynccontextmanager
    async def followed(self, agent_id: str) -> AsyncIterator[Channel]:
        """The channel of a session; for as long as there is anybody here, the store is listened to."""
        async with self._used(agent_id, must_be_same=True) as channel:
            channel.followers += 1
            if channel.feeder is None:
                channel.feeder = asyncio.create_task(self._feed(channel), name="whyloop event log")
            try:
                yield channel
            finally:
                channel.followers -= 1
                if not channel.followers:
                    channel.feeder.cancel()
                    channel.feeder = None

    async def is_same(self, channel: Channel) -> bool:
        """Whether it is still of the session that has this id: that may have been deleted and made anew."""
        position = channel.position
        try:
            if channel.started_at != await self._started_at(channel.agent_id):
                return False
            return await self._store.last_position(channel.agent_id) >= position
        except SessionNotFoundError:
            return False

    async def keep(self, agent_id: str, envelopes: Sequence[Envelope]) -> None:
        """Keep what was told of a session, all but chunks, and pass it on."""
        told = [
            (Told(each["execution_id"], each["seq"], _text(each)), each["event"] != CHUNK)
            for each in envelopes
        ]
        is_kept = any(is_kept for _, is_kept in told)
        async with self._used(agent_id) as channel:
            # It is passed on to nobody who has come for another session of this id.
            if not is_kept or not channel.followers or await self.is_same(channel):
                await self._pass_on(channel, told, envelopes[-1])
                return
            self._end(channel, SessionNotFoundError(agent_id))
        await self.keep(agent_id, envelopes)

    async def _pass_on(self, channel: Channel, told: _AllTold, latest: Envelope) -> None:
        agent_id = channel.agent_id
        try:
            async with channel.lock:
                if agent_id in self._in_doubt:
                    told = await self._not_there(channel, told)
                position, kept = channel.position, [each for each, is_kept in told if is_kept]
                if kept:
                    self._in_doubt.add(agent_id)
                    position = await self._store.add_events(agent_id, kept) - len(kept)
                    if position < channel.position:  # Another session has the id by now.
                        channel.forget()
                    await self._catch_up(channel, position)
                self._in_doubt.discard(agent_id)
                for each, is_kept in told:
                    position += is_kept
                    channel.add(Told(each.execution_id, each.seq, each.body, position), is_kept)
            channel.is_told_here = latest["event"] != STATUS or latest["data"].get("status") == "in_progress"
        except (StoreUnavailableError, asyncio.CancelledError):
            raise
        except BaseException:  # There is nothing that another attempt could do.
            channel.is_told_here = False
            self._in_doubt.discard(agent_id)
            raise
        finally:
            channel.tell()
            # Chunks are of use for little longer than their step; what was kept is in the store.
            if not channel.followers and agent_id in self._in_doubt:
                channel.forget()
            elif not channel.followers and latest["event"] == END_OF_STEP:
                channel.end_step()

    async def _not_there(self, channel: Channel, told: _AllTold) -> _AllTold:
        """What comes after the last that the store has from attempts that seemed to fail."""
        places = {each: place for place, (each, _) in enumerate(told, 1)}
        arrived = 0
        for last in {each.execution_id: each for each, is_kept in told if is_kept}.values():
            there = await self._store.last_event(
                channel.agent_id, execution_id=last.execution_id, up_to=last.seq
            )
            if there is not None:
                arrived = max(arrived, places.get(replace(there, position=0), 0))
        await self._catch_up(channel)
        return told[arrived:]

    async def _feed(self, channel: Channel) -> None:
        """Pass on what other processes tell."""
        while not channel.has_ended:
            try:
                await self._store.wait_for_events(channel.agent_id, after=channel.position)
                if not await self.is_same(channel):
                    raise SessionNotFoundError(channel.agent_id)
                async with channel.lock:
                    await self._catch_up(channel)
            except StoreUnavailableError:
                await asyncio.sleep(_PAUSE_SECONDS)
            except Exception as error:
                self._end(channel, error)

    async def _catch_up(self, channel: Channel, up_to: int | None = None) -> None:
        """Pass on what somebody else has kept; by who holds the lock of the channel."""
        try:
            while up_to is None or channel.position < up_to:
                limit = EVENTS if up_to is None else min(EVENTS, up_to - channel.position)
                kept = await self._store.events(channel.agent_id, after=channel.position, limit=limit)
                for told in kept:
                    channel.add(told, True)
                if not kept:
                    return
        finally:  # Whatever came so far has come.
            channel.tell()

    # Which there are

    @asynccontextmanager
    async def _used(self, agent_id: str, *, must_be_same: bool = False) -> AsyncIterator[Channel]:
        """The channel of a session, which is there for as long as somebody uses it."""
        key = (asyncio.get_running_loop(), agent_id)
        channel = self._channels.get(key)
        if channel is not None and must_be_same and not await self.is_same(channel):
            self._end(channel, SessionNotFoundError(agent_id))
        if key not in self._channels:
            made = await self._made(agent_id)
            self._channels.setdefault(key, made)
        channel = self._channels[key]
        channel.users += 1
        try:
            yield channel
        finally:
            channel.users -= 1
            if not channel.users and not channel.is_told_here:
                self._forget(channel)
            self._make_room()

    async def _made(self, agent_id: str) -> Channel:
        started_at = await self._started_at(agent_id)
        last = await self._store.last_event(agent_id)
        channel = Channel(agent_id, started_at, 0 if last is None else last.position, self._recent)
        if self._is_closed:
            channel.end()
        return channel

    async def _started_at(self, agent_id: str) -> datetime:
        return (await self._store.read(agent_id, after=sys.maxsize)).summary.started_at

    def _end(self, channel: Channel, why: Exception) -> None:
        self._forget(channel)
        channel.end(why)

    def _forget(self, channel: Channel) -> None:
        key = (asyncio.get_running_loop(), channel.agent_id)
        if self._channels.get(key) is channel:
            del self._channels[key]

    def _make_room(self) -> None:
        if len(self._channels) > _MOST:
            for key, channel in list(self._channels.items())[:-_MOST]:
                if not channel.users:
                    self._channels.pop(key, None)


def _text(envelope: Envelope) -> str:
    return msgspec.json.encode(envelope).decode()
