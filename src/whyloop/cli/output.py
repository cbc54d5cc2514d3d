"""How commands end and write: exit codes, stdout, stderr, and the terminal; nothing heavy is loaded here."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from whyloop.values.state import AgentState

FAILED = 1
USAGE_ERROR = 2
CANNOT_WRITE = 74  # EX_IOERR, as in other programs.
INTERRUPTED = 130  # As a shell reports a program that Ctrl-C ended.
BROKEN_PIPE = 141  # As a shell reports a program whose reader has closed the pipe.

# Each stop reason and a pause have a code of their own, so that a script can distinguish them.
_ENDINGS = {
    "completed": (0, "the model answered and asked for nothing more"),
    "steps_limit": (10, "--max-steps was reached"),
    "token_limit": (11, "--max-tokens was reached"),
    "time_limit": (12, "--timeout was reached"),
    "retry_limit": (13, "an error that remained after all retries"),
    "error": (14, "an error"),
    "finish_reason": (15, "the answer was truncated or filtered"),
    "guard": (16, "a rule of your own forbade continuing"),
    "user_requested": (17, "Ctrl-C; a second one ends it at once, with 130"),
    "paused": (18, "a tool call waits for a person: whyloop approve, or deny"),
}
_OTHERS = {
    FAILED: "the session does not exist or runs elsewhere, or its store cannot be used",
    USAGE_ERROR: "the run could not start",
    CANNOT_WRITE: "the answer could not be written, as to a full disk",
}
EXIT_CODES = {reason: code for reason, (code, _) in _ENDINGS.items()}
STATUS_STYLES = {
    "completed": "green",
    "stopped": "yellow",
    "failed": "red",
    "paused": "bold yellow",
    "in_progress": "cyan",
    "pending": "dim",
}


class CommandError(Exception):
    """A command cannot do what it was asked for; its text is safe to print."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


class CannotWrite(Exception):  # noqa: N818  (named for what happened)
    """Stdout cannot be written, as on a full disk."""


def exit_code(state: AgentState) -> int:
    """Return the exit code for how a run ended, or for its pause."""
    return EXIT_CODES[state.stop_reason or state.status]


def exit_codes_help() -> str:
    """Return the table of exit codes that ends a help text."""
    width = max(map(len, _ENDINGS))
    lines = [f"  {code:>3}  {reason:<{width}}  {meaning}" for reason, (code, meaning) in _ENDINGS.items()]
    lines += [f"  {code:>3}  {'':<{width}}  {meaning}" for code, meaning in _OTHERS.items()]
    return "\n".join(["exit codes:", *lines])


def log_runs_to_stderr() -> None:
    """Write the log of runs to stderr, for a command that runs for long; the others narrate their runs."""
    handler, log = logging.StreamHandler(), logging.getLogger("whyloop.runs")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def is_terminal() -> bool:
    """Return whether stdout is a terminal that can draw."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def can_draw() -> bool:
    """Return whether a run can be drawn: on one terminal, with the answer and all else in one place."""
    return is_terminal() and sys.stderr is not None and sys.stderr.isatty()


def terminal(widest: int | None = None) -> Console:
    """Return the terminal, no wider than asked for. It takes text, never markup."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if widest is not None:
        console.width = min(console.width, widest)
    return console


def write_json(value: object) -> None:
    """Write one document in ASCII, so that nothing in it steers a terminal."""
    write(json.dumps(value, indent=2) + "\n")


def write_lines(lines: Sequence[str]) -> None:
    """Write the lines to stdout."""
    write("\n".join(lines) + "\n")


def write(text: str) -> None:
    """Write to stdout and flush it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise CannotWrite(error.strerror or str(error)) from None


def discard_stdout() -> None:
    """Let the interpreter flush stdout at its end without another error."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_error(text: str) -> None:
    """Write to stderr, if there is one."""
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def report(command: str, text: str, code: int) -> int:
    """Write why a command failed to stderr, and return its exit code."""
    write_error(f"whyloop {command}: {text}")
    return code
