"""A followed session: its latest envelopes, and the text that streams between them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from whyloop.broadcasting.transports import CHUNK
from whyloop.events import AgentEvent
from whyloop.stores.reading import Reading


class Cursor(Struct, frozen=True):
    """The last numbered envelope that a client has received."""

    execution_id: str
    seq: int

    def __str__(self) -> str:
        return f"{quote(self.execution_id, safe='')}:{self.seq}"


class FeedItem(Struct, frozen=True):
    """An envelope as JSON, and its position: an unnumbered one comes after the numbered one of its `seq`."""

    execution_id: str
    seq: int
    is_numbered: bool
    body: str
    event: AgentEvent | None = None
    """The recorded event of the envelope, if the feed keeps events."""

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.execution_id, self.seq)


class Channel:
    """The latest envelopes of one session, for its followers in this process."""

    def __init__(
        self, reading: Reading, recent: int, pump: Callable[[Channel], Coroutine[Any, Any, None]]
    ) -> None:
        self.reading = reading
        self.count = 0
        self.followers = 0
        self.has_ended = False
        self.error: Exception | None = None
        self.changed = asyncio.Event()
        self._latest: deque[FeedItem] = deque(maxlen=recent)
        self._text: deque[FeedItem] = deque(maxlen=4 * recent)
        self._pump = asyncio.create_task(pump(self), name="whyloop feed")
        self._dropping: asyncio.Task[None] | None = None

    def is_of(self, identity: str | None) -> bool:
        """Return whether it can still be followed, and has this identity, if one is given."""
        return not self.has_ended and identity in (None, self.reading.summary.identity)

    @property
    def position(self) -> tuple[int, int, list[FeedItem]]:
        """The position of a new follower: items, entries, and text since the last entry."""
        return self.count, self.reading.version, list(self._text)

    def add(self, items: Sequence[FeedItem], text: Sequence[FeedItem]) -> None:
        """Add recorded items, and then the text that has streamed in since."""
        if items:
            self._text.clear()
        self._text.extend(text)
        if items or text:
            self._latest.extend(items)
            self._latest.extend(text)
            self.count += len(items) + len(text)
            self._wake()

    def linger(self, seconds: float, drop: Callable[[Channel], Awaitable[None]]) -> None:
        """Drop this channel some seconds after its last follower has left."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            self._dropping = None
            await drop(self)

        if self._dropping is None:
            self._dropping = asyncio.create_task(wait(), name="whyloop feed")

    def since(self, index: int) -> list[FeedItem] | None:
        """Return the items after the first `index`; None if some are no longer remembered."""
        missing, held = self.count - index, len(self._latest)
        return None if missing > held else list(islice(self._latest, held - missing, held))

    def end(self, error: Exception | None) -> None:
        if not self.has_ended:
            self.has_ended, self.error = True, error
        self._wake()

    async def close(self) -> None:
        self.end(None)
        if self._dropping is not None:
            self._dropping.cancel()
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class _LiveEnvelope(Struct):
    event: str
    execution_id: str
    seq: int


_live_decoder = msgspec.json.Decoder(_LiveEnvelope)


def live_items(bodies: Sequence[str], *, with_text: bool) -> list[FeedItem]:
    """Return the envelopes that are never recorded: step starts and streaming text."""
    found = [(_live_decoder.decode(body), body) for body in bodies]
    return [
        FeedItem(each.execution_id, each.seq, False, body)
        for each, body in found
        if with_text or each.event != CHUNK
    ]


def merged(
    recorded: Sequence[FeedItem], chunks: Sequence[FeedItem], last: Cursor | None, latest: str
) -> tuple[list[FeedItem], list[FeedItem]]:
    """Return both in order, and the chunks after the last entry.

    A chunk comes before greater numbers. A chunk that another process sent before `last` is late and omitted,
    because its text is already recorded.
    """
    executions = {item.execution_id for item in recorded} | {latest}
    waiting = [
        chunk for chunk in chunks if chunk.execution_id in executions and not (last and _is_late(chunk, last))
    ]
    found: list[FeedItem] = []
    for item in recorded:
        if item.is_numbered:
            early = [c for c in waiting if c.execution_id == item.execution_id and c.seq < item.seq]
            if early:
                found += early
                waiting = [chunk for chunk in waiting if chunk not in early]
        found.append(item)
    return found, waiting


def _is_late(chunk: FeedItem, last: Cursor) -> bool:
    return chunk.execution_id == last.execution_id and chunk.seq < last.seq
