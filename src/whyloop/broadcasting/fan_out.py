"""Several transports in the place of one."""

from __future__ import annotations

from collections.abc import Sequence

from whyloop.broadcasting.adapter import CanBroadcastAgentEvents, Envelope
from whyloop.logger import Logger

_log = Logger()


class FanOut:
    """A transport that gives each envelope to several others.

    One that fails is reported to the log, and the others get theirs.
    """

    def __init__(self, *transports: CanBroadcastAgentEvents) -> None:
        self._transports = transports

    def broadcast(self, event: Envelope) -> None:
        """Hand one envelope to each."""
        self.broadcast_batch((event,))

    def broadcast_batch(self, events: Sequence[Envelope]) -> None:
        """Hand envelopes to each."""
        for transport in self._transports:
            try:
                transport.broadcast_batch(events)
            except Exception:
                _log.exception("a transport failed: %r", transport)
