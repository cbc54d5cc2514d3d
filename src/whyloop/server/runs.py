"""Runs that go on while their clients do something else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from whyloop.errors import WhyloopError
from whyloop.loop.emit import Handler
from whyloop.values.state import AgentState

_log = logging.getLogger("whyloop")

CLOSING = "The server is shutting down."

Run = Callable[[Handler], Coroutine[Any, Any, AgentState]]
Stop = Callable[[str], object]


class Runs:
    """The runs of a server."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[AgentState], Stop] = {}

    async def start(self, run: Run, stop: Stop) -> None:
        """Return as soon as it has begun, and what it works on is stored; raises why it could not begin."""
        begun = asyncio.Event()
        task = asyncio.create_task(run(lambda _: begun.set()))
        self._running[task] = stop
        task.add_done_callback(self._running.pop)
        try:
            await _either(task, begun.wait())
        finally:  # Whoever asked may have gone away, and the run goes on.
            if begun.is_set() or not task.done():
                task.add_done_callback(_report)
        if not begun.is_set():
            task.result()

    async def close(self, seconds: float) -> None:
        """End each run after its step, or where it is when the time is up; all of them can be resumed."""
        for stop in self._running.values():
            stop(CLOSING)
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)


def _report(task: asyncio.Task[AgentState]) -> None:
    """Nobody waits for it any more, so what went wrong is for the log."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, WhyloopError):
        _log.warning("a run ended early: %s", error)
    elif error is not None:
        _log.error("a run failed", exc_info=error)


async def _either(task: asyncio.Task[AgentState], waiting: Awaitable[object]) -> None:
    other = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait([task, other], return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()
