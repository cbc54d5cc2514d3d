"""A run as it happens: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

from whyloop.cli.demo_parts.narration import Kind, Line, Narrator
from whyloop.cli.demo_parts.words import safe
from whyloop.events import AgentEvent, AgentStepCompleted, StreamChunkReceived


class Telling:
    """Writes what the events say. What it writes, it writes at once: somebody may be watching."""

    def __init__(self, *, answer: bool, quiet: bool, unheard: Callable[[], object]) -> None:
        self._answer = answer
        self._quiet = quiet
        self._unheard = unheard
        self._narrator = Narrator()
        self._mid_line = False
        self.nobody_listens = False

    def __call__(self, event: AgentEvent) -> None:
        if isinstance(event, StreamChunkReceived) and event.chunk:
            self._say(event.chunk)
        if isinstance(event, AgentStepCompleted) and self._mid_line:
            self._say("\n")
        lines = map(_plain, self._narrator.lines(event))
        if not self._quiet:
            self.aside("\n".join(filter(None, lines)))

    def aside(self, text: str) -> None:
        """Say something that is not the answer."""
        if not text:
            return
        if self._mid_line:
            self._say("\n")
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def _say(self, text: str) -> None:
        if not self._answer or self.nobody_listens:
            return
        # A terminal obeys what it is told; a file or a pipe gets the answer as it is.
        shown = safe(text) if sys.stdout.isatty() else text
        try:
            sys.stdout.write(shown)
            sys.stdout.flush()
        except BrokenPipeError:
            # An event handler cannot break a run, so the run is asked to end.
            self.nobody_listens = True
            self._unheard()
        self._mid_line = not text.endswith("\n")


def _plain(line: Line) -> str:
    measure = f" ({line.measure})" if line.measure else ""
    match line.kind:
        case Kind.DONE:
            return f"  {line.head}({line.text}) ok{measure}"
        case Kind.FAILED if line.measure:
            return f"  {line.head}({line.text}) failed{measure}"
        case Kind.FAILED:
            return f"  {line.head}: {line.text}" if line.text else f"  {line.head}"
        case Kind.ERROR:
            return f"    {line.text}"
        case Kind.WAITED:
            return f"  {line.text}"
        case Kind.POLICY | Kind.GO_ON | Kind.COMPLETE | Kind.STOP:
            return f"  {line.head}, {line.text}{measure}"
    return ""
