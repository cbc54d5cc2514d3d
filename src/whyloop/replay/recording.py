"""The recording of a run: its executions, each as the transitions that made it; and how two runs differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from whyloop.errors import ConfigurationError, SessionNotFoundError, SnapshotError
from whyloop.replay.reconstruction import RecordedExecution, executions_of, has_work
from whyloop.replay.result import Ending, ending_of
from whyloop.stores.reading import FIRST_READ, Reading, imported, portions_after
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.judgement import JudgedAlike
from whyloop.values.state import AgentState
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.transitions import (
    Queried,
    Restored,
    Transition,
)
from whyloop.wire.journal import JournalEntry, decode_entries, no_garbage_collection
from whyloop.wire.view import INCONSISTENT


class Recording(Struct, frozen=True):
    """A recorded run: the executions of one session."""

    agent_id: str
    """The name of the session."""
    executions: tuple[RecordedExecution, ...]
    """Its executions in order. A query on which no work has begun is not among them."""

    @classmethod
    def of(cls, run: Run) -> Recording:
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
        """Read the recording of a stored session, as it is now.

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
        if summary.version <= FIRST_READ:  # One query returns all of it: a sixth less time than in portions.
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


Run = AgentState | Mapping[str, Any] | Recording | Iterable[str]
"""A recorded run, in any of the forms in which it is kept."""


class _Reader:
    """Reads the entries of a journal into executions."""

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
        if isinstance(transition, Restored):  # What the snapshot holds can be judged as well.
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


class Difference(Struct, frozen=True):
    """The first step at which the decisions of two runs differ."""

    step: int
    """The number of the step in its execution."""
    first: ContinuationOutcome | None
    """The outcome of the step in the first run; None if that run did not take it."""
    second: ContinuationOutcome | None
    """The outcome of the step in the second run; None if that run did not take it."""
    rules: tuple[str, ...] = ()
    """The rules that decided differently."""
    reason: str = ""
    """Why the decisions differ, on one line."""

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain data."""
        document: dict[str, Any] = encoding.encode(self)
        return document

    def __str__(self) -> str:
        """Return the step and the reason."""
        return f"Step {self.step}: {self.reason}"


def diff(first: Run, second: Run) -> Difference | None:
    """Return the first step where the decisions of two runs differ, or None.

    The latest executions are compared, as recorded.

    Args:
        first: A run, in any form that `judge` takes.
        second: Another run.
    """
    one, other = _latest(first), _latest(second)
    steps = [one.execution_steps, other.execution_steps]
    for index in range(max(map(len, steps))):
        outcomes = [each[index].outcome if index < len(each) else None for each in steps]
        if (found := _difference(index + 1, *outcomes)) is not None:
            return found
    ends = ending_of(one), ending_of(other)
    if _end_of(ends[0]) != _end_of(ends[1]):  # Decided in the middle of a step.
        number = max(len(steps[0]), 1)
        reason = f"the first run was {ends[0]}, the second {ends[1]}"
        return Difference(
            number, one.last_continuation_outcome, other.last_continuation_outcome, reason=reason
        )
    return None


def _latest(run: Run) -> AgentState:
    recording = Recording.of(run)
    if not recording.executions:
        raise ConfigurationError(f"session {recording.agent_id!r} has no step to compare: run it first")
    return recording.executions[-1].after


def _end_of(ending: Ending) -> tuple[object, ...]:
    return ending.status, ending.stop_reason, ending.resolved_by


def _difference(
    number: int, one: ContinuationOutcome | None, other: ContinuationOutcome | None
) -> Difference | None:
    """Return how two outcomes of the same step differ; None if they decide alike."""
    if one is None or other is None:
        taken = other if one is None else one
        if taken is None:
            return None
        lacking, has = ("first", "second") if one is None else ("second", "first")
        reason = f"the {lacking} run did not take this step, the {has} {_decided(taken)}"
        return Difference(number, one, other, reason=reason)
    rules = _rules_that_differ(one, other)
    alike = (one.decision, one.stop_reason, one.resolved_by) == (
        other.decision,
        other.stop_reason,
        other.resolved_by,
    )
    if alike and not rules:
        return None
    if alike:
        texts = [
            f"{name} decided {_vote(one, name)} in the first run and {_vote(other, name)} in the second"
            for name in rules
        ]
        return Difference(number, one, other, rules, "; ".join(texts))
    reason = f"the first run {_decided(one)}, the second {_decided(other)}"
    return Difference(number, one, other, rules, reason)


def _rules_that_differ(one: ContinuationOutcome, other: ContinuationOutcome) -> tuple[str, ...]:
    """Return the names of the rules that decided differently.

    A rule that only one run has counts if it forbade.
    """
    names = dict.fromkeys(e.criterion for e in (*one.evaluations, *other.evaluations))
    deciding = (one.resolved_by, other.resolved_by)
    found = []
    for name in names:
        a, b = one.evaluation_for(name), other.evaluation_for(name)
        if a is None or b is None:
            differs = name in deciding
        else:
            differs = a.decision is not b.decision
        if differs:
            found.append(name)
    return tuple(found)


def _vote(outcome: ContinuationOutcome, name: str) -> str:
    evaluation = outcome.evaluation_for(name)
    return "nothing" if evaluation is None else f"{evaluation.decision} ({evaluation.reason})"


def _decided(outcome: ContinuationOutcome) -> str:
    verb = "continued" if outcome.should_continue else "paused" if outcome.pauses else "stopped"
    why = f" ({outcome.stop_reason})" if outcome.stop_reason else ""
    return f"{verb}{why} by {outcome.resolved_by}: {outcome.reason}"
