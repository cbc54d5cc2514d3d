"""Sessions that go elsewhere: forked, exported, imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from whyloop.errors import ConfigurationError, SnapshotError
from whyloop.stores.records import Stored, checked_id
from whyloop.values.ids import new_id
from whyloop.values.open_step import OpenStep
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import counted
from whyloop.values.times import utc_now
from whyloop.wire.journal import Entry, entries_of, entry_between, folded, state_of

FORMAT = "whyloop-sessions"
VERSION = 1
HEADER = msgspec.json.encode({"format": FORMAT, "version": VERSION}).decode()


def forked(
    agent_id: str, texts: Sequence[str], step: int | None, new_agent_id: str
) -> tuple[AgentState, list[str]]:
    """The state and the journal of a session that branches off another one after a step."""
    entries = entries_of(texts)
    kept = len(entries) if step is None else _entries_up_to(step, entries)
    state = folded(new_agent_id, entries[:kept])
    now = utc_now()
    # Nobody runs it yet, so it has not been cut off either.
    status = AgentStatus.PENDING if state.status is AgentStatus.IN_PROGRESS else state.status
    branch = replace(
        state.with_metadata(forked_from={"agent_id": agent_id, "step": state.step_count}),
        status=status,
        state_info=replace(state.state_info, started_at=now, updated_at=now),
        open_step=state.open_step and _undecided(state.open_step),
        # Its calls are not those of the session that it came from, whatever their numbers.
        execution=replace(state.execution, id=new_id()),
    )
    return branch, [*texts[:kept], entry_between(state, branch)]


def _undecided(step: OpenStep) -> OpenStep:
    """The step with every decision taken back that was not carried out: it was about another session."""
    calls = [
        replace(call, question=call.approvals[-1].question, approvals=(), arguments=None)
        if call.approvals and not (call.is_done or call.is_waiting)
        else call
        for call in step.calls
    ]
    return replace(step, calls=tuple(calls))


def _entries_up_to(step: int, entries: Sequence[Entry]) -> int:
    """How many entries there are up to the one that has this step of the session, from 1."""
    taken = 0
    for index, entry in enumerate(entries):
        if taken < step <= taken + entry.step_count:
            if step < taken + entry.step_count:
                raise ConfigurationError(
                    f"the steps up to {taken + entry.step_count} were stored at once: "
                    "the session can be forked there, and at every step after it"
                )
            return index + 1
        taken += entry.step_count
    raise ConfigurationError(f"there is no step {step} to fork at: the session has {counted(taken, 'step')}")


def exported(stored: Stored) -> Iterator[str]:
    """A session as lines: one that names it, then one an entry."""
    session = {"session": stored.summary.agent_id, "entries": len(stored.entries)}
    yield msgspec.json.encode(session).decode()
    for text in stored.entries:
        yield f'{{"entry":{text}}}'


def imported(lines: Iterable[str]) -> Iterator[tuple[AgentState, list[str]]]:
    """The sessions of an exported file, one by one; a `SnapshotError` names the line that is broken."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    number, first = next(numbered, (1, ""))
    header = _object(number, first)
    if header.get("format") != FORMAT:
        raise SnapshotError("this is no file of exported sessions: it lacks the first line", "line 1")
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
            state = state_of(agent_id, texts)
        except SnapshotError as error:
            raise SnapshotError(
                f"session {agent_id!r}, from line {number + 1} on: {error}", error.path
            ) from None
        yield state, texts


def _object(number: int, line: str) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        data = None
    if not isinstance(data, dict):
        raise SnapshotError("this line is no JSON object", f"line {number}")
    return data


class _Line(msgspec.Struct, frozen=True):
    entry: msgspec.Raw


def _entry(number: int, line: str) -> str:
    """The entry of a line, in the very text that it was written in."""
    try:
        return bytes(msgspec.json.decode(line, type=_Line).entry).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise SnapshotError("an entry of a session was expected here", f"line {number}") from None
