"""A run as it happens: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from whyloop.cli.demo_parts.narration import Kind, Line, Narrator
from whyloop.cli.demo_parts.words import safe
from whyloop.events import AgentEvent, AgentStepCompleted, StreamChunkReceived


class CannotWrite(Exception):  # noqa: N818  (it says what happened)
    """The answer has nowhere to go, such as to a disk that is full."""


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
        lines = map(_plain, self._narrator.lines(event))
        if not self._quiet:
            self.aside("\n".join(filter(None, lines)))

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
            write(safe(text) if sys.stdout.isatty() else text)
        except (CannotWrite, BrokenPipeError) as error:
            # An event handler cannot break a run, so the run is asked to end.
            self.failure = error
            self._mid_line = False
            self._unheard()


def write(text: str) -> None:
    """Write to stdout, all the way."""
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


def complain(text: str) -> None:
    """Write to stderr, if there is one."""
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


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
