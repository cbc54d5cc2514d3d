"""A session as a journal: each entry has the transitions of one append.

A session is read back by applying them in order. A long one can be read from a checkpoint on: the state
before an entry, without its messages and steps.

Version 1: the first. Until the first release it may change without an upgrade.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from whyloop.errors import SnapshotError, StoreError
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.judgement import Judged, JudgedAlike
from whyloop.values.scalars import Count, Seconds
from whyloop.values.snapshot import Head, check_open_step, head_of, state_from_head
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import Answered, AnyTransition, ModelFailed
from whyloop.values.transitions import Created, Queried, Restored, Resumed
from whyloop.wire.view import INCONSISTENT

VERSION = 1

# The number of steps between checkpoints, and so the most steps that are read needlessly.
STEPS_PER_CHECKPOINT = 32


class Checkpoint(Struct, frozen=True, gc=False):
    """A position in a journal at which reading can start, with the state there, but not its history.

    A checkpoint belongs to one entry, and describes the session before that entry. Its seq is the
    number before that of the entry's first envelope.
    """

    execution_id: str
    """The execution whose envelopes start here."""
    seq: int
    """The number of the execution's last envelope before the entry."""
    step_count: int
    """The number of steps that the session has before the entry."""
    message_count: int
    """The number of messages that the session has before the entry."""
    state: str
    """The session before the entry, as JSON text that a store does not read."""


class Counts(Struct, frozen=True, gc=False, array_like=True):
    """What a session has used so far, as a list shows it while the session runs."""

    step_count: Count
    """The number of its steps."""
    tokens: Count
    """The tokens, read and written together."""
    tokens_known: bool
    """False if an answer did not report its tokens, so that `tokens` is a lower bound."""
    cost: str | None
    """The cost, a decimal number as text."""
    active_seconds: Seconds
    """The time in which models and tools were at work."""
    step_marks: str
    """A character for each of its last steps."""


class Entry(Struct, frozen=True, gc=False):
    """One append to a journal: transitions as JSON text that a store does not read."""

    body: str
    """The transitions, as JSON text."""
    checkpoint: Checkpoint | None = None
    """The state before the entry, if reading can start here."""
    counts: Counts | None = None
    """What the session has used after the entry, if that changes its summary and nothing else does."""


class JournalEntry(Struct, frozen=True, gc=False):
    """The transitions of one append, as the body of an entry holds them."""

    v: int
    """The version of the format."""
    seq: int
    """The number of the first envelope of the transitions."""
    transitions: tuple[AnyTransition, ...]
    """The transitions, in order."""


_encoder = msgspec.json.Encoder(enc_hook=encoding.describe)
_decoder = msgspec.json.Decoder(list[JournalEntry])
_head_decoder = msgspec.json.Decoder(Head)


def entries_of(
    transitions: Sequence[AnyTransition], before: AgentState, counts: Counts | None = None
) -> list[Entry]:
    """Return the entries of one append: one, or two if a query ends an execution.

    The last one has these counts.

    Reading can start where an execution begins, and after each `STEPS_PER_CHECKPOINT` steps: there the
    entry has a checkpoint.
    """
    entries, start, state = [], 0, before
    for index in range(1, len(transitions)):
        if isinstance(transitions[index], Queried):
            for earlier in transitions[start:index]:
                state = earlier.apply_to(state)
            entries.append(_entry(transitions[start:index], before))
            before, start = state, index
    entries.append(_entry(transitions[start:], before, counts))
    return entries


def _entry(transitions: Sequence[AnyTransition], before: AgentState, counts: Counts | None = None) -> Entry:
    return Entry(encode_entry(transitions, before), _checkpoint(transitions, before), counts)


def _checkpoint(transitions: Sequence[AnyTransition], before: AgentState) -> Checkpoint | None:
    if before.open_step is not None or not transitions:
        return None
    first, steps = transitions[0], before.steps.length
    execution_id, seq = before.execution.id, before.execution.last_seq
    if isinstance(first, Queried):
        execution_id, seq = first.execution_id, 0
    elif not steps or steps % STEPS_PER_CHECKPOINT:
        return None
    elif not any(isinstance(transition, Answered | ModelFailed) for transition in transitions):
        return None  # No step begins here.
    return Checkpoint(execution_id, seq, steps, before.messages.length, encode_head(before))


def encode_entry(transitions: Sequence[AnyTransition], before: AgentState) -> str:
    """Return an entry as JSON, given the state before its first transition."""
    stored = _stored(transitions, before.last_continuation_outcome)
    return _encoded(JournalEntry(VERSION, before.execution.last_seq + 1, stored))


_STARTS = frozenset((Queried, Resumed, Restored, Created))


def _stored(
    transitions: Sequence[AnyTransition], last: ContinuationOutcome | None
) -> tuple[AnyTransition, ...]:
    """Return transitions as they are stored: an outcome as a difference."""
    stored = list(transitions)
    for index, transition in enumerate(transitions):
        if isinstance(transition, Judged):
            outcome = transition.outcome
            if last is not None and JudgedAlike.can_follow(last, outcome):
                stored[index] = JudgedAlike.of(transition, last)
            last = outcome
        elif type(transition) in _STARTS:  # 0.1 µs, and 0.7 with `isinstance`.
            last = None
    return tuple(stored)


def decode_entries(texts: Sequence[str]) -> list[JournalEntry]:
    """Return the entries of a journal; a `SnapshotError` names the first invalid one."""
    try:
        entries = _decoder.decode(f"[{','.join(texts)}]")
    except msgspec.ValidationError as error:
        raise encoding.snapshot_error(str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise _unreadable(texts) from None
    for index, entry in enumerate(entries):
        if entry.v != VERSION:
            raise SnapshotError(
                f"version {min(entry.v, 10**9)} of an entry is unknown to this whyloop: upgrade whyloop",
                f"$[{index}].v",
            )
    if len(entries) != len(texts):
        raise _unreadable(texts)
    return entries


def _unreadable(texts: Sequence[str]) -> SnapshotError:
    """Return the error that names the first text that is not a JSON object."""
    for index, text in enumerate(texts):
        try:
            msgspec.json.decode(text, type=dict)
        except msgspec.ValidationError:
            return SnapshotError("the entry is not an object", f"$[{index}]")
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            return SnapshotError(f"the entry is not JSON: {error}", f"$[{index}]")
    return SnapshotError("the journal is not JSON")


def state_of(agent_id: str, texts: Sequence[str], base: AgentState | None = None) -> AgentState:
    """Return the state that a journal leads to, from its start or an earlier state."""
    with no_garbage_collection():
        state = fold(agent_id, decode_entries(texts), base)
    check_open_step(state.open_step, "$.open_step")
    return state


def fold(
    agent_id: str, entries: Sequence[JournalEntry], base: AgentState | None = None, first: int = 0
) -> AgentState:
    """Apply the transitions of entries, numbered from `first` on in errors."""
    if base is None:
        _check_beginning(entries)
    state = AgentState.before_creation(agent_id) if base is None else base
    for index, entry in enumerate(entries, first):
        if entry.seq != state.execution.last_seq + 1:
            raise SnapshotError(
                f"the entry starts at envelope {entry.seq}, not at {state.execution.last_seq + 1}",
                f"$[{index}].seq",
            )
        try:
            for transition in entry.transitions:
                state = transition.apply_to(state)
        except SnapshotError as error:
            raise SnapshotError("the entry has an invalid snapshot", f"$[{index}]{error.path[1:]}") from None
        except INCONSISTENT as error:
            raise SnapshotError(
                f"the entry does not follow from those before it: {error}", f"$[{index}]"
            ) from None
    return state


def _check_beginning(entries: Sequence[JournalEntry]) -> None:
    """Reject a journal whose first entry does not begin a session."""
    if not entries:
        raise SnapshotError("the journal has no entries")
    transitions = entries[0].transitions
    if not transitions or not isinstance(transitions[0], Created | Restored):
        raise SnapshotError("the journal lacks its beginning", "$[0]")


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Create many values without garbage collection, which takes a third of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


# Checkpoints


def encode_head(state: AgentState) -> str:
    """Return a state without its history, as JSON."""
    return _encoded(head_of(state))


def decode_head(agent_id: str, text: str) -> AgentState:
    """Return the state of a checkpoint, whose history was left out."""
    try:
        return state_from_head(agent_id, _head_decoder.decode(text))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise SnapshotError(f"the checkpoint is invalid: {error}") from None


def _encoded(value: object) -> str:
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        return _encoder.encode(encoding.encode(value)).decode()
    except RecursionError:
        raise StoreError("a value is nested too deep to be stored: see the arguments of the calls") from None
