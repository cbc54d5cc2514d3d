"""Envelopes in a queue, for whoever takes them on from there."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from whyloop.broadcasting.adapter import Envelope
from whyloop.broadcasting.buffer import ENDING, ENDINGS_TO_CAPACITY, worth
from whyloop.errors import ConfigurationError

AnyQueue = asyncio.Queue[Any] | queue.Queue[Any]

DEFAULT_CAPACITY = 1000


class QueueBroadcaster:
    """A transport that puts envelopes into a queue of yours and never waits for it.

    The queue holds as many as its `maxsize` says, or `capacity` if it has none. When it is full, room
    is made for several at once: the oldest chunks go first, then the oldest others. What says how a run
    ended stays, up to ten times the capacity or as many as a `maxsize` leaves room for. An
    `asyncio.Queue` is to be used on its own event loop only.
    """

    def __init__(self, queue: AnyQueue, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ConfigurationError(f"the capacity of a queue is at least 1, not {capacity}")
        self._queue = queue
        largest = queue.maxsize if queue.maxsize > 0 else capacity or DEFAULT_CAPACITY
        self._capacity = min(capacity or largest, largest)
        self._after_making_room = self._capacity - self._capacity // 10
        self._most = queue.maxsize if queue.maxsize > 0 else self._capacity * ENDINGS_TO_CAPACITY
        self._only_endings = False
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many envelopes of each event had to go."""
        return dict(self._dropped)

    def broadcast(self, event: Envelope) -> None:
        """Put one envelope into the queue."""
        with self._lock:
            size = self._queue.qsize()
            if size < (self._after_making_room if self._only_endings else self._capacity):
                self._only_endings = False
                self._put(event)
            elif not self._only_endings:
                self._make_room(event)
            elif worth(event) < ENDING:
                self._drop(event)
            elif size < self._most:
                self._put(event)
            else:
                self._replace_the_oldest(event)

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Put envelopes into the queue, one after the other."""
        for event in events:
            self.broadcast(event)

    def _make_room(self, event: Envelope) -> None:
        """Put everything into the queue anew, without what goes first."""
        holding = self._queue
        if isinstance(holding, queue.Queue):
            with holding.mutex:  # A reader in another thread sees it before or after, not in between.
                kept = self._kept([*holding.queue, event])
                holding.unfinished_tasks += len(kept) - len(holding.queue)
                holding.queue.clear()
                holding.queue.extend(kept)
                holding.not_empty.notify()
                holding.not_full.notify()
        else:
            waiting = [holding.get_nowait() for _ in range(holding.qsize())]
            for each in self._kept([*waiting, event]):
                holding.put_nowait(each)
            # Only now, so that whoever waits for the queue to be done is not told so too early.
            for _ in waiting:
                holding.task_done()

    def _kept(self, waiting: list[Envelope]) -> list[Envelope]:
        """What stays of all that waits; the rest is counted."""
        by_worth = sorted(range(len(waiting)), key=lambda index: worth(waiting[index]))
        surplus = by_worth[: len(waiting) - self._after_making_room]
        gone = {index for index in surplus if worth(waiting[index]) < ENDING}
        kept = [each for index, each in enumerate(waiting) if index not in gone]
        too_many = max(0, len(kept) - self._most)
        for each in [*(waiting[index] for index in gone), *kept[:too_many]]:
            self._drop(each)
        self._only_endings = all(worth(each) == ENDING for each in kept)
        return kept[too_many:]

    def _replace_the_oldest(self, event: Envelope) -> None:
        try:
            oldest = self._queue.get_nowait()
        except (asyncio.QueueEmpty, queue.Empty):
            self._put(event)
            return
        self._drop(oldest)
        self._put(event)
        self._queue.task_done()

    def _put(self, event: Envelope) -> None:
        try:
            self._queue.put_nowait(event)
        except (asyncio.QueueFull, queue.Full):
            self._drop(event)

    def _drop(self, event: Envelope) -> None:
        self._dropped[str(event.get("event", ""))] += 1
