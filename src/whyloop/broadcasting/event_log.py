"""What is told of sessions, kept in their store: replayed for who missed it, and followed as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.channel import Seen
from whyloop.broadcasting.channels import Channels
from whyloop.broadcasting.delivery import Delivery
from whyloop.broadcasting.places import LATEST, place_of, read_place
from whyloop.broadcasting.words import words_of
from whyloop.errors import BroadcastError, SessionNotFoundError, StoreUnavailableError
from whyloop.stores.records import Told
from whyloop.stores.store import EVENTS, Store

# As many as a store has connections for, and some left for those who run.
_SESSIONS_AT_ONCE = 5


class EventLog:
    """A transport that keeps envelopes in the store of their sessions, all but stream chunks.

    What is kept can be read by any process with the same store, after whatever a client has heard last:
    see `page`, and `follow` for what comes after that. Envelopes are kept before they are passed on to
    those who follow. Chunks are told, and kept by nobody: who follows on the event loop that sends them
    gets them, and `recent` envelopes of each session are remembered for those who come late.

    It sends in the background as every `Delivery` does. Use it with `async with`, or `close` it.
    """

    def __init__(self, store: Store, *, capacity: int = 1000, recent: int = 500) -> None:
        self.store = store
        # For minutes: a database that is restarted or moved should cost nobody what was told meanwhile.
        self._delivery = Delivery(self._keep, capacity=capacity, batch=EVENTS, retries=20)
        self._channels = Channels(store, recent)

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
        self._channels.close()

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
        async with self._channels.followed(agent_id) as channel:
            while True:
                news = channel.after(seen)
                while news is None:
                    missed = (
                        channel.start - seen.position
                    )  # And no more: what is here is here with its chunks.
                    kept = await self.store.events(agent_id, after=seen.position, limit=min(EVENTS, missed))
                    if not kept or not await self._channels.is_same(channel):  # Another has the id by now.
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
        if await self.store.last_event(agent_id, execution_id=execution_id) is None:
            return 0
        position = 0
        while kept := await self.store.events(agent_id, after=position):
            for told in kept:
                if told.execution_id == execution_id:
                    return told.position - 1
            position = kept[-1].position
        return 0

    # How it is kept

    async def _keep(self, envelopes: Sequence[Envelope]) -> None:
        """Each session by itself, since order matters within one only."""
        left: dict[str, list[Envelope]] = {}
        for envelope in envelopes:
            left.setdefault(str(envelope["session_id"]), []).append(envelope)
        try:
            if self.store.inline or len(left) == 1:
                for session_id in list(left):
                    await self._keep_of(session_id, left)
            else:
                at_once = asyncio.Semaphore(_SESSIONS_AT_ONCE)
                await _all(self._keep_of(session_id, left, at_once) for session_id in left)
        except (StoreUnavailableError, asyncio.CancelledError) as error:
            unsent = [each for some in left.values() for each in some]
            raise BroadcastError(words_of(error) or "keeping was cancelled", unsent=unsent) from error

    async def _keep_of(
        self, session_id: str, left: dict[str, list[Envelope]], at_once: asyncio.Semaphore | None = None
    ) -> None:
        async with at_once or nullcontext():
            try:
                await self._channels.keep(session_id, left[session_id])
            except StoreUnavailableError:
                raise
            except Exception as error:  # What is wrong with one session is no harm to the others.
                self._delivery.give_up_on(left[session_id], words_of(error))
            del left[session_id]


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of these at once to their ends, and raise what went wrong first."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if outcome is not None:
            raise outcome


def _seen(told: Told) -> Seen:
    return Seen(told.position, told.execution_id, told.seq)
