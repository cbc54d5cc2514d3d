"""Exported sessions, on their way to a file and back."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

from whyloop.cli.session_parts.arguments import visible
from whyloop.cli.session_parts.refusal import USAGE_ERROR, Refusal
from whyloop.cli.terminal import write
from whyloop.values.text import shortened


async def on_stdout(lines: AsyncIterator[str]) -> None:
    """The lines as they are; on a terminal, what would steer it is escaped, as JSON may be."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    shown = visible if sys.stdout.isatty() else str
    async for line in lines:
        write(f"{shown(line)}\n")


async def to_file(lines: AsyncIterator[str], path: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:  # noqa: ASYNC230  (nobody else waits)
            async for line in lines:
                file.write(f"{line}\n")
    except OSError as error:
        raise Refusal(f"cannot write {shortened(path)}: {error.strerror}") from None


@contextmanager
def lines_of(path: str) -> Iterator[Iterable[str]]:
    """The lines of a file, or of stdin."""
    try:
        if path == "-":
            yield _stdin()
        else:
            with open(path, encoding="utf-8") as file:
                yield file
    except OSError as error:
        raise Refusal(f"cannot read {shortened(path)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refusal(f"cannot read {shortened(path)}: it is no UTF-8 text") from None


def _stdin() -> Iterable[str]:
    if sys.stdin is None:
        raise Refusal("there is nothing to read: stdin is closed", USAGE_ERROR)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    return sys.stdin
