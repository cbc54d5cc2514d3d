"""Where the words go: a terminal gets colours, a pipe gets plain lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from whyloop.cli.run_parts.telling import write

if TYPE_CHECKING:
    from rich.console import Console


def watched() -> bool:
    """True if somebody reads stdout on a terminal that can draw."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def terminal() -> Console:
    """The terminal. What it is given is text, never markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_notes(console: Console, notes: Sequence[str]) -> None:
    """What can be done now, the first line of it in colour."""
    from rich.text import Text

    for number, words in enumerate(["", *notes] if notes else []):
        # A command to copy is never broken into lines of its own.
        console.print(Text(words, style="bold yellow" if number == 1 else ""), soft_wrap=True)


def write_json(value: dict[str, Any]) -> None:
    """One document; whatever is not ASCII is escaped, so nothing in it steers a terminal."""
    write(json.dumps(value, indent=2) + "\n")


def write_lines(lines: list[str]) -> None:
    write("\n".join(lines) + "\n")
