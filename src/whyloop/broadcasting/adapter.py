"""From the events of an agent to envelopes on their way to a transport."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from whyloop.events import AgentEvent
from whyloop.wire.broadcast_config import BroadcastConfig
from whyloop.wire.envelope import envelope

Envelope = Mapping[str, Any]

# How many executions are remembered, for those that are resumed: a number each.
_REMEMBERED = 10_000


@runtime_checkable
class CanBroadcastAgentEvents(Protocol):
    """Whatever takes envelopes to those who watch; it returns at once, whatever becomes of them."""

    def broadcast(self, event: Envelope) -> None: ...

    def broadcast_batch(self, events: Sequence[Envelope]) -> None: ...


class AgentEventEnvelopeAdapter:
    """An event handler that numbers what happens in each execution and hands it to a transport.

    Only what is told is numbered: whoever sees a gap has missed something. What agents do that work
    within another agent's tool is told only where `nested` says so: it belongs to no session that is
    stored, and the tool call around it is told anyway.
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
        self._last: OrderedDict[str, int] = OrderedDict()

    def __call__(self, event: AgentEvent) -> None:
        """Hear of an event; to be given to an agent as its `event_handler`, or to `subscribe`."""
        told = self.envelope(event)
        if told is not None:
            self._transport.broadcast(told)

    def envelope(self, event: AgentEvent) -> dict[str, Any] | None:
        """The envelope of the next event, numbered within its execution; None for one that is not told."""
        if event.parent_agent_id is not None and not self._nested:
            return None
        seq = self._last.get(event.execution_id, 0) + 1
        told = envelope(event, seq, self._config, self._session_id)
        if told is not None:
            self._last[event.execution_id] = seq
            self._last.move_to_end(event.execution_id)
            if len(self._last) > _REMEMBERED:
                self._last.popitem(last=False)
        return told

    def last(self, execution_id: str) -> int:
        """The number of the last envelope of an execution, as far as it was told here; 0 if it was not."""
        return self._last.get(execution_id, 0)

    def go_on_from(self, execution_id: str, seq: int) -> None:
        """Number an execution onwards that was told up to here elsewhere.

        For a process that resumes an execution which another one told of, where clients count on numbers
        without a break; a session that is given this adapter sees to it. Without it the execution is
        numbered from one again, which `whyloop.wire.ui` and `whyloop-ui` understand when it had paused or
        ended.
        """
        self._last[execution_id] = max(seq, self._last.get(execution_id, 0))
