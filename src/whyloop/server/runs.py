"""Runs that continue in the background, and their events, recorded and live.

Any process can follow a run, from its beginning, whichever process runs it. Streaming text is not recorded:
if some text of an answer was not received live, the rest is sent once the answer is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from whyloop.errors import SessionNotFoundError, WhyloopError
from whyloop.events import AgentEvent, AgentStatusChanged, ChunkKind
from whyloop.logger import Logger
from whyloop.server.requests import ANY_VERSION, Precondition, busy
from whyloop.sessions.session import Session
from whyloop.stores.live import Watcher
from whyloop.stores.reading import (
    OneSession,
    Reading,
    ReadsJournals,
    entries_after,
    find_execution,
    first_reading,
    read_version,
    release,
    without_history,
)
from whyloop.stores.records import Lease, RequestKey, Summary
from whyloop.values.continuation import Budget
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step_transitions import Answered, ModelFailed
from whyloop.wire.journal import JournalEntry
from whyloop.wire.view import chunk_received, events_of, step_started

_log = Logger()

StartRun = Callable[..., Coroutine[Any, Any, AgentState]]
"""A method of a session that runs it, with all of its arguments but `deps` and `on_event`."""

CLOSING = "The server is shutting down."


class Engine(Protocol):
    """An engine, which runs the sessions of a server outside of the server's process."""

    agent: str
    """The name of the agent of new sessions."""

    async def send(self, summary: Summary, text: str, key: RequestKey | None) -> int:
        """Ask a question in a session; return the version that recorded it."""

    async def resume(self, summary: Summary, grant: Budget | None, key: RequestKey | None) -> int:
        """Continue a session; return the version that recorded it."""

    async def edit(
        self,
        summary: Summary,
        question_id: str,
        arguments: Mapping[str, Any],
        by: str,
        key: RequestKey | None,
    ) -> None:
        """Approve a pending tool call with other arguments, which must fit its tool."""

    async def wake(self, summary: Summary) -> None:
        """Check a session that was changed in the store while it did not run."""


class ServedSession(Session[Any, Any]):
    """A session that a request runs, if it is at a version that the client named."""

    precondition: Precondition = ANY_VERSION
    deps: Any = None

    async def prepare(self, lease: Lease) -> None:
        """Refuse to run the session at another version than the client named."""
        await super().prepare(lease)
        precondition, self.precondition = self.precondition, ANY_VERSION
        precondition.check(self.state.identity, self.version)

    async def read_beginning(self) -> Reading:
        """Return the session as of the version that the run recorded first."""
        session = OneSession(self.store, self.state.identity)
        return await read_version(session, self.agent_id, self.first_version)


class Runs:
    """The runs that the requests of a server began.

    Args:
        most: The maximum number at once; one more is refused with 503.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[asyncio.Task[AgentState], ServedSession] = {}

    async def start(self, session: ServedSession, run: StartRun) -> None:
        """Start a run; return once it is recorded, or raise its error."""
        if len(self._running) >= self._most:
            raise busy("runs")
        begun = asyncio.Event()

        async def run_to_end() -> AgentState:
            state = await run(deps=session.deps, on_event=lambda _: begun.set())
            release(state)
            return state

        task = asyncio.create_task(run_to_end())
        self._running[task] = session
        task.add_done_callback(self._running.pop)
        try:
            await _either(task, begun.wait())
        finally:  # Even if the client has disconnected, the run continues.
            if begun.is_set() or not task.done():
                task.add_done_callback(_report)
        if not begun.is_set():
            task.result()

    async def close(self, seconds: float, *, leave: bool = False) -> None:
        """Stop all runs, and cancel those that have not ended in time.

        All of them can be resumed.

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


async def find_run(store: ReadsJournals, reading: Reading) -> Reading:
    """Return the session before its latest run began, or will begin, as of a reading.

    Decisions since the last pause come after that.
    """
    state = reading.state
    found, _ = await find_execution(store, state.agent_id, state.execution.id)
    async with aclosing(entries_after(store, found, reading.version)) as entries:
        async for entry, before, after in entries:
            if before.state.execution.id != after.execution.id:
                found = before
            if _has_end(_AnswerEvents().recorded(before, entry)):
                found = Reading(before.summary, after, before.version + 1)
    return found


async def read_runs(
    store: ReadsJournals, agent_id: str, start: Reading | None = None, until: int | None = None
) -> AsyncGenerator[list[AgentEvent], None]:
    """Yield the events of each run of a session, up to a version.

    The last run may be in progress.
    """
    run: list[AgentEvent] = []
    start = start or await first_reading(store, agent_id)
    async with aclosing(entries_after(store, start, until)) as entries:
        async for entry, before, _ in entries:
            events = list(_AnswerEvents().recorded(before, entry))
            run += events
            if _has_end(events):
                yield run
                run = []
    if run:
        yield run


async def follow_events(
    store: ReadsJournals, watcher: Watcher, reading: Reading, is_closed: Callable[[], bool]
) -> AsyncGenerator[AgentEvent, None]:
    """Yield the events after a reading, and then new ones as they arrive."""
    answers = _AnswerEvents()
    while not is_closed():
        watcher.changed.clear()
        bodies, watcher.chunks = watcher.chunks, []
        if watcher.is_gone:
            raise SessionNotFoundError(watcher.agent_id)
        chunks = [_chunk_decoder.decode(body) for body in bodies]
        # Everything that was recorded before these chunks can be read now.
        async with aclosing(entries_after(store, reading)) as entries:
            async for entry, before, after in entries:
                for event in answers.streamed(before.state, chunks):
                    yield event
                for event in answers.recorded(before, entry):
                    yield event
                reading = Reading(before.summary, after, before.version + 1)
        for event in answers.streamed(reading.state, chunks):
            yield event
        reading = without_history(reading)
        watcher.version = reading.version
        await watcher.changed.wait()


def _has_end(events: Iterable[AgentEvent]) -> bool:
    return any(
        isinstance(event, AgentStatusChanged) and event.status is not AgentStatus.IN_PROGRESS
        for event in events
    )


class _Piece(Struct, frozen=True):
    kind: ChunkKind = "text"
    chunk: str = ""
    chunk_index: int | None = None
    """None for the start of a step."""


class _Chunk(Struct, frozen=True):
    """A live envelope: the start of a step, or a piece of its text."""

    execution_id: str
    seq: int
    timestamp: datetime
    data: _Piece


_chunk_decoder = msgspec.json.Decoder(_Chunk)


class _AnswerEvents:
    """The events of the answers: what has streamed in, and of a recorded answer what is missing of it."""

    def __init__(self) -> None:
        self._step: tuple[str, int] | None = None
        self._next = 0
        self._sent: dict[ChunkKind, str] = {}

    def streamed(self, state: AgentState, chunks: Iterable[_Chunk]) -> Iterator[AgentEvent]:
        """Yield the chunks of this state, up to the first missing one."""
        execution = state.execution
        for chunk in chunks:
            if (chunk.execution_id, chunk.seq) != (execution.id, execution.last_seq):
                continue
            yield from self._begin(state, chunk.timestamp)
            if chunk.data.chunk_index != self._next:
                continue
            yield from self._send(state, chunk.timestamp, chunk.data.kind, chunk.data.chunk)

    def recorded(self, before: Reading, entry: JournalEntry) -> Iterator[AgentEvent]:
        """Yield the events of an entry."""
        if not before.version:  # A session is created without an event.
            return
        state = before.state
        for transition in entry.transitions:
            if isinstance(transition, Answered | ModelFailed):
                yield from self._begin(state, transition.started_at)
            if isinstance(transition, Answered) and transition.message is not None:
                message = transition.message
                yield from self._rest(state, transition.at, "reasoning", message.reasoning)
                yield from self._rest(state, transition.at, "text", message.text)
                yield chunk_received(state, transition.at, "", self._next, is_complete=True)
            yield from events_of(state, transition)
            state = transition.apply_to(state)

    def _begin(self, state: AgentState, time: datetime) -> Iterator[AgentEvent]:
        step = state.execution.id, state.execution.next_step_number()
        if step != self._step:
            self._step, self._next, self._sent = step, 0, {}
            yield step_started(state, time, ())

    def _rest(self, state: AgentState, time: datetime, kind: ChunkKind, text: str) -> Iterator[AgentEvent]:
        sent = self._sent.get(kind, "")
        if len(text) > len(sent) and text.startswith(sent):
            yield from self._send(state, time, kind, text[len(sent) :])

    def _send(self, state: AgentState, time: datetime, kind: ChunkKind, text: str) -> Iterator[AgentEvent]:
        yield chunk_received(state, time, text, self._next, kind=kind)
        self._next += 1
        self._sent[kind] = self._sent.get(kind, "") + text
