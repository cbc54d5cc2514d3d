"""Reading journals: a whole session, its end, one of its versions, or the part after any point.

A journal is read, decoded and folded in slices of one or two milliseconds, so that a session of any length
leaves the event loop responsive. A thread would not help, because it holds the interpreter for as long.

Copies of sessions are also made from their journals: forks, and the lines of exported files.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import reduce
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ConfigurationError, ConflictError, SessionNotFoundError, SnapshotError
from whyloop.rules.criteria import ContinuationCriteria, fork_transitions
from whyloop.stores.records import Stored, Summary, checked_id
from whyloop.stores.turns import Reason, reading_turns
from whyloop.values.approval import Question
from whyloop.values.decisions import fork_questions
from whyloop.values.log import Log
from whyloop.values.scalars import new_id
from whyloop.values.snapshot import check_open_step
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.text import counted, shortened
from whyloop.values.transitions import Forked, apply
from whyloop.wire.journal import (
    Checkpoint,
    Entry,
    JournalEntry,
    decode_entries,
    decode_head,
    entries_of,
    fold,
    no_garbage_collection,
    state_of,
)

# The maximum number of entries that one query returns, and roughly of characters. The first query returns
# few, since a page needs few, and each further one at most twice as many as the previous one.
FIRST_READ, ENTRIES_PER_READ, FEWEST_PER_READ, CHARACTERS_PER_READ = 32, 256, 4, 250_000
# Entries are decoded a few at a time, since a call of the decoder cannot be interrupted.
ENTRIES_PER_DECODING, CHARACTERS_PER_DECODING = 32, 40_000
# After this time the caller no longer refers to the history.
FREED_AT_ONCE, FREEING_DELAY_SECONDS = 200, 0.1


class Reading(Struct, frozen=True):
    """The part of a session that was read: its summary, its state, and the version of that state."""

    summary: Summary
    state: AgentState
    version: int


class Recorded(Struct, frozen=True):
    """A change of a session: the session before it, the transitions, and the session after it."""

    before: Reading
    transitions: Sequence[AnyTransition]
    after: Reading


class ReadsJournals(Protocol):
    """The part of a store that is needed to read sessions."""

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored: ...

    async def checkpoint(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        seq: int | None = None,
        step_count: int | None = None,
        message_count: int | None = None,
    ) -> tuple[int, Checkpoint] | None: ...


class OneSession:
    """A store that only reads one session, not a later one with the same id.

    A reader that may see the first may not see the second. Checkpoints do not name their session: each is
    followed by a read that does.
    """

    def __init__(self, store: ReadsJournals, identity: str) -> None:
        self._store = store
        self.identity = identity
        self.checkpoint = store.checkpoint

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        """Return the summary and entries; raise if another session has the id."""
        stored = await self._store.read(agent_id, after=after, limit=limit)
        if stored.summary.identity != self.identity:
            raise SessionNotFoundError(agent_id)
        return stored


Plan = Callable[[Reading], Sequence[AnyTransition]]
"""A function from a session to the transitions to record; none if there is nothing to do."""


async def read_session(store: ReadsJournals, agent_id: str, since: Reading | None = None) -> Reading:
    """Return a session as it is now.

    With an earlier reading, only newer entries are read. Without one, the session is restored: its execution
    clock is unset, as no leg has begun here.

    `SessionNotFoundError` if the session of that reading was deleted, even if another one has its id now.
    """
    if since is not None:
        return await _fold_on(store, since)
    reading = await _fold_on(store, await first_reading(store, agent_id))
    return replace(reading, state=replace(reading.state, execution_started_at=None))


async def read_end(store: ReadsJournals, agent_id: str) -> Reading:
    """Return a session as it is now, with the end of its history only."""
    return await _fold_on(store, await start_reading(store, agent_id))


async def read_version(store: ReadsJournals, agent_id: str, version: int) -> Reading:
    """Return a session as it was at a version, with the end of its history only."""
    return await _fold_on(store, await _start_before(store, agent_id, version), version)


async def start_reading(
    store: ReadsJournals,
    agent_id: str,
    *,
    execution_id: str | None = None,
    seq: int | None = None,
    step_count: int | None = None,
    message_count: int | None = None,
) -> Reading:
    """Return the newest matching checkpoint, from which reading can start."""
    first = await first_reading(store, agent_id)
    found = await store.checkpoint(
        agent_id, execution_id=execution_id, seq=seq, step_count=step_count, message_count=message_count
    )
    if found is None:
        return first
    version, checkpoint = found
    state = replace(decode_head(agent_id, checkpoint.state), metadata=first.summary.metadata)
    return Reading(first.summary, state, version)


async def first_reading(store: ReadsJournals, agent_id: str) -> Reading:
    """Return a session before its first entry."""
    return Reading((await store.read(agent_id, limit=0)).summary, AgentState(agent_id=agent_id), 0)


async def find_execution(
    store: ReadsJournals, agent_id: str, execution_id: str, seq: int = 0
) -> tuple[Reading, bool]:
    """Return a session before an envelope of an execution, and True.

    If it does not have the execution, return it before its first entry, and False.
    """
    first = await start_reading(store, agent_id, execution_id=execution_id, seq=seq)
    if first.version:
        return first, True
    # The execution that a fork or an import began with has no checkpoint of its own.
    for start in (await start_reading(store, agent_id), first):
        if start.state.execution.id == execution_id:
            continue
        reading = start
        async with aclosing(portions_after(store, reading)) as portions:
            async for summary, entries in portions:
                for entry in entries:
                    before, reading = reading, with_entries(reading, summary, (entry,))
                    if reading.state.execution.id == execution_id:
                        return before, True
                reading = without_history(reading)
    return first, False


async def entries_after(
    store: ReadsJournals, reading: Reading, until: int | None = None
) -> AsyncGenerator[tuple[JournalEntry, Reading, AgentState], None]:
    """Yield the entries after a reading, with the reading before and the state after.

    `until` is the last version to yield; by default the newest of this moment. Between two entries, other
    tasks get their turns, which also covers the time that the caller takes.
    """
    turns = reading_turns()
    async with aclosing(portions_after(store, reading, until)) as portions:
        async for summary, entries in portions:
            for entry in entries:
                after = with_entries(reading, summary, (entry,))
                yield entry, reading, after.state
                reading = after
                await turns.take()


async def portions_after(
    store: ReadsJournals, reading: Reading, until: int | None = None, reason: Reason = "request"
) -> AsyncGenerator[tuple[Summary, list[JournalEntry]], None]:
    """Yield the entries after a reading in portions, without applying them."""
    version = reading.version
    async with aclosing(texts_after(store, reading.summary, version, until, reason)) as portions:
        async for summary, texts in portions:
            with no_garbage_collection():
                entries = _decoded(texts, version)
            yield summary, entries
            version += len(texts)


async def texts_after(
    store: ReadsJournals,
    summary: Summary,
    version: int,
    until: int | None = None,
    reason: Reason = "request",
) -> AsyncGenerator[tuple[Summary, Sequence[str]], None]:
    """Yield the bodies of the entries after a version, in portions.

    Each portion has the summary of that moment. `until` is the last version to yield; by default the newest
    of this moment. Between two portions, other tasks get their turns, which also covers the time that the
    caller takes. The session is read even if there is no entry to yield, because a checkpoint at that version
    may belong to a later session with the same id.
    """
    turns, limit = reading_turns(reason), FIRST_READ if until is None or version < until else 0
    session = OneSession(store, summary.identity)
    while True:
        await turns.take()  # The reading before this one may have decoded one large entry.
        stored = await session.read(summary.agent_id, after=version, limit=limit)
        until = stored.summary.version if until is None else until
        limit = _next_limit(stored)
        for texts in _portions(stored.entries[: until - version]):
            yield stored.summary, texts
            version += len(texts)
            await turns.take()
        if not stored.entries:
            yield stored.summary, []
        if not stored.entries or version >= until:
            return


def with_entries(reading: Reading, summary: Summary, entries: Sequence[JournalEntry]) -> Reading:
    """Return a reading after more entries, with the summary that was read with them."""
    state, version = reading.state, reading.version
    state = fold(state.agent_id, entries, state if version else None, first=version)
    return Reading(summary, state, version + len(entries))


def without_history(reading: Reading) -> Reading:
    """Return a reading without earlier messages and steps, to continue from."""
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
    """Free a long history in slices, if nothing else refers to it.

    To free 20,000 steps at once takes 50 ms.
    """
    release_all([*state.messages[state.messages.start :], *state.steps[state.steps.start :]])


def release_all(held: list[object]) -> None:
    """Empty a list in slices, to free many values without a long pause."""
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


async def _start_before(store: ReadsJournals, agent_id: str, version: int) -> Reading:
    """Return the state at a checkpoint before a version, by binary search."""
    start = await start_reading(store, agent_id)
    if start.version <= version:
        return start
    found = Reading(start.summary, AgentState(agent_id=agent_id), 0)
    least, most = 0, len(start.state.steps) - 1
    while least <= most:
        middle = (least + most) // 2
        start = await start_reading(store, agent_id, step_count=middle)
        if start.version > version:
            most = middle - 1
            continue
        found, least = start, middle + 1
    return found


async def _fold_on(store: ReadsJournals, reading: Reading, until: int | None = None) -> Reading:
    """Read the new entries in slices, up to a version or to the end."""
    async with aclosing(portions_after(store, reading, until)) as portions:
        async for summary, entries in portions:
            with no_garbage_collection():
                reading = with_entries(reading, summary, entries)
    check_open_step(reading.state.open_step, "$.open_step")
    return replace(reading, summary=replace(reading.summary, version=reading.version))


def _next_limit(stored: Stored) -> int:
    """Return how many entries to read next, so that long ones are not read at once."""
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


FORMAT = "whyloop-sessions"
VERSION = 1
HEADER = msgspec.json.encode({"format": FORMAT, "version": VERSION}).decode()


async def fork_session(
    store: ReadsJournals,
    agent_id: str,
    new_agent_id: str,
    now: datetime,
    *,
    step: int | None,
    expected_version: int | None,
    key: str | None,
    criteria: ContinuationCriteria | None = None,
) -> tuple[AgentState, list[Entry]]:
    """Return the state and journal of a fork of a session after a step.

    All of it has one version, even if entries are appended in the meantime, because a journal only grows.
    """
    start = await first_reading(store, agent_id)
    latest = start.summary.version
    if expected_version is not None and latest != expected_version:
        raise ConflictError(agent_id, expected_version, latest)
    state, kept = start.state, 0
    copied: list[Entry] = []
    async with aclosing(entries_after(store, start, latest)) as entries:
        async for entry, before, after in entries:
            copied += entries_of(entry.transitions, before.state)
            state, kept = after, before.version + 1
            if step is not None and len(state.steps) >= step:
                break
    if not kept:
        raise SnapshotError("the journal has no entries")
    if step is not None and len(state.steps) != step:
        _refuse_step(step, state, kept == latest)
    state, asked = replace(state, agent_id=new_agent_id), state.execution.question
    questions = fork_questions(state, new_id)
    fork = Forked(
        now,
        identity=new_id(),
        execution_id=new_id(),
        from_agent_id=agent_id,
        step=len(state.steps),
        questions=questions,
        question=Question(new_id(), asked.text) if asked is not None and not questions else None,
        key=key,
    )
    transitions = fork_transitions(state, fork, criteria)
    return reduce(apply, transitions, state), [*copied, *entries_of(transitions, state)]


def _refuse_step(step: int, state: AgentState, at_end: bool) -> None:
    taken = counted(len(state.steps), "step")
    if at_end and len(state.steps) < step:
        raise ConfigurationError(f"there is no step {step} to fork at: the session has {taken}")
    raise ConfigurationError(
        f"invalid step {step}: the first {taken} were stored at once, so fork after those or later"
    )


async def export_session(store: ReadsJournals, agent_id: str) -> AsyncGenerator[str, None]:
    """Yield a session as lines: one that names it, then one for each entry."""
    summary = (await store.read(agent_id, limit=0)).summary
    yield msgspec.json.encode({"session": agent_id, "entries": summary.version}).decode()
    async with aclosing(texts_after(store, summary, 0, summary.version)) as portions:
        async for _, texts in portions:
            for text in texts:
                yield f'{{"entry":{text}}}'


def imported(lines: Iterable[str]) -> Iterator[tuple[AgentState, list[Entry]]]:
    """Yield the sessions of an exported file.

    A `SnapshotError` names the invalid line.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    number, first = next(numbered, (1, ""))
    if not first:
        raise SnapshotError("the file is empty: use one that whyloop export wrote", "line 1")
    header = _object(number, first)
    if header.get("format") != FORMAT:
        raise SnapshotError("not a file of exported sessions: it lacks the first line", "line 1")
    if header.get("version") != VERSION:
        raise SnapshotError(f"version {header.get('version')!r} is unknown: upgrade whyloop", "line 1")
    for number, line in numbered:
        named = _object(number, line)
        agent_id, count = named.get("session"), named.get("entries")
        if not isinstance(agent_id, str) or not isinstance(count, int):
            raise SnapshotError(
                "a session was expected here, with its id and the number of its entries", f"line {number}"
            )
        try:
            checked_id(agent_id)
        except ConfigurationError as error:
            raise SnapshotError(str(error), f"line {number}") from None
        texts: list[str] = []
        for index in range(count):
            at, text = next(numbered, (number + index, ""))
            about = f"session {agent_id!r}, at entry {index + 1} of {count}"
            if not text:
                raise SnapshotError(f"the file ends in the middle of {about}: export it again", f"line {at}")
            texts.append(_entry(at, text, about))
        try:
            yield _checked(agent_id, texts)
        except SnapshotError as error:
            raise SnapshotError(
                f"session {agent_id!r}, from line {number + 1} on: {error}", error.path
            ) from None


def _checked(agent_id: str, texts: Sequence[str]) -> tuple[AgentState, list[Entry]]:
    """Return the state of a journal and its entries with new checkpoints."""
    state_of(agent_id, texts)
    state, entries = None, []
    for index, entry in enumerate(decode_entries(texts)):
        before = state or AgentState(agent_id=agent_id)
        made = entries_of(entry.transitions, before)
        entries += [Entry(texts[index], made[0].checkpoint)] if len(made) == 1 else made
        state = fold(agent_id, (entry,), state, first=index)
    if state is None:
        raise SnapshotError("the journal has no entries")
    return state, entries


def _object(number: int, line: str) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        data = None
    if not isinstance(data, dict):
        found = f" but begins with {shortened(line, 40)!r}" if number == 1 else ""
        raise SnapshotError(
            f"this line is not a JSON object{found}: use a file that whyloop export wrote, and all of it",
            f"line {number}",
        )
    return data


class _Line(msgspec.Struct, frozen=True):
    entry: msgspec.Raw


def _entry(number: int, line: str, about: str) -> str:
    """Return the entry on a line, exactly as it was written."""
    try:
        return bytes(msgspec.json.decode(line, type=_Line).entry).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise SnapshotError(
            f"this line is cut off, or is not an entry of a session, in {about}: export it again",
            f"line {number}",
        ) from None
