"""Slim snapshots: what of a state goes over the wire or into a list of sessions, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from whyloop.values.state import AgentState
from whyloop.wire.config import SlimSerializationConfig
from whyloop.wire.slim_read import read_slim
from whyloop.wire.slim_write import SlimWriter


@runtime_checkable
class CanSerializeAgentState(Protocol):
    """Turns a state into plain data, and that data into a state that can be run."""

    def serialize(self, state: AgentState) -> dict[str, Any]: ...

    def deserialize(self, data: Mapping[str, Any]) -> AgentState: ...


class SlimAgentStateSerializer:
    """Writes as much of a state as its configuration allows, without secrets, and counts what it cut.

    The document is described in `whyloop.wire.slim_schema`.
    """

    def __init__(self, config: SlimSerializationConfig | None = None) -> None:
        self.config = config or SlimSerializationConfig()

    def serialize(self, state: AgentState) -> dict[str, Any]:
        """Return the slim snapshot of a state."""
        return SlimWriter(state, self.config).document()

    def deserialize(self, data: Mapping[str, Any]) -> AgentState:
        """The state in a slim snapshot, ready for the next query or to be resumed."""
        return read_slim(data)
