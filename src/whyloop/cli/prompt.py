"""The lines that a person types at a terminal, or that a pipe has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from whyloop.cli.output import is_terminal, write_error
from whyloop.values.text import clean

CONTINUES = "\\"
_STYLE = "1;35"


class Prompt:
    """Ask for lines: with editing and a history on a terminal, and silently in a pipe."""

    def __init__(self, completions: Iterable[str] = ()) -> None:
        self.is_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._readline = _readline(tuple(completions)) if self.is_terminal and is_terminal() else None

    def remember(self, text: str) -> None:
        """Add a line to the history that the arrow keys recall."""
        if self._readline is not None and "\n" not in text:
            self._readline.add_history(text)

    def ask(self, prompt: str, *, prefilled: str = "") -> str | None:
        """Return the next line, None at the end of the input.

        A line that ends with a backslash is continued on the next one. `prefilled` is text to edit.
        """
        lines: list[str] = []
        while (line := self._line("… " if lines else prompt, prefilled)) is not None:
            lines.append(line.removesuffix(CONTINUES))
            if not line.endswith(CONTINUES):
                break
            prefilled = ""
        return clean("\n".join(lines)) if lines else None

    def _line(self, prompt: str, prefilled: str) -> str | None:
        if self._readline is None:
            if self.is_terminal:
                write_error(prompt)
            line = sys.stdin.readline() if sys.stdin is not None else ""
            return line.rstrip("\r\n") if line else None
        readline = self._readline
        readline.set_startup_hook(lambda: readline.insert_text(prefilled))
        try:
            return input(_styled(prompt))
        except EOFError:
            write_error("")
            return None
        finally:
            readline.set_startup_hook()

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Let the keys that are pressed meanwhile not be shown in the middle of a run."""
        if not self.is_terminal:
            yield
            return
        try:
            import termios
        except ImportError:  # Windows.
            yield
            return
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        quiet = [*before]
        quiet[3] = before[3] & ~termios.ECHO
        termios.tcsetattr(keyboard, termios.TCSANOW, quiet)
        try:
            yield
        finally:
            termios.tcsetattr(keyboard, termios.TCSANOW, before)

    def discard(self) -> None:
        """Forget the keys that were pressed before a question was asked: they do not answer it."""
        if self.is_terminal:
            with suppress(ImportError):
                import termios

                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _readline(completions: tuple[str, ...]) -> Any:
    """Return the library that edits lines, with our completions; None where there is none."""
    try:
        import readline
    except ImportError:  # Windows.
        return None

    def complete(text: str, index: int) -> str | None:
        found = [name for name in completions if text and name.startswith(text)]
        return found[index] if index < len(found) else None

    readline.set_auto_history(False)
    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    return readline


def _styled(prompt: str) -> str:
    """Return the prompt in colour; the marks let the library count its columns."""
    if os.environ.get("NO_COLOR"):
        return prompt
    return f"\001\x1b[{_STYLE}m\002{prompt}\001\x1b[0m\002"
