"""Sessions that are copied: forked, exported, imported."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from whyloop.errors import ConfigurationError, ConflictError, SnapshotError
from whyloop.stores.reading import Reading, entries_after, texts_after
from whyloop.stores.records import Entry, checked_id, entries_of
from whyloop.values.decisions import fork_questions
from whyloop.values.scalars import new_id, utc_now
from whyloop.values.state import AgentState
from whyloop.values.text import counted
from whyloop.values.transitions import Forked
from whyloop.wire.journal import decode_entries, encode_entry, fold, state_of

if TYPE_CHECKING:
    from whyloop.stores.store import Store

FORMAT = "whyloop-sessions"
VERSION = 1
HEADER = msgspec.json.encode({"format": FORMAT, "version": VERSION}).decode()


async def fork_session(
    store: Store,
    agent_id: str,
    new_agent_id: str,
    *,
    step: int | None,
    expected_version: int | None,
    key: str | None,
) -> tuple[AgentState, list[Entry]]:
    """Return the state and the journal of a session that branches off another one after a step.

    All of it is of one version, whatever is appended meanwhile: a journal only grows.
    """
    summary = (await store.read(agent_id, limit=0)).summary
    if expected_version is not None and summary.version != expected_version:
        raise ConflictError(agent_id, expected_version, summary.version)
    state, kept = AgentState(agent_id=agent_id), 0
    copied: list[Entry] = []
    start = Reading(summary, state, 0)
    async with aclosing(entries_after(store, start, summary.version)) as entries:
        async for entry, before, after in entries:
            copied += entries_of(entry.transitions, before.state)
            state, kept = after, before.version + 1
            if step is not None and len(state.steps) >= step:
                break
    if not kept:
        raise SnapshotError("the journal has no entries")
    if step is not None and len(state.steps) != step:
        _refuse_step(step, state, kept == summary.version)
    state = replace(state, agent_id=new_agent_id)
    fork = Forked(
        utc_now(),
        identity=new_id(),
        execution_id=new_id(),
        from_agent_id=agent_id,
        step=state.step_count,
        questions=fork_questions(state, new_id),
        key=key,
    )
    return fork.apply_to(state), [*copied, Entry(encode_entry([fork], state))]


def _refuse_step(step: int, state: AgentState, at_end: bool) -> None:
    taken = counted(len(state.steps), "step")
    if at_end and len(state.steps) < step:
        raise ConfigurationError(f"there is no step {step} to fork at: the session has {taken}")
    raise ConfigurationError(
        f"the first {taken} were stored at once: the session can be forked there, and at every step after"
    )


async def export_session(store: Store, agent_id: str) -> AsyncGenerator[str, None]:
    """Yield a session as lines: one that names it, then one for each entry."""
    summary = (await store.read(agent_id, limit=0)).summary
    yield msgspec.json.encode({"session": agent_id, "entries": summary.version}).decode()
    async with aclosing(texts_after(store, summary, 0, summary.version)) as portions:
        async for _, texts in portions:
            for text in texts:
                yield f'{{"entry":{text}}}'


def imported(lines: Iterable[str]) -> Iterator[tuple[AgentState, list[Entry]]]:
    """Yield the sessions of an exported file; a `SnapshotError` names the line that is broken."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    number, first = next(numbered, (1, ""))
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
        for _ in range(count):
            at, text = next(numbered, (number, ""))
            if not text:
                raise SnapshotError(f"the file ends in the middle of session {agent_id!r}", f"line {at}")
            texts.append(_entry(at, text))
        try:
            yield _checked(agent_id, texts)
        except SnapshotError as error:
            raise SnapshotError(
                f"session {agent_id!r}, from line {number + 1} on: {error}", error.path
            ) from None


def _checked(agent_id: str, texts: Sequence[str]) -> tuple[AgentState, list[Entry]]:
    """Return the state of a journal and its entries, with their checkpoints made again."""
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
        raise SnapshotError("this line is not a JSON object", f"line {number}")
    return data


class _Line(msgspec.Struct, frozen=True):
    entry: msgspec.Raw


def _entry(number: int, line: str) -> str:
    """Return the entry of a line, in the very text that it was written in."""
    try:
        return bytes(msgspec.json.decode(line, type=_Line).entry).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise SnapshotError("an entry of a session was expected here", f"line {number}") from None
