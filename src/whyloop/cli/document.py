"""Runs and sessions for machines."""

from __future__ import annotations

from typing import Any

import msgspec

from whyloop.stores.records import Summary
from whyloop.values.state import AgentState
from whyloop.wire.document import document


def session_document(state: AgentState, summary: Summary) -> dict[str, Any]:
    """A session of a store: what was done and decided, and all that was said."""
    return {
        **document(state),
        "parent_agent_id": state.parent_agent_id,
        "metadata": state.metadata,
        "runner": summary.runner,
        "version": summary.version,
        "messages": msgspec.to_builtins(list(state.messages)),
    }


def summary_document(summary: Summary) -> dict[str, Any]:
    """A session as a list has it, every field of it."""
    return {name: msgspec.to_builtins(getattr(summary, name)) for name in summary.__struct_fields__}
