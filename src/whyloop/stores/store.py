"""The contract of a store: the primitives that each store implements, and what all stores share.

A session is stored as a journal, to which entries are only ever appended, and a summary by which it is
listed. A store reads neither the bodies of entries nor the states of checkpoints. The version of a
session is the number of its entries.

A session is free if no runner holds a lease of it, if the lease has lapsed, or if its runner is dead. A
runner is a store object: it is dead once it was closed or garbage-collected, or its process has ended. A
store detects this at once if it can; otherwise the time of the lease decides.

A durable lease belongs to an engine, such as a workflow, and not to a runner: its time alone decides.
A workflow that may be open is recorded too. Until the record is forgotten, the session cannot be deleted,
whether it runs or not.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.rules.criteria import ContinuationCriteria, stop_transitions
from whyloop.stores.listing import summary_of
from whyloop.stores.live import ChunkReceiver, Deliver
from whyloop.stores.reading import (
    HEADER,
    Plan,
    Reading,
    Recorded,
    export_session,
    fork_session,
    imported,
    read_session,
    release_all,
)
from whyloop.stores.records import (
    Chunk,
    Lease,
    OpenWorkflow,
    Page,
    RequestKey,
    SessionFilter,
    Stored,
    Summary,
    Tally,
    checked_id,
    checked_limit,
)
from whyloop.values.approval import Verdict
from whyloop.values.continuation import StopReason
from whyloop.values.decisions import decide
from whyloop.values.encoding import comparable, jsonable
from whyloop.values.scalars import new_id, utc_now
from whyloop.values.state import UNNAMED_PERSON, AgentState, AgentStatus
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.text import clean, shortened
from whyloop.values.transitions import MetadataSet, Restored, with_entries
from whyloop.wire.journal import Checkpoint, Entry, entries_of

PAGE = 50
UNATTENDED = 100
_A_MOMENT, _PATIENCE = 0.02, 25


class Store(ABC):
    """A store of sessions. Failures raise a `StoreError`, and leave the stored data unchanged.

    A cancellation does not cut a write off, not even one that waits. If the write fails, its error is raised;
    if it succeeds, the cancellation is delivered. So a caller that is cancelled in a write knows that it was
    made. A cancelled caller of `acquire` has no lease: one that was acquired is released again, unless it is
    durable.
    """

    name: str = "store"
    """A short name of the store for people, without paths and passwords."""
    inline: bool = False
    """True if `acquire` suspends at most to wait for other writers, and acquires nothing if it is cancelled
    then.
    """

    # Journals

    @abstractmethod
    async def create(
        self, summary: Summary, entries: Sequence[Entry], *, key: RequestKey | None = None
    ) -> None:
        """Store a new session, or raise a `SessionExistsError` and store nothing.

        The session keeps the identity of this summary.
        """

    @abstractmethod
    async def append(
        self,
        agent_id: str,
        entries: Sequence[Entry],
        *,
        after: int,
        lease: Lease | None = None,
        summary: Summary | None = None,
        release: bool = False,
        key: RequestKey | None = None,
    ) -> str | None:
        """Append entries at version `after`: all or none, durable on return.

        Checked in this order: `SessionNotFoundError`; `KeyUsedError` if the session has the key already;
        `LeaseLostError` if the lease is not the current one any more, or without a lease
        `SessionRunningError` unless the session is free; `ConflictError` at any other version.

        With a summary, the session is listed like that from now on, and keeps its identity. If the last entry
        has counts, they take the place of those of the summary. `release` releases the lease in the same
        transaction. `key` is stored in it too, with the version after the last entry. Return the reason of a
        stop request that reached this lease, if there is one.

        Args:
            after: The version of the session that the writer knows.
            release: True to release the lease too. Default: False.
        """

    @abstractmethod
    async def key(self, agent_id: str, key: str) -> tuple[str, int] | None:
        """Return the digest and version that were stored under a key, or None.

        Args:
            key: The key, as text.
        """

    @abstractmethod
    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        """Return the summary and up to `limit` entries after the first `after`.

        The summary's version is that of the whole journal. `SessionNotFoundError` if there is none.

        Args:
            after: The number of entries to skip. Default: 0.
            limit: The maximum number of entries. Default: all.
        """

    async def read_listed(self, sessions: Sequence[Summary]) -> Sequence[Sequence[str] | None]:
        """Return the entries of these sessions, up to the listed versions.

        None for a session that was deleted since. A database reads them all with one query.

        Args:
            sessions: The sessions, as the store listed them: some short ones, since all entries are held.
        """
        return await asyncio.gather(*[self._entries_of(summary) for summary in sessions])

    async def _entries_of(self, summary: Summary) -> Sequence[str] | None:
        with suppress(SessionNotFoundError):
            stored = await self.read(summary.agent_id, limit=summary.version)
            if stored.summary.identity == summary.identity:
                return stored.entries
        return None

    @abstractmethod
    async def checkpoint(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        seq: int | None = None,
        step_count: int | None = None,
        message_count: int | None = None,
    ) -> tuple[int, Checkpoint] | None:
        """Return the newest matching checkpoint and the version to read from.

        A checkpoint fits if it is of this execution, and if its seq, step count and message count are at
        most those given. Its entry is the first of `read(agent_id, after=version)`. None if none fits.

        Args:
            execution_id: The execution. Default: any.
            seq: The number of an envelope. Default: any.
            step_count: The number of steps. Default: any.
            message_count: The number of messages. Default: any.
        """

    @abstractmethod
    async def versions(self, agent_ids: Collection[str]) -> Mapping[str, tuple[str, int]]:
        """Return the identity and version of existing sessions, in one cheap query."""

    # Leases

    @abstractmethod
    async def acquire(self, agent_id: str, owner: str, seconds: float, *, durable: bool = False) -> Lease:
        """Acquire the right to run a session, or raise a `SessionRunningError`.

        The lease names the identity and the version that the session has at that moment.

        A lease lapses when its seconds have passed without being renewed. A lease that seems to last for more
        than twice its seconds (because a clock was set back) has lapsed too. A stop request that the previous
        runner did not receive passes to this lease.

        A durable lease outlives the store object and the process that acquired it. Any store object that has
        it may append, renew and release. While it is held, only its owner may acquire a durable lease again:
        the new lease has a higher token, gets the stop request of the previous one, and makes that one void.
        This never happens to a runner's lease.

        Args:
            owner: The name of the runner, for errors and lists; for a durable lease, a unique name of the
                engine's run.
            seconds: How long the lease lasts without being renewed.
            durable: True for a lease that belongs to no store object. Default: False.
        """

    @abstractmethod
    async def renew(self, lease: Lease) -> str | None:
        """Renew a lease from now on; return the reason of a stop request, if any.

        `LeaseLostError` if another runner has taken it; a lapsed lease that no runner took is kept. A lease
        is bound to the store object that renews it, unless it is durable.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> str | None:
        """Release a lease; do nothing if another runner has taken it.

        Return the reason of a stop request, which is then forgotten.
        """

    @abstractmethod
    async def ask_to_stop(self, agent_id: str, reason: str, *, key: RequestKey | None = None) -> bool:
        """Leave a stop request for the session's runner; False if it has none.

        `key` is stored in the same transaction, with the version of the session; not if there is no runner.
        `KeyUsedError` if the session has the key already.
        """

    @abstractmethod
    async def stop_requests(self, leases: Collection[Lease]) -> Mapping[int, str]:
        """Return the stop requests for these leases, by token, in one query."""

    # Lists

    @abstractmethod
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        """Return a page of sessions, newest first.

        `after` is the `next` of the previous page.

        Args:
            limit: The number of sessions on the page.
            after: The cursor; None is the first page.
        """

    @abstractmethod
    async def tally(self, wanted: SessionFilter, *, since: datetime) -> tuple[Tally, ...]:
        """Count sessions by status, stop reason, rule and the day of their last change.

        A day has 24 hours, and the first one begins at `since`.

        Args:
            wanted: Which sessions to count.
            since: The beginning of the first day.
        """

    @abstractmethod
    async def waiting(
        self, metadata: Mapping[str, str | int | float | bool | None], *, limit: int
    ) -> tuple[Summary, ...]:
        """Return sessions with questions for a person, least recently updated first.

        Args:
            metadata: Entries that the metadata has.
            limit: The maximum number of sessions.
        """

    @abstractmethod
    async def unattended(
        self, *, limit: int = UNATTENDED, agents: Collection[str] | None = None
    ) -> tuple[Summary, ...]:
        """Return free sessions that could continue, least recently updated first.

        They are in progress, or paused without an open question for a person.

        Args:
            limit: The maximum number of sessions.
            agents: Only sessions of agents with these names. Default: of all agents.
        """

    # Claims

    @abstractmethod
    async def keep_claim(self, agent_id: str, data: bytes) -> str:
        """Keep bytes for a session, and return their SHA-256 digest as the key.

        They are durable on return.

        The same bytes are kept once for a session. The caller needs no lease, and a lease of a runner does
        not prevent it. `SessionNotFoundError` for an unknown session; `ConfigurationError` for anything but
        bytes, and for more than 100 MB of them. Claims are removed only with their session. They are not
        part of an export, and a fork has none. Large claims must not block the event loop.

        Args:
            data: The bytes.
        """

    @abstractmethod
    async def claim(self, agent_id: str, key: str) -> bytes:
        """Return the bytes that were kept under a key, after checking their digest.

        `SessionNotFoundError` for an unknown session; `StoreError` if it has no such claim, or if the bytes
        are not the ones that were kept; `ConfigurationError` for a key that is not a digest.

        Args:
            key: The key that `keep_claim` returned.
        """

    # Workflows

    @abstractmethod
    async def record_workflow(self, agent_id: str, engine: str, workflow: str) -> OpenWorkflow:
        """Record that the workflow of an engine may be open, durable on return.

        Record it before the workflow starts. Until it is forgotten, the session cannot be deleted, because a
        replay of the workflow needs its journal and its claims. The same workflow can be recorded again,
        which gives the record a higher token. A record is not part of an export, and a fork has none.

        Checked in this order: `ConfigurationError` for names that are not text; `SessionNotFoundError`;
        `WorkflowOpenError` if another workflow is recorded.

        Args:
            engine: The name of the engine.
            workflow: The id of the workflow at the engine.
        """

    @abstractmethod
    async def open_workflows(self, engine: str, *, limit: int) -> tuple[OpenWorkflow, ...]:
        """Return recorded workflows of sessions that have ended, or never began.

        The oldest records come first.

        Args:
            engine: The name of the engine.
            limit: The maximum number of workflows.
        """

    @abstractmethod
    async def forget_workflow(self, agent_id: str, token: int) -> None:
        """Forget a workflow that is closed, unless it was recorded again.

        Args:
            token: The token of the record.
        """

    # Removal

    @abstractmethod
    async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
        """Remove a session with everything that belongs to it, including claims.

        Checked in this order: `SessionNotFoundError`; `SessionRunningError` unless the session is free;
        `WorkflowOpenError` if a workflow is recorded for it; `ConflictError` at any other version than the
        expected one.
        """

    # Streaming text

    @abstractmethod
    async def send_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Send streaming text to followers at other store objects, as far as possible.

        Call it about every 100 ms, with the text of all sessions. Nothing is written for a session that
        no other store object follows, and an error is logged once instead of raised.
        """

    @abstractmethod
    def receive_chunks(self, deliver: Deliver) -> ChunkReceiver:
        """Return a receiver that calls `deliver` on the event loop within 150 ms."""

    # Shared by all stores

    @abstractmethod
    async def close(self) -> None:
        """Release files and connections; a closed store cannot be used again.

        Its leases are void, except for durable ones.
        """

    def now(self) -> datetime:
        """Return the time of decisions, by the clock of the store."""
        return utc_now()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def sessions(
        self,
        *,
        status: AgentStatus | str | None = None,
        stop_reason: StopReason | str | None = None,
        started_after: datetime | None = None,
        started_before: datetime | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        resolved_by: str | None = None,
        agent: str | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        waiting: bool = False,
        search: str | None = None,
        limit: int = PAGE,
        after: str | None = None,
    ) -> Page:
        """Return a page of the sessions that meet every condition, newest first.

        Args:
            status: The status. Default: any.
            stop_reason: The reason for which the last run ended. Default: any.
            started_after: Only sessions created after this time. Default: any.
            started_before: Only sessions created before this time. Default: any.
            metadata: Entries that the metadata has. Default: any.
            resolved_by: The rule that decided last. Default: any.
            agent: The name of the agent. Default: any.
            updated_before: Only sessions last changed before this time. Default: any.
            updated_after: Only sessions last changed after this time. Default: any.
            waiting: True for only sessions with questions that wait for a person. Default: False.
            search: Terms that all occur in the id, the metadata, the first or last query, the last answer or
                the reason, the beginning of each. Default: any.
            limit: The number of sessions on the page. Default: 50.
            after: The `next` of the previous page. Default: the first page.
        """
        updated_before = _with_zone("updated_before", updated_before)
        ends = [_with_zone("started_before", started_before), updated_before]
        wanted = SessionFilter(
            status=_member(AgentStatus, "status", status),
            stop_reason=_member(StopReason, "stop_reason", stop_reason),
            started_after=_with_zone("started_after", started_after),
            # A session starts before it is updated, so the list need not be read from its top.
            started_before=min([end for end in ends if end is not None], default=None),
            metadata=metadata or {},
            resolved_by=resolved_by,
            agent=agent,
            updated_before=updated_before,
            updated_after=_with_zone("updated_after", updated_after),
            waiting=waiting,
            search=search,
        )
        return await self.find(wanted, limit=checked_limit(limit), after=after)

    # Derived operations

    async def load(self, agent_id: str) -> AgentState:
        """Return a session as it was last recorded."""
        return (await read_session(self, agent_id)).state

    async def add(self, state: AgentState, *, key: RequestKey | None = None) -> None:
        """Store a session from elsewhere."""
        checked_id(state.agent_id)
        name = key.key if key else None
        restored = Restored(self.now(), identity=state.identity, state=state.to_dict(), key=name)
        entries = entries_of([restored], AgentState(agent_id=state.agent_id))
        await self.create(summary_of(state), entries, key=key)

    async def request_stop(
        self,
        agent_id: str,
        reason: str,
        *,
        key: RequestKey | None = None,
        criteria: ContinuationCriteria | None = None,
    ) -> bool:
        """Stop a session's run in any process; return False if none was running.

        A session without a runner, because it is paused or its process died, is stopped at once.

        Args:
            criteria: The criteria of its agent, evaluated if there is no runner. Default: none, so that the
                outcome of such a stop has the evaluation of `StopRequestedCheck` alone and is `partial`.
        """
        if not isinstance(reason, str):
            raise ConfigurationError(f"invalid reason {reason!r}: the reason to stop must be text")
        recorded = await self.record_stop(agent_id, reason, key=key, criteria=criteria)
        return recorded is None or bool(recorded.transitions)

    async def approve(
        self, agent_id: str, question_id: str, *, by: str = UNNAMED_PERSON, key: RequestKey | None = None
    ) -> AgentState:
        """Approve a pending tool call; it runs when the session is resumed."""
        return await self.decide(agent_id, question_id, Verdict.APPROVED, by=by, key=key)

    async def deny(
        self,
        agent_id: str,
        question_id: str,
        reason: str = "",
        *,
        by: str = UNNAMED_PERSON,
        key: RequestKey | None = None,
    ) -> AgentState:
        """Deny a pending tool call; the model gets the reason."""
        return await self.decide(agent_id, question_id, Verdict.DENIED, by=by, reason=reason or None, key=key)

    async def edit(
        self,
        agent_id: str,
        question_id: str,
        arguments: Mapping[str, object],
        *,
        by: str = UNNAMED_PERSON,
        key: RequestKey | None = None,
    ) -> AgentState:
        """Approve a pending tool call with other arguments."""
        return await self.decide(agent_id, question_id, Verdict.EDITED, by=by, arguments=arguments, key=key)

    async def decide(
        self,
        agent_id: str,
        question_id: str,
        verdict: Verdict,
        *,
        by: str = UNNAMED_PERSON,
        reason: str | None = None,
        arguments: Mapping[str, object] | None = None,
        key: RequestKey | None = None,
    ) -> AgentState:
        """Record a person's answer to a question; repeating an answer changes nothing.

        Args:
            verdict: The decision.
        """
        name = key.key if key else None

        def plan(reading: Reading) -> Sequence[AnyTransition]:
            return decide(reading.state, question_id, verdict, by, self.now(), reason, arguments, name)

        return (await self.record(agent_id, plan, key=key)).after.state

    async def set_metadata(
        self,
        agent_id: str,
        entries: Mapping[str, object],
        *,
        by: str | None = None,
        key: RequestKey | None = None,
    ) -> AgentState:
        """Merge entries into the metadata of a session; lists and searches find it by them at once.

        `SessionRunningError` while a run of the session is in progress.

        Args:
            entries: The entries; None removes one.
            by: The person or program that sets them, for the record. Default: unknown.
        """
        plan = self.metadata_plan(entries, by, key)
        return (await self.record(agent_id, plan, key=key)).after.state

    def metadata_plan(self, entries: Mapping[str, object], by: str | None, key: RequestKey | None) -> Plan:
        """Return the plan to record a change of metadata; entries that are there already change nothing."""
        if not isinstance(entries, Mapping) or not all(isinstance(name, str) for name in entries):
            raise ConfigurationError(
                f"invalid metadata {shortened(repr(entries), 80)}: use a mapping from names to values"
            )
        if by is not None and not isinstance(by, str):
            raise ConfigurationError(f"invalid by={shortened(repr(by), 80)}: use the name of a person")
        given, name = jsonable(entries), key.key if key else None
        lost = [each for each, value in entries.items() if value is not None and given[each] is None]
        if lost:  # It would remove the entry.
            raise ConfigurationError(
                f"invalid metadata {lost[0]}={entries[lost[0]]!r:.80}: JSON has no such number"
            )
        clean_by = None if by is None else clean(by)

        def plan(reading: Reading) -> Sequence[AnyTransition]:
            metadata = reading.state.metadata
            if comparable(with_entries(metadata, given)) == comparable(metadata):
                return ()
            return [MetadataSet(self.now(), entries=given, by=clean_by, key=name)]

        return plan

    async def record_stop(
        self,
        agent_id: str,
        reason: str,
        key: RequestKey | None = None,
        criteria: ContinuationCriteria | None = None,
    ) -> Recorded | None:
        """Ask the runner to stop and return None, or record the stop without one.

        Args:
            criteria: The criteria of its agent, as for `request_stop`. Default: none.
        """
        reason, name = clean(reason), key.key if key else None

        def plan(reading: Reading) -> Sequence[AnyTransition]:
            state = reading.state
            is_over = state.status.has_ended or not state.messages
            return () if is_over else stop_transitions(state, reason, self.now(), name, criteria)

        while not await self.ask_to_stop(agent_id, reason, key=key):
            with suppress(SessionRunningError):  # A runner has just continued it, and can be asked.
                return await self.record(agent_id, plan, key=key)
        return None

    async def record(self, agent_id: str, plan: Plan, *, key: RequestKey | None = None) -> Recorded:
        """Record the transitions that a plan makes for a session without a runner.

        Args:
            plan: A function from the session to the transitions to record.
        """
        reading, patience = None, _PATIENCE
        while True:
            reading = await read_session(self, agent_id, reading)
            before = state = reading.state
            transitions = plan(reading)
            if not transitions:
                return Recorded(reading, (), reading)
            for transition in transitions:
                state = transition.apply_to(state)
            entries, summary = entries_of(transitions, before), summary_of(state)
            version = reading.version + len(entries)
            listed = replace(reading.summary, version=version, runner=None)
            try:
                await self.append(agent_id, entries, after=reading.version, summary=summary, key=key)
                return Recorded(reading, transitions, Reading(listed, state, version))
            except ConflictError:
                continue  # Another change came first, and may change the plan.
            except SessionRunningError:
                if before.status is not AgentStatus.PAUSED or not patience:
                    raise
                patience -= 1  # The runner that paused it is about to release its lease.
                await asyncio.sleep(_A_MOMENT)

    async def fork(
        self,
        agent_id: str,
        *,
        step: int | None = None,
        new_agent_id: str | None = None,
        expected_version: int | None = None,
        key: RequestKey | None = None,
        criteria: ContinuationCriteria | None = None,
    ) -> AgentState:
        """Create a session with the history of this one, up to a step.

        Steps are counted from the first of the session.

        `ConflictError` if the session is at any other version than the expected one.

        Args:
            step: The number of the step, from 1 on. Default: the last one.
            new_agent_id: The id of the new session. Default: a new one.
            criteria: The criteria of its agent, evaluated if the fork asks a person. Default: none, so that
                the outcome of its pause has the evaluation of `ApprovalRequired` alone and is `partial`.
        """
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 1):
            raise ConfigurationError(f"invalid step {step!r}: use 1 or more")
        state, entries = await fork_session(
            self,
            agent_id,
            new_id() if new_agent_id is None else checked_id(new_agent_id),
            self.now(),
            step=step,
            expected_version=expected_version,
            key=key.key if key else None,
            criteria=criteria,
        )
        await self.create(summary_of(state), entries, key=key)
        release_all(list(entries))
        return state

    async def export(self, *agent_ids: str) -> AsyncIterator[str]:
        """Yield these sessions, or all of them, as the lines of a JSON lines file.

        Args:
            *agent_ids: The ids of the sessions. Default: all.
        """
        yield HEADER
        if agent_ids:
            for agent_id in agent_ids:
                async for line in export_session(self, agent_id):
                    yield line
            return
        async for page in pages(self):
            for summary in page.sessions:
                async for line in export_session(self, summary.agent_id):
                    yield line

    async def import_lines(self, lines: Iterable[str], *, skip_existing: bool = False) -> list[str]:
        """Import the sessions of an exported file, and return their ids.

        Each session is stored completely or not at all.

        If a session already exists, raise an error, or skip it.

        Args:
            lines: The lines of the file.
            skip_existing: True to skip sessions that already exist. Default: False.
        """
        stored: list[str] = []
        for state, entries in imported(lines):
            try:
                await self.create(summary_of(state), entries)
            except SessionExistsError:
                if not skip_existing:
                    raise
                continue
            stored.append(state.agent_id)
        return stored


async def pages(store: Store, *, limit: int = PAGE, **filters: Any) -> AsyncIterator[Page]:
    """Yield the pages of the sessions that meet every condition, newest first."""
    after: str | None = None
    while True:
        page = await store.sessions(limit=limit, after=after, **filters)
        yield page
        after = page.next
        if after is None:
            return


M = TypeVar("M", bound=StrEnum)


def _member(kind: type[M], name: str, value: str | None) -> M | None:
    known = [member.value for member in kind]
    if value is not None and value not in known:
        raise ConfigurationError(f"invalid {name} {value!r}: choose from {', '.join(known)}")
    return None if value is None else kind(value)


def _with_zone(name: str, moment: datetime | None) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise ConfigurationError(f"{name} needs a time zone: use datetime.now(UTC) or replace(tzinfo=UTC)")
    return moment
