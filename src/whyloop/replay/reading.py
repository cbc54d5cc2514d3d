"""Reading many recorded runs, a few at a time, from a store or from anything that yields them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TypedDict

from msgspec import Struct

from whyloop.errors import SessionNotFoundError, WhyloopError
from whyloop.replay.recording import Recording, Run
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.state import AgentState
from whyloop.values.text import shortened

# The sessions of a page, and the entries of short ones that one query reads: fewer take twice the time.
PAGE, ENTRIES_AT_ONCE = 1000, 500


class Problem(Struct, frozen=True):
    """A session that could not be judged."""

    agent_id: str
    """The name of the session."""
    reason: str
    """Why it could not."""

    @classmethod
    def of(cls, agent_id: str, error: Exception) -> Problem:
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
    source: Store | Iterable[Run] | AsyncIterable[Run], filters: Filters | None = None
) -> AsyncIterator[Recording | Problem]:
    """Yield the recording of each run, or why there is none.

    Sessions that are deleted while a store is read are left out; those that come meanwhile may be.

    Args:
        source: A store, or states and other recorded runs.
        filters: The conditions that sessions of the store must meet. Default: none.
    """
    if isinstance(source, Store):
        async for found in _read_store(source, filters or Filters()):
            yield found
    elif isinstance(source, AsyncIterable):
        number = 0
        async for run in source:
            number += 1
            yield _recording_of(run, number)
    else:
        for number, run in enumerate(source, 1):
            yield _recording_of(run, number)


def _recording_of(run: Run, number: int) -> Recording | Problem:
    try:
        return Recording.of(run)
    except WhyloopError as error:
        name = run.agent_id if isinstance(run, AgentState | Recording) else f"run {number}"
        return Problem.of(name, error)


async def _read_store(store: Store, filters: Filters) -> AsyncIterator[Recording | Problem]:
    cursor: str | None = None
    while True:
        page = await store.sessions(limit=PAGE, after=cursor, **filters)
        async for found in read_page(store, page.sessions):
            yield found
        cursor = page.next
        if cursor is None:
            return


async def read_page(store: Store, sessions: Sequence[Summary]) -> AsyncIterator[Recording | Problem]:
    """Yield the recording of each session of a page, or why there is none.

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


async def _read_batch(store: Store, batch: Sequence[Summary]) -> list[Recording | Problem | None]:
    if len(batch) > 1:
        with suppress(WhyloopError):  # Each of them is read alone, to find out which one is broken.
            texts = await store.read_listed(batch)
            return [_recorded(summary, found) for summary, found in zip(batch, texts, strict=True)]
    return [await _read(store, summary) for summary in batch]


def _recorded(summary: Summary, entries: Sequence[str] | None) -> Recording | Problem | None:
    try:
        return None if entries is None else Recording.of_entries(summary.agent_id, entries)
    except WhyloopError as error:
        return Problem.of(summary.agent_id, error)


async def _read(store: Store, summary: Summary) -> Recording | Problem | None:
    try:
        return await Recording.read_listed(store, summary)
    except SessionNotFoundError:  # It was deleted since the list was made.
        return None
    except WhyloopError as error:
        return Problem.of(summary.agent_id, error)
