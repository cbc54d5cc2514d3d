"""Transports for envelopes: the protocol, the adapter that feeds them, several at once, and queues."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from whyloop.errors import ConfigurationError
from whyloop.events import AgentEvent
from whyloop.logger import Logger
from whyloop.wire.envelope import BroadcastConfig, envelope

_log = Logger()

Envelope = Mapping[str, Any]
AnyQueue = asyncio.Queue[Any] | queue.Queue[Any]

CHUNK = "agent.stream.chunk"
DEFAULT_CAPACITY = 1000


@runtime_checkable
class CanBroadcastAgentEvents(Protocol):
    """A transport: takes envelopes and returns at once, whether they arrive or not."""

    def broadcast(self, event: Envelope) -> None:
        """Take one envelope.

        Args:
            event: The envelope.
        """

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Take several envelopes.

        Args:
            events: The envelopes, in order.
        """


class AgentEventEnvelopeAdapter:
    """An event handler that turns events into envelopes and gives them to a transport.

    It keeps nothing: the number of an envelope is that of its event, so any number of adapters, in any
    process, send the same. The events of agents inside another agent's tool are sent only with `nested`:
    they belong to a session of their own, and the tool call around them is sent anyway.

    Args:
        transport: The transport that gets the envelopes.
        session_id: The id of the session on the wire. Default: the `agent_id` of each event.
        nested: True to send the events of agents inside tools too. Default: False.
        config: What envelopes contain. Default: `BroadcastConfig.standard()`.
    """

    def __init__(
        self,
        transport: CanBroadcastAgentEvents,
        config: BroadcastConfig | None = None,
        *,
        session_id: str | None = None,
        nested: bool = False,
    ) -> None:
        self._transport = transport
        self._config = config or BroadcastConfig.standard()
        self._session_id = session_id
        self._nested = nested

    def __call__(self, event: AgentEvent) -> None:
        """Send an event; pass the adapter to an agent as its `event_handler`, or to `subscribe`."""
        written = self.envelope(event)
        if written is not None:
            self._transport.broadcast(written)

    def envelope(self, event: AgentEvent) -> dict[str, Any] | None:
        """Return the envelope of an event; None if it is not sent."""
        if event.parent_agent_id is not None and not self._nested:
            return None
        return envelope(event, self._config, self._session_id)


class FanOut:
    """A transport that gives each envelope to several others.

    One that fails is reported to the log, and the others get theirs.

    Args:
        *transports: The transports, in order.
    """

    def __init__(self, *transports: CanBroadcastAgentEvents) -> None:
        self._transports = transports

    def broadcast(self, event: Envelope) -> None:
        """Give one envelope to each transport."""
        self.broadcast_batch((event,))

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Give envelopes to each transport."""
        for transport in self._transports:
            try:
                transport.broadcast_batch(events)
            except Exception:
                _log.exception("a transport failed: %r", transport)


class QueueBroadcaster:
    """A transport that puts envelopes into a queue of yours and never waits for it.

    The queue holds as many as its `maxsize` and `capacity` allow. A full queue takes no more chunks; any
    other envelope replaces the oldest one. Use an `asyncio.Queue` on its own event loop only.

    Args:
        queue: An `asyncio.Queue` or a `queue.Queue`.
        capacity: The number of envelopes that it may hold. Default: the queue's `maxsize`, else 1000.
    """

    def __init__(self, queue: AnyQueue, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ConfigurationError(f"invalid capacity {capacity}: use a number from 1 on")
        self._queue = queue
        largest = queue.maxsize if queue.maxsize > 0 else capacity or DEFAULT_CAPACITY
        self._capacity = min(capacity or largest, largest)
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()

    @property
    def dropped(self) -> Mapping[str, int]:
        """The number of envelopes of each event that found no room."""
        return dict(self._dropped)

    def broadcast(self, event: Envelope) -> None:
        """Put one envelope into the queue."""
        with self._lock:
            is_full = self._queue.qsize() >= self._capacity
            if is_full and event.get("event") == CHUNK:
                self._drop(event)
                return
            oldest = self._take_oldest() if is_full else None
            try:
                self._queue.put_nowait(event)
            except (asyncio.QueueFull, queue.Full):  # Other code fills the queue as well.
                self._drop(event)
            if oldest is not None:
                self._drop(oldest)
                self._queue.task_done()  # Only now: the queue must not seem to be done in between.

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Put envelopes into the queue, one after the other."""
        for event in events:
            self.broadcast(event)

    def _take_oldest(self) -> Envelope | None:
        with suppress(asyncio.QueueEmpty, queue.Empty):  # A reader in another thread was faster.
            oldest: Envelope = self._queue.get_nowait()
            return oldest
        return None

    def _drop(self, event: Envelope) -> None:
        self._dropped[str(event.get("event", ""))] += 1
