"""The contract of a store: thirteen things that each does in its own way, and what follows from them for all.

A session is stored as a journal, to which entries are only ever added, and a summary by which it
is listed. An entry is what changed from one version of the state to the next, so a step costs the
same whatever came before it, and a state is read back by folding the entries. Beside it, for those who
watch, is what was told of the session, where somebody keeps that: it can be replayed, and nothing else
depends on it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
)
from whyloop.rules.continuation.stopped import stopped
from whyloop.stores.copies import HEADER, exported, forked, imported
from whyloop.stores.records import Lease, Page, SessionFilter, Stored, Summary, Told, checked_id, summary_of
from whyloop.values.continuation import StopReason
from whyloop.values.ids import new_id
from whyloop.values.state import SOMEBODY, AgentState, AgentStatus
from whyloop.values.text import clean
from whyloop.values.times import utc_now
from whyloop.wire.journal import entry_between, state_of

PAGE = 50
EVENTS = 100
_A_MOMENT, _PATIENCE = 0.02, 25


class Store(ABC):
    """Where sessions live. Whatever fails raises a `StoreError`, and what was stored stays as it was."""

    inline: ClassVar[bool] = False
    """True if no call ever waits with something half done, so that a cancellation does no harm."""

    # What each store does in its own way

    @abstractmethod
    async def create(self, summary: Summary, entries: Sequence[str]) -> None:
        """Store a new session, all of it or nothing; `SessionExistsError` if its id is taken."""

    @abstractmethod
    async def append(
        self,
        agent_id: str,
        entries: Sequence[str],
        *,
        after: int,
        lease: Lease | None = None,
        summary: Summary | None = None,
        release: bool = False,
    ) -> str | None:
        """Add entries to the journal that has `after` of them: all or none, and durable on return.

        A `ConflictError` if it has another number of them. Who runs the session shows the lease,
        and gets a `LeaseLostError` if another runner holds it now; who does not, a
        `SessionRunningError` while anybody's lease has time left. With a summary, the session is
        listed like that from now on; `release` gives the lease back in the same breath.
        Returns the words of a request to stop that reached this lease, if there is one.
        """

    @abstractmethod
    async def read(self, agent_id: str, *, after: int = 0) -> Stored:
        """The summary and every entry after the first `after`; `SessionNotFoundError` if there is none."""

    @abstractmethod
    async def acquire(self, agent_id: str, owner: str, seconds: float) -> Lease:
        """Get the right to run a session; `SessionRunningError` while somebody else has it.

        A lease lapses when its seconds have passed without being renewed. One that seems to last for
        more than twice its seconds (a clock was put back) has lapsed too. Words that nobody heard,
        since the one who was to hear them has died, are for the next to hear.
        """

    @abstractmethod
    async def renew(self, lease: Lease) -> str | None:
        """Keep a lease for its seconds from now; returns the words of a request to stop, if there is one.

        `LeaseLostError` if another runner has taken it; one that lapsed and that nobody took is kept.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> str | None:
        """Give a lease back; without effect if it is somebody else's by now.

        Returns the words of a request to stop, which are then forgotten.
        """

    @abstractmethod
    async def ask_to_stop(self, agent_id: str, reason: str) -> bool:
        """Leave words for whoever holds the session's lease; False if nobody does."""

    @abstractmethod
    async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
        """A page of sessions, the youngest first; `after` is the `next` of the page before."""

    @abstractmethod
    async def delete(self, agent_id: str) -> None:
        """Forget a session; `SessionRunningError` while somebody runs it."""

    @abstractmethod
    async def add_events(self, agent_id: str, told: Sequence[Told]) -> int:
        """Keep what was told of a session, after all that is kept of it: all or none, whoever runs it.

        Returns the position of the last one. The first of a session has 1, and there are no gaps.
        """

    @abstractmethod
    async def events(self, agent_id: str, *, after: int = 0, limit: int = EVENTS) -> tuple[Told, ...]:
        """What was told of a session after a position, the oldest first."""

    @abstractmethod
    async def last_event(
        self, agent_id: str, *, execution_id: str | None = None, up_to: int | None = None
    ) -> Told | None:
        """What was told last of a session; of one execution, what has the greatest number up to one.

        What two processes tell of an execution may come in another order than their numbers.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of files and connections; a store that was closed is of no more use."""

    # What a store may do in its own way

    adds_at_once: ClassVar[bool] = False
    """True if `add_at_once` is worth a try."""

    poll_seconds: float = 0.1
    """How often somebody who waits for events looks for them, where the store does not tell."""

    async def wait_for_events(self, agent_id: str, *, after: int) -> None:
        """Return as soon as there is something that was told after a position, by whatever process."""
        while not await self.has_events(agent_id, after=after):  # noqa: ASYNC110
            await asyncio.sleep(self.poll_seconds)

    async def last_position(self, agent_id: str) -> int:
        """The position of what was told last; 0 if nothing was."""
        last = await self.last_event(agent_id)
        return 0 if last is None else last.position

    async def has_events(self, agent_id: str, *, after: int) -> bool:
        """Whether something was told after a position that there was once."""
        position = await self.last_position(agent_id)
        if position < after:  # Another session has the id by now.
            raise SessionNotFoundError(agent_id)
        return position > after

    def now(self) -> datetime:
        """The time by which what people decide is dated."""
        return utc_now()

    def add_at_once(self, lease: Lease, entry: str, after: int) -> bool:
        """Append one entry without waiting for anything, if there is nothing to say against it.

        False if it was not done, for whatever reason; `append` will find out which.
        """
        return False

    # What follows from it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def load(self, agent_id: str) -> AgentState:
        """A session as it was last recorded."""
        stored = await self.read(agent_id)
        return state_of(agent_id, stored.entries)

    async def sessions(
        self,
        *,
        status: AgentStatus | str | None = None,
        stop_reason: StopReason | str | None = None,
        started_after: datetime | None = None,
        started_before: datetime | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        limit: int = PAGE,
        after: str | None = None,
    ) -> Page:
        """The sessions for which all of this holds, the youngest first, a page at a time."""
        wanted = SessionFilter(
            status=_member(AgentStatus, "status", status),
            stop_reason=_member(StopReason, "stop_reason", stop_reason),
            started_after=_with_zone("started_after", started_after),
            started_before=_with_zone("started_before", started_before),
            metadata=metadata or {},
        )
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigurationError(f"a page shows one session or more, so its limit cannot be {limit!r}")
        return await self.find(wanted, limit=limit, after=after)

    async def add(self, state: AgentState) -> None:
        """Store a session that lived elsewhere until now."""
        checked_id(state.agent_id)
        await self.create(summary_of(state), [entry_between(None, state)])

    async def request_stop(self, agent_id: str, reason: str) -> bool:
        """End a session's run at its next safe point, for this reason, wherever it runs.

        One that nobody runs, because it is paused or its process died, is stopped at once.
        False if there was nothing to stop.
        """
        if not isinstance(reason, str):
            raise ConfigurationError(f"the reason to stop is given in words, not as {reason!r}")
        reason = clean(reason)
        while not await self.ask_to_stop(agent_id, reason):
            stored = await self.read(agent_id)
            state = state_of(agent_id, stored.entries)
            if state.status.has_ended or not state.messages:
                return False
            try:
                await self._write(stored, state, stopped(state, reason, self.now()))
            except (ConflictError, SessionRunningError):
                continue  # Somebody went on with it at this very moment, and is to be told.
            return True
        return True

    async def approve(self, agent_id: str, call_id: str, *, by: str = SOMEBODY) -> AgentState:
        """Let a pending tool call run; whoever resumes the session runs it."""
        return await self._decide(agent_id, lambda state: state.approve(call_id, by=by, now=self.now()))

    async def deny(self, agent_id: str, call_id: str, reason: str = "", *, by: str = SOMEBODY) -> AgentState:
        """Do not let a pending tool call run; the model is told the reason."""
        return await self._decide(agent_id, lambda state: state.deny(call_id, reason, by=by, now=self.now()))

    async def edit(
        self, agent_id: str, call_id: str, arguments: Mapping[str, object], *, by: str = SOMEBODY
    ) -> AgentState:
        """Let a pending tool call run with other arguments."""
        return await self._decide(
            agent_id, lambda state: state.edit(call_id, arguments, by=by, now=self.now())
        )

    async def _decide(self, agent_id: str, decide: Callable[[AgentState], AgentState]) -> AgentState:
        patience = _PATIENCE
        while True:
            stored = await self.read(agent_id)
            state = state_of(agent_id, stored.entries)
            decided = decide(state)
            try:
                await self._write(stored, state, decided)
            except ConflictError:
                continue  # Another decision came first; this one may still be open.
            except SessionRunningError:
                if state.status is not AgentStatus.PAUSED or not patience:
                    raise
                patience -= 1  # Who paused it is about to let go of it.
                await asyncio.sleep(_A_MOMENT)
                continue
            return decided

    async def _write(self, stored: Stored, before: AgentState, after: AgentState) -> None:
        """Record a change that somebody made who does not run the session."""
        await self.append(
            after.agent_id,
            [entry_between(before, after)],
            after=stored.summary.version,
            summary=summary_of(after),
        )

    async def fork(
        self, agent_id: str, *, step: int | None = None, new_agent_id: str | None = None
    ) -> AgentState:
        """A new session with the history of this one up to a step, counted from the session's first."""
        if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
            raise ConfigurationError(f"a step is given by its number, from 1 on, and not as {step!r}")
        stored = await self.read(agent_id)
        new_agent_id = new_id() if new_agent_id is None else checked_id(new_agent_id)
        state, entries = forked(agent_id, stored.entries, step, new_agent_id)
        await self.create(summary_of(state), entries)
        return state

    async def export(self, *agent_ids: str) -> AsyncIterator[str]:
        """These sessions, or all of them, as the lines of a JSON lines file."""
        yield HEADER
        if agent_ids:
            for agent_id in agent_ids:
                for line in exported(await self.read(agent_id)):
                    yield line
            return
        cursor: str | None = None
        while True:
            page = await self.sessions(after=cursor)
            for summary in page.sessions:
                for line in exported(await self.read(summary.agent_id)):
                    yield line
            cursor = page.next
            if cursor is None:
                return

    async def import_lines(self, lines: Iterable[str], *, skip_existing: bool = False) -> list[str]:
        """Store the sessions of an exported file; returns their ids.

        A session is stored whole or not at all. One that is there already is refused, or skipped.
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


M = TypeVar("M", bound=StrEnum)


def _member(kind: type[M], name: str, value: str | None) -> M | None:
    known = [member.value for member in kind]
    if value is not None and value not in known:
        raise ConfigurationError(f"{name} {value!r} is none that there is: choose from {', '.join(known)}")
    return None if value is None else kind(value)


def _with_zone(name: str, moment: datetime | None) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise ConfigurationError(f"{name} needs a time zone: use datetime.now(UTC) or replace(tzinfo=UTC)")
    return moment
