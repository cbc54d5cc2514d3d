"""Reading journals: a whole session, the end of one, or a stretch from any place on.

A journal is read, decoded and folded in slices of about two milliseconds, so that a session of any length
leaves the event loop responsive. A thread would not help: it holds the interpreter as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import SessionNotFoundError, SnapshotError
from whyloop.stores.records import Summary
from whyloop.values.snapshot import check_open_step
from whyloop.values.state import AgentState
from whyloop.wire.journal import JournalEntry, decode_entries, decode_head, fold, no_garbage_collection

if TYPE_CHECKING:
    from whyloop.stores.store import Store

ENTRIES_PER_SLICE = 120


class Reading(Struct, frozen=True):
    """A session as far as it was read: how it is listed, the state, and the version of that state."""

    summary: Summary
    state: AgentState
    version: int


async def read_session(store: Store, agent_id: str, since: Reading | None = None) -> Reading:
    """Return a session as it is now; with an earlier reading of it, only what came since is read."""
    if since is not None:
        try:
            return await _fold_on(store, since)
        except (_Replaced, SnapshotError):
            pass  # It was deleted, and created again under its name.
    first = await store.read(agent_id, limit=ENTRIES_PER_SLICE)
    with no_garbage_collection():
        state = fold(agent_id, decode_entries(first.entries))
    reading = Reading(first.summary, state, len(first.entries))
    return await _fold_on(store, reading) if reading.version < first.summary.version else _whole(reading)


async def read_end(store: Store, agent_id: str) -> Reading:
    """Return a session as it is now, with the end of its history only."""
    return await _fold_on(store, await start_reading(store, agent_id))


async def start_reading(
    store: Store,
    agent_id: str,
    *,
    execution_id: str | None = None,
    seq: int | None = None,
    step_count: int | None = None,
    message_count: int | None = None,
) -> Reading:
    """Return the state at the newest checkpoint that fits, from which reading can start."""
    summary = (await store.read(agent_id, limit=0)).summary
    found = await store.checkpoint(
        agent_id, execution_id=execution_id, seq=seq, step_count=step_count, message_count=message_count
    )
    if found is None:
        return Reading(summary, AgentState(agent_id=agent_id), 0)
    version, checkpoint = found
    state = replace(decode_head(agent_id, checkpoint.state), metadata=summary.metadata)
    return Reading(summary, state, version)


async def entries_after(
    store: Store, reading: Reading, until: int | None = None
) -> AsyncGenerator[tuple[JournalEntry, Reading, AgentState], None]:
    """Yield the entries after a reading, each with the reading before it and the state after it.

    `until` is the last version to yield; the newest of this moment if it is not given.
    """
    while until is None or reading.version < until:
        state = reading.state
        stored = await store.read(state.agent_id, after=reading.version, limit=ENTRIES_PER_SLICE)
        if reading.summary.identity != stored.summary.identity:
            raise SessionNotFoundError(state.agent_id)
        until = stored.summary.version if until is None else until
        for entry in decode_entries(stored.entries):
            if reading.version >= until:
                break
            base = reading.state if reading.version else None
            after = fold(state.agent_id, (entry,), base, first=reading.version)
            yield entry, reading, after
            reading = Reading(stored.summary, after, reading.version + 1)
        if not stored.entries:
            return
        await asyncio.sleep(0)


class _Replaced(Exception):  # noqa: N818
    """Another session has the name by now."""


async def _fold_on(store: Store, reading: Reading) -> Reading:
    """Read what came since, slice by slice."""
    state, version, target = reading.state, reading.version, None
    while True:
        stored = await store.read(state.agent_id, after=version, limit=ENTRIES_PER_SLICE)
        summary = stored.summary
        if summary.identity != reading.summary.identity or summary.version < version:
            raise _Replaced
        target = summary.version if target is None else target
        if stored.entries:
            with no_garbage_collection():
                base = state if version else None
                state = fold(state.agent_id, decode_entries(stored.entries), base, first=version)
            version += len(stored.entries)
        if version >= target or not stored.entries:
            return _whole(Reading(replace(summary, version=version), state, version))
        await asyncio.sleep(0)


def _whole(reading: Reading) -> Reading:
    check_open_step(reading.state.open_step, "$.open_step")
    return reading
