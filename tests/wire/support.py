"""Helpers of the tests of slim snapshots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tests.support import session
from whyloop import AgentState, Message, SlimAgentStateSerializer, SlimSerializationConfig


def slim(state: AgentState, **options: Any) -> dict[str, Any]:
    return SlimAgentStateSerializer(SlimSerializationConfig(**options)).serialize(state)


def read(document: dict[str, Any]) -> AgentState:
    """The state in a document that went through JSON."""
    return SlimAgentStateSerializer().deserialize(json.loads(json.dumps(document, allow_nan=False)))


def saying(*messages: Message) -> AgentState:
    """A session in which exactly this was said."""
    return with_messages(session(), messages)


def with_messages(state: AgentState, messages: Sequence[Message]) -> AgentState:
    return replace(state, messages=type(state.messages)(messages))
