"""Reading journals: a whole session, the end of one, one version of it, or a stretch from any point on.

A journal is read, decoded and folded in slices of one or two milliseconds, so that a session of any length
leaves the event loop responsive. A thread would not help: it holds the interpreter as long.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import SessionNotFoundError, SnapshotError
from whyloop.stores.records import Stored, Summary
from whyloop.stores.turns import reading_turns
from whyloop.values.log import Log
from whyloop.values.snapshot import check_open_step
from whyloop.values.state import AgentState
from whyloop.wire.journal import JournalEntry, decode_entries, decode_head, fold, no_garbage_collection

if TYPE_CHECKING:
    from whyloop.stores.store import Store

# One query returns so many entries at most, and about so many characters. The first one is careful, and
# each of the next ones returns at most twice as many as the one before: a page needs few of them.
FIRST_READ, ENTRIES_PER_READ, FEWEST_PER_READ, CHARACTERS_PER_READ = 32, 256, 4, 250_000
# Entries are decoded a few at a time: one call of the decoder cannot be interrupted.
ENTRIES_PER_DECODING, CHARACTERS_PER_DECODING = 32, 40_000
# Whoever had the history of a session has let go of it by then.
FREED_AT_ONCE, FREEING_DELAY_SECONDS = 200, 0.1


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
    return await _from_start(store, agent_id)


async def read_end(store: Store, agent_id: str) -> Reading:
    """Return a session as it is now, with the end of its history only."""
    for _ in range(_PATIENCE):
        start = await start_reading(store, agent_id)
        try:
            return await _fold_on(store, start)
        except _Replaced:
            continue
    raise SessionNotFoundError(agent_id)


async def read_version(store: Store, agent_id: str, version: int) -> Reading:
    """Return a session as it was at a version, with the end of its history only."""
    for _ in range(_PATIENCE):
        start = await _start_before(store, agent_id, version)
        try:
            return await _fold_on(store, start, version)
        except _Replaced:
            continue
    raise SessionNotFoundError(agent_id)


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

    `until` is the last version to yield; the newest of this moment if it is not given. Between two entries
    other tasks get their turns, also for the time that the caller takes.
    """
    turns, agent_id = reading_turns(), reading.state.agent_id
    async with aclosing(portions_after(store, reading, until)) as portions:
        async for summary, entries in portions:
            for entry in entries:
                base = reading.state if reading.version else None
                after = fold(agent_id, (entry,), base, first=reading.version)
                yield entry, reading, after
                reading = Reading(summary, after, reading.version + 1)
                await turns.take()


async def portions_after(
    store: Store, reading: Reading, until: int | None = None
) -> AsyncGenerator[tuple[Summary, list[JournalEntry]], None]:
    """Yield the entries after a reading in portions, each with the summary, without folding them."""
    version = reading.version
    async with aclosing(texts_after(store, reading.summary, version, until)) as portions:
        async for summary, texts in portions:
            with no_garbage_collection():
                entries = _decoded(texts, version)
            yield summary, entries
            version += len(texts)


async def texts_after(
    store: Store, summary: Summary, version: int, until: int | None = None
) -> AsyncGenerator[tuple[Summary, Sequence[str]], None]:
    """Yield the bodies of the entries after a version in portions, each with the summary of that moment.

    `until` is the last version to yield; the newest of this moment if it is not given. Between two portions
    other tasks get their turns, also for the time that the caller takes.
    """
    turns, limit = reading_turns(), FIRST_READ
    agent_id, identity = summary.agent_id, summary.identity
    while until is None or version < until:
        stored = await store.read(agent_id, after=version, limit=limit)
        if stored.summary.identity != identity or stored.summary.version < version:
            raise SessionNotFoundError(agent_id)
        until = stored.summary.version if until is None else until
        limit = _next_limit(stored)
        for texts in _portions(stored.entries[: until - version]):
            yield stored.summary, texts
            version += len(texts)
            await turns.take()
        if not stored.entries:
            yield stored.summary, []
            return


def without_history(reading: Reading) -> Reading:
    """Return a reading from which reading can continue, without the messages and steps before it."""
    state = reading.state
    messages, steps, parts = state.messages, state.steps, state.request_parts
    return replace(
        reading,
        state=replace(
            state,
            messages=Log(start=len(messages)),
            # A decision between two steps is recorded with the last one.
            steps=Log(start=len(steps), last=steps.last),
            request_parts=Log(start=len(parts)),
        ),
    )


def release(state: AgentState) -> None:
    """Free a long history in slices, once nothing else refers to it.

    To free 20,000 steps at once takes 50 ms.
    """
    held: list[object] = [*state.messages[state.messages.start :], *state.steps[state.steps.start :]]
    if len(held) > FREED_AT_ONCE:
        task = asyncio.get_running_loop().create_task(_free(held))
        _freeing.add(task)
        task.add_done_callback(_freeing.discard)


_freeing: set[asyncio.Task[None]] = set()


async def _free(held: list[object]) -> None:
    turns = reading_turns()
    await asyncio.sleep(FREEING_DELAY_SECONDS)
    while held:
        del held[-ENTRIES_PER_DECODING:]
        await turns.take()


_PATIENCE = 3


class _Replaced(Exception):  # noqa: N818
    """Another session has the name by now."""


async def _from_start(store: Store, agent_id: str) -> Reading:
    for _ in range(_PATIENCE):
        summary = (await store.read(agent_id, limit=0)).summary
        try:
            return await _fold_on(store, Reading(summary, AgentState(agent_id=agent_id), 0))
        except _Replaced:
            continue
    raise SessionNotFoundError(agent_id)


async def _start_before(store: Store, agent_id: str, version: int) -> Reading:
    """Return the state at a checkpoint that is not after a version, found by halving the steps."""
    start = await start_reading(store, agent_id)
    if start.version <= version:
        return start
    found = Reading(start.summary, AgentState(agent_id=agent_id), 0)
    least, most = 0, start.state.step_count - 1
    while least <= most:
        middle = (least + most) // 2
        start = await start_reading(store, agent_id, step_count=middle)
        if start.version > version:
            most = middle - 1
            continue
        found, least = start, middle + 1
    return found


async def _fold_on(store: Store, reading: Reading, until: int | None = None) -> Reading:
    """Read what came since, slice by slice, up to a version or to the end."""
    summary, state, version = reading.summary, reading.state, reading.version
    try:
        async with aclosing(portions_after(store, reading, until)) as portions:
            async for latest, entries in portions:
                with no_garbage_collection():
                    base = state if version else None
                    state = fold(state.agent_id, entries, base, first=version)
                summary, version = latest, version + len(entries)
    except SessionNotFoundError:
        if state.agent_id in await store.versions([state.agent_id]):
            raise _Replaced from None
        raise
    check_open_step(state.open_step, "$.open_step")
    return Reading(replace(summary, version=version), state, version)


def _next_limit(stored: Stored) -> int:
    """Return how many entries to read next, so that long ones do not come all at once."""
    count, characters = len(stored.entries), sum(map(len, stored.entries)) or 1
    most = min(ENTRIES_PER_READ, 2 * count, count * CHARACTERS_PER_READ // characters)
    return max(FEWEST_PER_READ, most)


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the entries in portions that are decoded at once."""
    start = characters = 0
    for index, text in enumerate(texts):
        is_full = index - start >= ENTRIES_PER_DECODING or characters > CHARACTERS_PER_DECODING
        if is_full:
            yield texts[start:index]
            start, characters = index, 0
        characters += len(text)
    if start < len(texts):
        yield texts[start:]


_INDEX = re.compile(r"^\$\[(\d+)\]")


def _decoded(texts: Sequence[str], first: int) -> list[JournalEntry]:
    """Return the entries; an error names the invalid one by its index in the journal."""
    try:
        return decode_entries(texts)
    except SnapshotError as error:
        found = _INDEX.match(error.path)
        if found is None or not first:
            raise
        path = f"$[{first + int(found[1])}]{error.path[found.end() :]}"
        raise SnapshotError(str(error).removesuffix(f" (at {error.path})"), path) from None
