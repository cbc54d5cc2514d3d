"""A followed session: its latest envelopes, and the text that streams between them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import chain
from typing import Any, NamedTuple
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


Rendered = tuple[int, Sequence[FeedItem]]
"""The version after an entry, and its envelopes."""


class Position(NamedTuple):
    """A place in a session: after the entry of a version, and after some pieces of the text that follows."""

    version: int
    pieces: int = 0


class Channel:
    """The latest envelopes of one session, for its followers in this process.

    Each has its position, and a follower gets what comes after its own: it may have read more of the journal
    than the channel has, or less. The channel reads on when a follower waits for it, so that those who can
    keep up read nothing twice, and those who do not read cost nothing.
    """

    def __init__(
        self, reading: Reading, recent: int, pump: Callable[[Channel], Coroutine[Any, Any, None]]
    ) -> None:
        self.reading = reading
        self.followers = 0
        self.has_ended = False
        self.error: Exception | None = None
        self.wanted = asyncio.Event()
        """Set while a follower waits."""
        self._changed = asyncio.Event()
        self.recent = recent
        self._latest: deque[tuple[Position, FeedItem]] = deque()
        self._text: deque[tuple[Position, FeedItem]] = deque(maxlen=4 * recent)
        self._pieces = 0
        self._forgotten = Position(reading.version)
        self._pump = asyncio.create_task(pump(self), name="whyloop feed")
        self._dropping: asyncio.Task[None] | None = None

    def is_of(self, identity: str | None) -> bool:
        """Return whether it can still be followed, and has this identity, if one is given."""
        return not self.has_ended and identity in (None, self.reading.summary.identity)

    def add(self, reading: Reading, entries: Sequence[Rendered], text: Sequence[FeedItem]) -> None:
        """Add the entries up to a reading, and then the text that has streamed in since."""
        if entries:
            self._latest.extend(self._text)
            self._text.clear()
            self._pieces = 0
            for version, items in entries:
                self._latest.extend([(Position(version), item) for item in items])
            while len(self._latest) > self.recent:
                self._forgotten, _ = self._latest.popleft()
        self.reading = reading
        for item in text:
            self._pieces += 1
            self._text.append((Position(reading.version, self._pieces), item))
        if entries or text:
            self._wake()

    def since(self, position: Position) -> tuple[list[FeedItem], Position] | None:
        """Return what comes after a position, and the position after it; None if some of it is forgotten."""
        if position < self._forgotten:
            return None
        found: list[FeedItem] = []
        last = position
        for at, item in chain(reversed(self._text), reversed(self._latest)):
            if at <= position:
                break
            last = max(last, at)
            found.append(item)
        found.reverse()
        return found, last

    async def wait(self) -> None:
        """Wait until there is more to send."""
        changed = self._changed
        self.wanted.set()
        await changed.wait()

    def linger(self, seconds: float, drop: Callable[[Channel], Awaitable[None]]) -> None:
        """Drop this channel some seconds after its last follower has left."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            self._dropping = None
            await drop(self)

        if self._dropping is None:
            self._dropping = asyncio.create_task(wait(), name="whyloop feed")

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
        self.wanted.clear()
        self._changed.set()
        self._changed = asyncio.Event()


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


def merge_arrivals(
    entries: Sequence[Rendered], chunks: Sequence[FeedItem], current: Cursor | None
) -> tuple[list[Rendered], list[FeedItem]]:
    """Return the entries with the text of the steps that they close, and the text of the open step.

    A chunk comes right before the number that follows its own. One that another process sent for a step that
    was closed by an earlier entry is late and omitted, because its text is already recorded.
    """
    waiting: dict[Cursor, list[FeedItem]] = {}
    for chunk in chunks:
        waiting.setdefault(chunk.cursor, []).append(chunk)
    found: list[Rendered] = []
    for version, items in entries:
        together: list[FeedItem] = []
        for item in items:
            if item.is_numbered:
                together += waiting.pop(Cursor(item.execution_id, item.seq - 1), ())
            together.append(item)
        found.append((version, together))
    return found, waiting.get(current, []) if current is not None else []
