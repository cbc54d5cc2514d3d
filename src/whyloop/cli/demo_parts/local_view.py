"""The real model on a terminal: a bar while it starts, and its words as they come."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from whyloop.cli.demo_parts.live_view import LiveView
from whyloop.events import AgentEvent, AgentStepStarted, StreamChunkReceived
from whyloop.models.local import LocalServer
from whyloop.values.text import printable


def started(console: Console) -> LocalServer:
    """The server, with a bar that moves until it is there; how long it takes nobody knows."""
    columns = (TextColumn("{task.description}", style="cyan"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("Starting the model", total=None)
        return LocalServer()


class StreamingView(LiveView):
    """A live view whose model thinks aloud."""

    _said = ""

    def __call__(self, event: AgentEvent) -> None:
        if isinstance(event, AgentStepStarted):
            self._said = ""
        if isinstance(event, StreamChunkReceived):
            self._said += event.chunk
            # Once complete it is a line of its own.
            self._narrator.activity = "" if event.is_complete else printable(self._said)
        super().__call__(event)
