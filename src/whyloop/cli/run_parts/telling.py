"""A run as it happens: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable

from whyloop.cli.demo_parts.narration import Kind, Narrator
from whyloop.cli.terminal import CannotWrite, complain, write
from whyloop.events import AgentEvent, AgentStepCompleted, StreamChunkReceived
from whyloop.values.text import printable

# The answer is on stdout, and the question was typed a moment ago.
_NOT_SHOWN = (Kind.QUERY, Kind.STEP, Kind.SAID, Kind.RESULT)


class Telling:
    """Writes what the events say, and at once: somebody may be watching.

    With `whole`, the text of a step waits until all of it is there; an attempt that failed and is made
    again leaves nothing on stdout then.
    """

    def __init__(
        self, *, answer: bool, quiet: bool, unheard: Callable[[], object], whole: bool = False
    ) -> None:
        self._answer = answer
        self._quiet = quiet
        self._unheard = unheard
        self._whole = whole
        self._waiting: list[str] = []
        self._narrator = Narrator()
        self._mid_line = False
        self.failure: CannotWrite | BrokenPipeError | None = None

    def __call__(self, event: AgentEvent) -> None:
        if isinstance(event, StreamChunkReceived):
            self._take(event)
        if isinstance(event, AgentStepCompleted):
            self._waiting.clear()
            if self._mid_line:
                self._say("\n")
        lines = [line for line in self._narrator.lines(event) if line.kind not in _NOT_SHOWN]
        if not self._quiet:
            self.aside("\n".join(line.plain().strip("\n") for line in lines))

    def aside(self, text: str) -> None:
        """Say something that is not the answer."""
        if not text:
            return
        if self._mid_line:
            self._say("\n")
        complain(text)

    def _take(self, event: StreamChunkReceived) -> None:
        self._waiting.append(event.chunk)
        if event.is_complete or not self._whole:
            text = "".join(self._waiting)
            self._waiting.clear()
            if text:
                self._say(text)

    def _say(self, text: str) -> None:
        if not self._answer or self.failure:
            return
        # A terminal obeys what it is told; a file or a pipe gets the answer as it is.
        self._mid_line = not text.endswith("\n")
        try:
            write(printable(text) if sys.stdout.isatty() else text)
        except (CannotWrite, BrokenPipeError) as error:
            # An event handler cannot break a run, so the run is asked to end.
            self.failure = error
            self._mid_line = False
            self._unheard()
