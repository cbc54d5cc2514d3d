"""Runs that continue while their clients do something else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from whyloop.errors import WhyloopError
from whyloop.logger import Logger
from whyloop.loop.setup import Handler
from whyloop.server.requests import Precondition
from whyloop.sessions.session import Session
from whyloop.stores.reading import Reading, read_version, release
from whyloop.stores.records import Lease
from whyloop.values.state import AgentState

_log = Logger()

Run = Callable[[Handler], Coroutine[Any, Any, AgentState]]

CLOSING = "The server is shutting down."


class ServedSession(Session[Any, Any]):
    """A session that a request runs, if it is at a version that the client named."""

    precondition: Precondition | None = None
    deps: Any = None

    async def prepare(self, lease: Lease) -> None:
        """Refuse to run the session at another version than the client named."""
        await super().prepare(lease)
        precondition, self.precondition = self.precondition, None
        if precondition is not None:
            precondition.check(self.state.identity, self.version)

    async def read_beginning(self) -> Reading:
        """Return the session as of the version that the run recorded first."""
        return await read_version(self.store, self.agent_id, self.first_version)


class Runs:
    """The runs of a server."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[AgentState], Session[Any, Any]] = {}

    async def start(self, session: Session[Any, Any], run: Run) -> None:
        """Return as soon as the run has begun and is recorded; raise the error if it could not begin."""
        begun = asyncio.Event()

        async def run_to_end() -> AgentState:
            state = await run(lambda _: begun.set())
            release(state)
            return state

        task = asyncio.create_task(run_to_end())
        self._running[task] = session
        task.add_done_callback(self._running.pop)
        try:
            await _either(task, begun.wait())
        finally:  # The client may have gone away, and the run continues.
            if begun.is_set() or not task.done():
                task.add_done_callback(_report)
        if not begun.is_set():
            task.result()

    async def close(self, seconds: float, *, leave: bool = False) -> None:
        """Stop all runs, and cancel those that have not ended when the time is up; they can be resumed.

        With `leave`, a run ends after its step and stays in progress, for another server to continue.
        """
        for session in self._running.values():
            if leave:
                session.leave()
            else:
                session.stop_here(CLOSING)
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)


def _report(task: asyncio.Task[AgentState]) -> None:
    """Log the error of a run that no request waits for any more."""
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
