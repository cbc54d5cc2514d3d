"""What a run writes to the standard logger `whyloop.runs`: how it ended, and the errors of its tools."""

from __future__ import annotations

import logging

from whyloop.logger import Logger
from whyloop.values.state import AgentState
from whyloop.values.step import error_text

_log = Logger("whyloop.runs")
# Without a handler Python would write errors to stderr; a program that wants them sets logging up.
_log.logger.addHandler(logging.NullHandler())


def log_end(state: AgentState) -> None:
    """Write one line with the rule that ended or paused the run, and its reason."""
    outcome = state.last_continuation_outcome
    if outcome is None or not _log.isEnabledFor(logging.INFO):
        return
    status = f"{state.status} ({outcome.stop_reason})" if outcome.stop_reason else str(state.status)
    where, by = (state.agent_id[:8], state.execution.step_count), outcome.resolved_by
    _log.info("Agent [%s] step %d: %s by %s: %s", *where, status, by, error_text(outcome, state.current_step))


def log_tool_error(tool: str, error: BaseException) -> None:
    """Write the traceback of what a tool raised. It shows lines of code, and no values."""
    _log.error("Tool %s failed", tool, exc_info=error)
