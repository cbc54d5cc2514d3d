"""Where output goes: a terminal gets colours, a pipe gets plain lines, stderr gets everything else."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

STATUS_STYLES = {
    "completed": "green",
    "stopped": "yellow",
    "failed": "red",
    "paused": "bold yellow",
    "in_progress": "cyan",
    "pending": "dim",
}


class CannotWrite(Exception):  # noqa: N818  (it says what happened)
    """Stdout cannot be written, as on a full disk."""


def log_runs_to_stderr() -> None:
    """Write the log of runs to stderr, for a command that runs for long; the others narrate their runs."""
    handler, log = logging.StreamHandler(), logging.getLogger("whyloop.runs")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def is_terminal() -> bool:
    """Return whether stdout is a terminal that can draw."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def terminal(widest: int | None = None) -> Console:
    """Return the terminal, no wider than asked for. It takes text, never markup."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if widest is not None:
        console.width = min(console.width, widest)
    return console


def write_json(value: dict[str, Any]) -> None:
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
        # The interpreter flushes stdout once more as it ends, and would fail once more.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CannotWrite(error.strerror or str(error)) from None


def write_error(text: str) -> None:
    """Write to stderr, if there is one."""
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
