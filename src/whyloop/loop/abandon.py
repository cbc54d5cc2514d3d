"""A step that was left open, and that nobody will go on with."""

from __future__ import annotations

from datetime import datetime

from whyloop.loop.draft import Draft
from whyloop.loop.kit import Kit
from whyloop.rules.continuation.stopped import stopped
from whyloop.values.state import AgentState
from whyloop.values.tool_result import ToolResult

ANOTHER_QUERY = "Another question was asked before this one was at its end"
UNKNOWN = "It is not known whether this was carried out: it was cut off before it could tell"


def abandoned(kit: Kit, state: AgentState, now: datetime) -> AgentState:
    """The state with its open step ended as it is; what waited for a person was not run."""
    draft = Draft(kit, state, now)
    draft.interrupted = ANOTHER_QUERY
    for index, call in enumerate(draft.step.calls):
        if call.started and not call.is_done:
            draft.ran[index] = ToolResult(UNKNOWN, UNKNOWN), 0.0
    step, messages = draft.finished(state, now, 0.0)
    return stopped(state.with_step(step, messages), ANOTHER_QUERY, now)
