"""What waits to be sent, and what goes first when there is too much of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from whyloop.broadcasting.adapter import Envelope

# Statuses are kept beyond the capacity, but whoever is never listened to must not fill the memory.
STATUSES_TO_CAPACITY = 10


class Waiting(NamedTuple):
    """An envelope with its place in the line."""

    place: int
    envelope: Envelope


class Buffer:
    """Envelopes in the order in which they came, at most so many.

    When it is full the oldest chunk goes first, then the oldest of the others. A status stays, also
    beyond the capacity: it says how a run ended.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._places = count()
        self._chunks: deque[Waiting] = deque()
        self._others: deque[Waiting] = deque()
        self._statuses: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._chunks) + len(self._others) + len(self._statuses)

    def add(self, envelope: Envelope) -> Envelope | None:
        """Keep an envelope; what had to go for it, if anything had to."""
        self._line_of(envelope).append(Waiting(next(self._places), envelope))
        return self._too_much()

    def take(self, most: int) -> list[Waiting]:
        """The oldest envelopes, which are no longer here."""
        return [self._oldest() for _ in range(min(most, len(self)))]

    def give_back(self, taken: Iterable[Waiting]) -> Iterator[Envelope]:
        """Put what was taken back to its place; what had to go for it."""
        for waiting in sorted(taken, reverse=True, key=lambda waiting: waiting.place):
            self._line_of(waiting.envelope).appendleft(waiting)
        while (gone := self._too_much()) is not None:
            yield gone

    def _line_of(self, envelope: Envelope) -> deque[Waiting]:
        match envelope.get("event"):
            case "agent.status":
                return self._statuses
            case "agent.stream.chunk":
                return self._chunks
        return self._others

    def _oldest(self) -> Waiting:
        lines = (line for line in (self._chunks, self._others, self._statuses) if line)
        return min(lines, key=lambda line: line[0].place).popleft()

    def _too_much(self) -> Envelope | None:
        if len(self) <= self._capacity:
            return None
        if line := self._chunks or self._others:
            return line.popleft().envelope
        if len(self._statuses) > self._capacity * STATUSES_TO_CAPACITY:
            return self._statuses.popleft().envelope
        return None
