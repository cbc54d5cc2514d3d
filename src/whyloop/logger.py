"""The loggers of whyloop: no record has a secret in it or imitates another one."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from whyloop.values.arguments import without_arguments
from whyloop.values.redaction import DEFAULT_REDACTION
from whyloop.values.state import AgentState
from whyloop.values.step import end_error
from whyloop.values.text import short_id, shortened

_LONGEST_ARGUMENT = 1000
_LONGEST_TRACEBACK = 20_000


class Logger(logging.LoggerAdapter[logging.Logger]):
    """A standard logger whose arguments are short, on one line and without secrets.

    A traceback is a part of the message: as an exception it would be written with everything that it says.
    """

    def __init__(self, name: str = "whyloop") -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message with its arguments made safe; the message itself is whyloop's own."""
        if not self.isEnabledFor(level):
            return
        error = _exception_in(kwargs.pop("exc_info", None))
        safe = [arg if isinstance(arg, int | float) else log_line(arg) for arg in args]
        if error is not None:
            msg, safe = f"{msg}\n%s", [*safe, log_traceback(error)]
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # The caller's line, not this.
        self.logger.log(level, msg, *safe, **kwargs)


def log_line(text: object, limit: int = _LONGEST_ARGUMENT) -> str:
    """Return a text for a log: on one line, without secrets, and at most this long."""
    return shortened(DEFAULT_REDACTION.beginning(_str(text), 4 * limit), limit)


def log_traceback(error: BaseException, arguments: Mapping[str, Any] | str = "") -> str:
    """Return a traceback without secrets and arguments; each line is indented, unlike a record."""
    text = without_arguments("".join(traceback.format_exception(error)), arguments)
    if text is None:
        text = "".join(
            [*traceback.format_tb(error.__traceback__), f"{type(error).__name__} (its message is left out)\n"]
        )
    # Cut afterwards: half a key is not known for one.
    text = DEFAULT_REDACTION.text(text)[-_LONGEST_TRACEBACK:]
    return "\n".join([f"  {_printable(line)}" for line in text.splitlines()])


def _printable(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))]
    return indent + shortened(line, 1000)


def _exception_in(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    return sys.exc_info()[1] if exc_info else None


def _str(value: object) -> str:
    try:
        return str(value)
    except Exception:  # An error that cannot say what happened is still reported.
        return f"<{type(value).__name__}>"


_log = Logger("whyloop.runs")
# Without a handler Python would write errors to stderr; a program that wants them sets logging up.
_log.logger.addHandler(logging.NullHandler())


def log_end(state: AgentState) -> None:
    """Write one line with the rule that ended or paused the run, and its reason."""
    outcome = state.last_continuation_outcome
    if outcome is None or not _log.isEnabledFor(logging.INFO):
        return
    status = f"{state.status} ({outcome.stop_reason})" if outcome.stop_reason else str(state.status)
    where, by = (short_id(state.agent_id), state.execution.step_number), outcome.resolved_by
    reason, step = end_error(outcome, state.current_step), state.current_step
    note = step.wrap_up_note if step is not None and state.open_step is None else None
    text = f"{reason}; {note}" if note else reason
    _log.info("Agent [%s] step %d: %s by %s: %s", *where, status, by, text)


def log_error(
    agent_id: str,
    step_number: int,
    what: str,
    error: BaseException,
    arguments: Mapping[str, Any] | str = "",
) -> None:
    """Write what failed in a step, with the traceback: lines of code, and no arguments."""
    if not _log.isEnabledFor(logging.ERROR):
        return
    text = log_traceback(error, arguments)
    _log.logger.error(
        "Agent [%s] step %d: %s\n%s", short_id(agent_id), step_number, log_line(what), text, stacklevel=2
    )
