"""What a session is, in a few lines."""

from __future__ import annotations

import json

from whyloop.cli.demo_parts.words import brief
from whyloop.cli.session_parts.ages import age, seconds_since, span
from whyloop.stores.records import Summary
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import counted

_WAITS = (AgentStatus.PAUSED, AgentStatus.STOPPED, AgentStatus.FAILED)
WIDTH = 9


def heading(state: AgentState, summary: Summary) -> list[str]:
    """Its id, how it stands, and its clocks."""
    entries = {
        "session": brief(state.agent_id),
        "status": _status(state, summary),
        "steps": _steps(state),
        "clocks": _clocks(state),
        "child of": brief(state.parent_agent_id) if state.parent_agent_id else "",
        "metadata": brief(json.dumps(state.metadata, ensure_ascii=False), 300) if state.metadata else "",
    }
    return [f"{label:<{WIDTH}}  {words}" for label, words in entries.items() if words]


def _status(state: AgentState, summary: Summary) -> str:
    reason = f" ({state.stop_reason})" if state.stop_reason not in (None, "completed") else ""
    runner = f", run by {brief(summary.runner)}" if summary.runner else ""
    return f"{state.status}{reason}{runner}, {age(state.state_info.updated_at)} ago"


def _steps(state: AgentState) -> str:
    tokens = f", {counted(state.usage.total, 'token')}" if state.usage.total else ""
    return f"{state.step_count}{tokens}"


def _clocks(state: AgentState) -> str:
    execution = state.execution
    waiting = execution.waiting_seconds
    if state.status in _WAITS and execution.updated_at is not None:
        waiting += seconds_since(execution.updated_at)  # It waits at this moment, and nobody has counted it.
    clocks = {
        "active": span(execution.active_seconds),
        "waiting": span(waiting),
        "backoff": span(execution.backoff_seconds),
        "age": age(state.state_info.started_at),
    }
    return " · ".join(f"{name} {words}" for name, words in clocks.items())
