"""Recorded runs: one as the transitions of its executions, or many, a few at a time."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, TypedDict

from msgspec import Struct

from whyloop.errors import ConfigurationError, SessionNotFoundError, SnapshotError, WhyloopError
from whyloop.replay.reconstruction import RecordedExecution, executions_of, has_work
from whyloop.stores.reading import FIRST_READ, Reading, imported, portions_after
from whyloop.stores.records import Summary
from whyloop.stores.store import Store, pages
from whyloop.values.judgement import JudgedAlike
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.text import shortened
from whyloop.values.transitions import Queried, Restored, Transition
from whyloop.wire.journal import JournalEntry, decode_entries, no_garbage_collection
from whyloop.wire.view import INCONSISTENT

# The sessions of a page, and the entries of short ones that one query reads: fewer take twice the time.
PAGE, ENTRIES_AT_ONCE = 1000, 500


class Recording(Struct, frozen=True):
    """A recorded run: the executions of one session."""

    agent_id: str
    """The name of the session."""
    executions: tuple[RecordedExecution, ...]
    """Its executions in order. A query on which no work has begun is not among them."""

    @classmethod
    def of(cls, run: AnyRun) -> Recording:
        """Return the recording of a run.

        Args:
            run: A state, a snapshot (`state.to_dict()`), the entries of a journal, or the lines of an
                exported file with one session.
        """
        if isinstance(run, Recording):
            return run
        if isinstance(run, AgentState):
            return cls(run.agent_id, executions_of(run))
        if isinstance(run, Mapping):
            return cls.of(AgentState.from_dict(run))
        if isinstance(run, str) or not isinstance(run, Iterable):
            raise ConfigurationError(
                f"cannot judge {type(run).__name__} {str(run)[:40]!r}: use a state, a snapshot, a journal or "
                "the lines of an export; await Recording.read(store, agent_id) reads a stored session"
            )
        lines = list(run)
        if lines and '"format"' in lines[0]:
            recordings = list(cls.all_of(lines))
            if len(recordings) != 1:
                raise ConfigurationError(
                    f"the export has {len(recordings)} sessions: judge each of Recording.all_of(lines)"
                )
            return recordings[0]
        return _Reader("").read(decode_entries(lines)).recording()

    @classmethod
    def all_of(cls, lines: Iterable[str]) -> Iterator[Recording]:
        """Yield the recording of each session of an exported file.

        Args:
            lines: The lines of the file.
        """
        for state, entries in imported(lines):
            yield _Reader(state.agent_id).read(decode_entries([entry.body for entry in entries])).recording()

    @classmethod
    async def read(cls, store: Store, agent_id: str) -> Recording:
        """Read the recording of a stored session.

        Args:
            store: The store.
            agent_id: The id of the session.
        """
        return await cls.read_listed(store, (await store.read(agent_id, limit=0)).summary)

    @classmethod
    async def read_listed(cls, store: Store, summary: Summary) -> Recording:
        """Read the recording of a session up to the version with which it was listed.

        Args:
            store: The store.
            summary: The session, as `store.sessions()` lists it.
        """
        agent_id = summary.agent_id
        if summary.version <= FIRST_READ:  # One query for all of it takes a sixth less time than portions.
            [found] = await store.read_listed([summary])
            if found is None:
                raise SessionNotFoundError(agent_id)
            return cls.of_entries(agent_id, found)
        reader, start = _Reader(agent_id), Reading(summary, AgentState(agent_id=agent_id), 0)
        async with aclosing(portions_after(store, start, summary.version)) as portions:
            async for _, entries in portions:
                with no_garbage_collection():
                    reader.read(entries)
        return reader.recording()

    @classmethod
    def of_entries(cls, agent_id: str, entries: Sequence[str]) -> Recording:
        """Return the recording of a session, given its journal.

        Args:
            agent_id: The id of the session.
            entries: The entries of the journal.
        """
        with no_garbage_collection():
            return _Reader(agent_id).read(decode_entries(entries)).recording()


AnyRun = AgentState | Mapping[str, Any] | Recording | Iterable[str]
"""A recorded run, in any of its forms."""


class _Reader:
    """A reader of journal entries, which it turns into executions."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._executions: list[RecordedExecution] = []
        self._before: AgentState | None = None
        self._transitions: list[Transition] = []
        self._states: list[AgentState] = []
        self._state = AgentState.before_creation(agent_id)
        self._count = 0

    def read(self, entries: Iterable[JournalEntry]) -> _Reader:
        """Apply the transitions of more entries."""
        for entry in entries:
            try:
                for transition in entry.transitions:
                    self._add(transition)
            except SnapshotError:
                raise
            except INCONSISTENT as error:
                raise SnapshotError(
                    f"the entry does not follow from those before it: {error}", f"$[{self._count}]"
                ) from None
            self._count += 1
        return self

    def _add(self, transition: AnyTransition) -> None:
        state = self._state
        if isinstance(transition, JudgedAlike):
            transition = transition.judged(state.last_continuation_outcome)
        self._state = transition.apply_to(state)
        if isinstance(transition, Restored):  # The contents of the snapshot can be judged, too.
            self._executions = list(executions_of(self._state))
            if self._executions:
                last = self._executions.pop()
                self._before = last.before
                self._transitions, self._states = list(last.transitions), list(last.states)
            return
        if isinstance(transition, Queried):
            self._end(state)
            self._before, self._transitions, self._states = state, [], []
        if self._before is not None:
            self._transitions.append(transition)
            self._states.append(state)

    def _end(self, after: AgentState) -> None:
        if self._before is not None and has_work(self._transitions):
            recorded = RecordedExecution(self._before, self._transitions, after, self._states)
            self._executions.append(recorded)

    def recording(self) -> Recording:
        """Return what was read."""
        self._end(self._state)
        self._before = None
        return Recording(self._state.agent_id, tuple(self._executions))


# Many runs


class RunProblem(Struct, frozen=True):
    """A session that could not be judged."""

    agent_id: str
    """The name of the session."""
    reason: str
    """Why it could not."""

    @classmethod
    def of(cls, agent_id: str, error: Exception) -> RunProblem:
        """Return the problem with a session, from an error; ours need no class name.

        Args:
            agent_id: The name of the session.
            error: The error.
        """
        text = str(error) if isinstance(error, WhyloopError) else f"{type(error).__name__}: {error}"
        return cls(agent_id, shortened(text, 300))


class Filters(TypedDict, total=False):
    """The conditions that sessions must meet, as `Store.sessions` takes them."""

    status: str | None
    stop_reason: str | None
    started_after: datetime | None
    started_before: datetime | None
    metadata: dict[str, str | int | float | bool | None]
    resolved_by: str | None
    agent: str | None
    updated_after: datetime | None
    waiting: bool
    search: str | None


async def read_runs(
    source: Store | Iterable[AnyRun] | AsyncIterable[AnyRun], filters: Filters | None = None
) -> AsyncIterator[Recording | RunProblem]:
    """Yield the recording of each run, or the problem with it.

    Sessions that are deleted while a store is read are omitted; new ones may be.

    Args:
        source: A store, or states and other recorded runs.
        filters: The conditions that sessions of the store must meet. Default: none.
    """
    if isinstance(source, Store):
        async for page in pages(source, limit=PAGE, **(filters or Filters())):
            async for found in read_page(source, page.sessions):
                yield found
    elif isinstance(source, AsyncIterable):
        number = 0
        async for run in source:
            number += 1
            yield _recording_of(run, number)
    else:
        for number, run in enumerate(source, 1):
            yield _recording_of(run, number)


def _recording_of(run: AnyRun, number: int) -> Recording | RunProblem:
    try:
        return Recording.of(run)
    except WhyloopError as error:
        name = run.agent_id if isinstance(run, AgentState | Recording) else f"run {number}"
        return RunProblem.of(name, error)


async def read_page(store: Store, sessions: Sequence[Summary]) -> AsyncIterator[Recording | RunProblem]:
    """Yield the recording of each session of a page, or the problem with it.

    Args:
        store: The store.
        sessions: The sessions, as the store listed them.
    """
    for batch in _batches(sessions):
        for found in await _read_batch(store, batch):
            if found is not None:
                yield found


def _batches(sessions: Sequence[Summary]) -> Iterator[Sequence[Summary]]:
    """Yield some short sessions at a time, and each long one alone."""
    batch: list[Summary] = []
    entries = 0
    for summary in sessions:
        entries += summary.version
        if batch and entries > ENTRIES_AT_ONCE:
            yield batch
            batch, entries = [], summary.version
        batch.append(summary)
    if batch:
        yield batch


async def _read_batch(store: Store, batch: Sequence[Summary]) -> list[Recording | RunProblem | None]:
    if len(batch) > 1:
        with suppress(WhyloopError):  # Each of them is read alone, to find out which one is broken.
            texts = await store.read_listed(batch)
            return [_recorded(summary, found) for summary, found in zip(batch, texts, strict=True)]
    return [await _read(store, summary) for summary in batch]


def _recorded(summary: Summary, entries: Sequence[str] | None) -> Recording | RunProblem | None:
    try:
        return None if entries is None else Recording.of_entries(summary.agent_id, entries)
    except WhyloopError as error:
        return RunProblem.of(summary.agent_id, error)


async def _read(store: Store, summary: Summary) -> Recording | RunProblem | None:
    try:
        return await Recording.read_listed(store, summary)
    except SessionNotFoundError:  # It was deleted since the list was made.
        return None
    except WhyloopError as error:
        return RunProblem.of(summary.agent_id, error)
