"""How requests change sessions: once for each key, recorded here, or by a run in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from whyloop.broadcasting.transports import AgentEventEnvelopeAdapter
from whyloop.errors import (
    ConflictError,
    KeyUsedError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
    WhyloopError,
)
from whyloop.logger import Logger
from whyloop.loop.setup import Handler
from whyloop.rules.criteria import stop_transitions
from whyloop.server.requests import BadRequestError, Precondition
from whyloop.sessions.session import Session
from whyloop.stores.live import live
from whyloop.stores.reading import Reading, entries_after, read_session, read_version, release
from whyloop.stores.records import RequestKey
from whyloop.stores.store import Store
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.text import clean
from whyloop.wire.view import read_back

_log = Logger()

A = TypeVar("A")
Plan = Callable[[AgentState], Sequence[AnyTransition]]
"""From the state of a session to the transitions to record; none if there is nothing to do."""
Run = Callable[[Handler], Coroutine[Any, Any, AgentState]]

CLOSING = "The server is shutting down."
A_MOMENT = 0.02
# The first request may be on its way in another process: its key is recorded within a moment.
MOMENTS_FOR_A_KEY = 10
# A runner that has paused a session gives its lease back within a moment.
MOMENTS_FOR_A_LEASE = 25


# Requests that are sent again under the same `Idempotency-Key`


class Keys:
    """Carry out a request unless its key was used; answer it from what the first one recorded."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    async def once(
        self,
        agent_id: str,
        key: RequestKey | None,
        work: Callable[[], Awaitable[A]],
        again: Callable[[int], Awaitable[A]],
    ) -> A:
        """Return the answer to `work`; `again` answers from the version that the first request recorded.

        Requests with one key come one after the other. A key that came with another request before is 422.
        """
        if key is None:
            return await work()
        async with self._one_at_a_time(agent_id, key.key):
            version = await self.version(agent_id, key)
            if version is None:
                try:
                    return await work()
                except KeyUsedError as error:
                    version = _checked(key, error.digest, error.version)
                except SessionExistsError:
                    version = await self.version(agent_id, key)
                    if version is None:
                        raise
                except SessionRunningError:
                    version = await self._wait_for(agent_id, key)
                    if version is None:
                        raise
            return await again(version)

    async def version(self, agent_id: str, key: RequestKey) -> int | None:
        """Return the version that was recorded under a key; None if there is none."""
        try:
            found = await self._store.key(agent_id, key.key)
        except SessionNotFoundError:
            return None
        return None if found is None else _checked(key, *found)

    async def _wait_for(self, agent_id: str, key: RequestKey) -> int | None:
        for _ in range(MOMENTS_FOR_A_KEY):
            version = await self.version(agent_id, key)
            if version is not None:
                return version
            await asyncio.sleep(A_MOMENT)
        return None

    @asynccontextmanager
    async def _one_at_a_time(self, agent_id: str, key: str) -> AsyncIterator[None]:
        """Hold a lock that exists for as long as a request of this process uses it."""
        lock, users = self._locks.get((agent_id, key), (asyncio.Lock(), 0))
        self._locks[agent_id, key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[agent_id, key]
            if users > 1:
                self._locks[agent_id, key] = lock, users - 1
            else:
                del self._locks[agent_id, key]


def session_id_of(key: RequestKey, within: Mapping[str, object], *origin: str) -> str:
    """Return the id of the session that a request creates under a key, the same for the same client.

    Keys belong to sessions, so the second request has to find the session of the first one.
    """
    named = msgspec.json.encode([key.key, within, origin], order="sorted")
    return sha256(named).hexdigest()[:32]


def _checked(key: RequestKey, digest: str, version: int) -> int:
    if digest != key.digest:
        raise BadRequestError(
            "another request was sent under this Idempotency-Key: use a new key for a new request",
            422,
            "key_reused",
        )
    return version


# Changes that the server records itself, while no runner has the session


class Recorder:
    """Record transitions, and send their events to the transports that the events of runs go to."""

    def __init__(self, store: Store, events: AgentEventEnvelopeAdapter | None) -> None:
        self._store = store
        self._events = events

    async def record(
        self,
        agent_id: str,
        plan: Plan,
        *,
        key: RequestKey | None = None,
        precondition: Precondition | None = None,
    ) -> tuple[Reading, bool]:
        """Record what a plan makes of the session as it is, and return the session after it.

        The second value is False if there was nothing to record. The precondition holds for the very
        version at which the transitions are recorded.
        """
        reading, patience = None, MOMENTS_FOR_A_LEASE
        while True:
            reading = await read_session(self._store, agent_id, reading)
            if precondition is not None:
                precondition.check(reading.summary.identity, reading.version)
            transitions = plan(reading.state)
            if not transitions:
                return reading, False
            try:
                return await self._write(reading, transitions, key), True
            except ConflictError:
                continue  # Another change came first, and the plan may be another one now.
            except SessionRunningError:
                if reading.state.status is not AgentStatus.PAUSED or not patience:
                    raise
                patience -= 1
                await asyncio.sleep(A_MOMENT)

    async def stop(self, agent_id: str, reason: str, key: RequestKey | None = None) -> Reading | bool:
        """End the run of a session, wherever it runs.

        Return the session if the stop was recorded here, True if a runner was asked, and False if there
        was nothing to stop.
        """
        reason = clean(reason)
        while not await self._store.ask_to_stop(agent_id, reason):
            reading = await read_session(self._store, agent_id)
            state = reading.state
            if state.status.has_ended or not state.messages:
                return False
            stopped = stop_transitions(state, reason, self._store.now(), key.key if key else None)
            try:
                return await self._write(reading, stopped, key)
            except (ConflictError, SessionRunningError):
                continue  # A runner continued it at this very moment, and is to be asked.
        return True

    def send(self, before: AgentState, transitions: Sequence[AnyTransition]) -> None:
        """Send the events of recorded transitions, as a run sends its own."""
        live(self._store).appended(before.agent_id)
        if self._events is not None:
            for event in read_back(before, transitions):
                self._events(event)

    async def send_entry(self, agent_id: str, version: int) -> None:
        """Send the events of an entry that was recorded with the session itself."""
        if self._events is not None:
            before = await read_version(self._store, agent_id, version - 1)
            async with aclosing(entries_after(self._store, before, version)) as entries:
                async for entry, reading, _ in entries:
                    self.send(reading.state, entry.transitions)

    async def _write(
        self, reading: Reading, transitions: Sequence[AnyTransition], key: RequestKey | None
    ) -> Reading:
        release(reading.state)
        state = await self._store.write(reading, transitions, key=key)
        version = reading.version + 1  # Only a query makes more than one entry.
        self.send(reading.state, transitions)
        return Reading(replace(reading.summary, version=version, runner=None), state, version)


# Runs that continue while their clients do something else


class ServedSession(Session):
    """A session that a request runs, if it is at a version that the client named."""

    precondition: Precondition | None = None

    async def refresh(self) -> AgentState:
        """Read the session again. A run does so first, once it has the lease: nothing comes between."""
        state = await super().refresh()
        precondition, self.precondition = self.precondition, None
        if precondition is not None:
            precondition.check(self.state.identity, self.version)
        return state

    async def read_beginning(self) -> Reading:
        """Return the session as of the version that the run recorded first."""
        return await read_version(self.store, self.agent_id, self.first_version)


class Runs:
    """The runs of a server."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[AgentState], Session] = {}

    async def start(self, session: Session, run: Run) -> None:
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
