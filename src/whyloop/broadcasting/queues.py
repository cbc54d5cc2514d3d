"""Envelopes in a queue, for whoever takes them on from there."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.buffer import Buffer
from whyloop.errors import ConfigurationError

AnyQueue = asyncio.Queue[Any] | queue.Queue[Any]

DEFAULT_CAPACITY = 1000


class QueueBroadcaster:
    """A transport that puts envelopes into a queue of yours and never waits for it.

    The queue holds as many as its `maxsize` says, or `capacity` if it has none. When it is full, room
    is made for several at once: the oldest chunks go first, then the oldest others. A status only goes
    where a `maxsize` leaves room for no more of them. An `asyncio.Queue` is to be used on its own
    event loop only.
    """

    def __init__(self, queue: AnyQueue, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ConfigurationError(f"the capacity of a queue is at least 1, not {capacity}")
        self._queue = queue
        largest = queue.maxsize if queue.maxsize > 0 else capacity or DEFAULT_CAPACITY
        self._capacity = min(capacity or largest, largest)
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many envelopes of each event had to go."""
        return dict(self._dropped)

    def broadcast(self, event: Envelope) -> None:
        """Put one envelope into the queue."""
        with self._lock:
            if self._queue.qsize() >= self._capacity:
                self._make_room(event)
            else:
                self._put(event)

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Put envelopes into the queue, one after the other."""
        for event in events:
            self.broadcast(event)

    def _make_room(self, event: Envelope) -> None:
        """Put everything into the queue anew, without what goes first.

        Taking all out is the only way to reach into a queue, so it is not done for each envelope.
        """
        waiting = [*self._taken(), event]
        kept = Buffer(max(1, self._capacity - self._capacity // 10))
        for each in waiting:
            gone = kept.add(each)
            if gone is not None:
                self._drop(gone)
        rest = [place.envelope for place in kept.take(len(kept))]
        too_many = max(0, len(rest) - self._queue.maxsize) if self._queue.maxsize > 0 else 0
        for each in rest[:too_many]:
            self._drop(each)
        for each in rest[too_many:]:
            self._put(each)
        # Only now, so that whoever waits for the queue to be done is not told so too early.
        for _ in waiting[:-1]:
            self._queue.task_done()

    def _taken(self) -> list[Envelope]:
        taken: list[Envelope] = []
        try:
            while True:
                taken.append(self._queue.get_nowait())
        except (asyncio.QueueEmpty, queue.Empty):
            return taken

    def _put(self, event: Envelope) -> None:
        try:
            self._queue.put_nowait(event)
        except (asyncio.QueueFull, queue.Full):
            self._drop(event)

    def _drop(self, event: Envelope) -> None:
        self._dropped[str(event.get("event", ""))] += 1
