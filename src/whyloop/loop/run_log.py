"""What a run writes to the standard logger `whyloop.runs`: how it ended, and the errors of its tools."""

from __future__ import annotations

import logging
import traceback

from whyloop.values.state import AgentState
from whyloop.values.text import clean, shortened

_log = logging.getLogger("whyloop.runs")


def log_end(state: AgentState) -> None:
    """Write one line with the rule that ended or paused the run, and its reason."""
    outcome = state.last_continuation_outcome
    if outcome is None or not _log.isEnabledFor(logging.INFO):
        return
    stop_reason = f" ({outcome.stop_reason})" if outcome.stop_reason else ""
    _log.info(
        "Agent [%s] step %d: %s%s by %s: %s",
        shortened(state.agent_id[:8]),
        state.execution.step_count,
        state.status,
        stop_reason,
        shortened(outcome.resolved_by),
        shortened(outcome.reason, 1000),
    )


def log_tool_error(tool: str, error: BaseException) -> None:
    """Write the traceback of what a tool raised. It shows lines of code, and no values."""
    trace = clean("".join(traceback.format_exception(error)).rstrip())
    _log.error("Tool %s failed\n%s", shortened(tool), trace)
