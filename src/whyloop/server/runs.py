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

Run = Callable[[Handler], Coroutine[Any, Any, AgentState]]


class Runs:
    """The runs of a server."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[AgentState]] = set()

    async def start(self, run: Run) -> None:
        """Return as soon as it has begun, and what it works on is stored; raises why it could not begin."""
        begun = asyncio.Event()
        task = asyncio.create_task(run(lambda _: begun.set()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await _either(task, begun.wait())
        finally:  # Whoever asked may have gone away, and the run goes on.
            if begun.is_set() or not task.done():
                task.add_done_callback(_report)
        if not begun.is_set():
            task.result()

    async def close(self) -> None:
        """End what runs; each can be resumed from where it was."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


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
