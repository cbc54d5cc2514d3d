"""From the events of an agent to envelopes on their way to a transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from whyloop.events import AgentEvent
from whyloop.wire.broadcast_config import BroadcastConfig
from whyloop.wire.envelope import envelope

Envelope = Mapping[str, Any]


@runtime_checkable
class CanBroadcastAgentEvents(Protocol):
    """A transport: takes envelopes and returns at once, whether they arrive or not."""

    def broadcast(self, event: Envelope) -> None: ...

    def broadcast_batch(self, events: Sequence[Envelope]) -> None: ...


class AgentEventEnvelopeAdapter:
    """An event handler that turns events into envelopes and gives them to a transport.

    It keeps nothing: the number of an envelope is that of its event, so any number of adapters, in any
    process, send the same. The events of agents inside another agent's tool are sent only with `nested`:
    they belong to a session of their own, and the tool call around them is sent anyway.
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
