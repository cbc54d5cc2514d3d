"""What waits to be sent, and what goes first when there is too much of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count, islice
from typing import NamedTuple

from whyloop.broadcasting.adapter import Envelope

# Endings are kept beyond the capacity, but whoever is never listened to must not fill the memory.
ENDINGS_TO_CAPACITY = 10

# What an envelope is worth: the least goes first.
CHUNK, OTHER, ENDING = range(3)


def worth(envelope: Envelope) -> int:
    """A chunk is worth the least; a status, or whatever has the reason of a stop in it, the most."""
    data = envelope.get("data")
    match envelope.get("event"):
        case "agent.stream.chunk":
            return CHUNK
        case "agent.status":
            return ENDING
        case "agent.continuation":
            return ENDING if _has_reason(data) else OTHER
        case "agent.step.completed":
            verdict = data.get("continuation") if isinstance(data, Mapping) else None
            return ENDING if _has_reason(verdict) else OTHER
    return OTHER


def _has_reason(verdict: object) -> bool:
    return isinstance(verdict, Mapping) and bool(verdict.get("stop_reason"))


class Waiting(NamedTuple):
    """An envelope with its place in the line."""

    place: int
    envelope: Envelope


class Buffer:
    """Envelopes in the order in which they came, at most so many.

    When it is full the oldest chunk goes first, then the oldest of the others. What says how a run
    ended stays, up to ten times the capacity. Envelopes are counted, not weighed: one is as large as
    the texts in it, which are the answers of the model and, where they are told, the arguments of tools.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._places = count()
        self._size = 0
        self._lines: tuple[deque[Waiting], ...] = (deque(), deque(), deque())

    def __len__(self) -> int:
        return self._size

    def add(self, envelope: Envelope) -> Envelope | None:
        """Keep an envelope; what had to go for it, if anything had to."""
        self._lines[worth(envelope)].append(Waiting(next(self._places), envelope))
        self._size += 1
        return self._too_much() if self._size > self._capacity else None

    def take(self, most: int) -> list[Waiting]:
        """The oldest envelopes, which are no longer here."""
        oldest = sorted(chain.from_iterable(islice(line, most) for line in self._lines))[:most]
        for line in self._lines:
            while line and oldest and line[0].place <= oldest[-1].place:
                line.popleft()
        self._size -= len(oldest)
        return oldest

    def give_back(self, taken: Iterable[Waiting]) -> Iterator[Envelope]:
        """Put what was taken back to its place; what had to go for it."""
        for waiting in sorted(taken, reverse=True, key=lambda waiting: waiting.place):
            self._lines[worth(waiting.envelope)].appendleft(waiting)
            self._size += 1
        while (gone := self._too_much()) is not None:
            yield gone

    def _too_much(self) -> Envelope | None:
        if self._size <= self._capacity:
            return None
        chunks, others, endings = self._lines
        line = chunks or others
        if not line and len(endings) > self._capacity * ENDINGS_TO_CAPACITY:
            line = endings
        if not line:
            return None
        self._size -= 1
        return line.popleft().envelope
