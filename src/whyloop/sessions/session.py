"""A conversation that lives in a store, for days, across processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from whyloop.errors import (
    ConfigurationError,
    NotResumableError,
    StoreError,
    StoreUnavailableError,
)
from whyloop.events import AgentEvent, AgentStepStarted, StreamChunkReceived
from whyloop.loop.agent import Agent
from whyloop.loop.executions import Query, recover_run, refuse_edit, resume_run, start_run
from whyloop.loop.run import Run
from whyloop.loop.setup import Handler
from whyloop.loop.stream import RunStream
from whyloop.sessions.creation import create_session, read_or_create
from whyloop.stores.listing import summary_of
from whyloop.stores.live import Heartbeat, Live, SessionJournal, begin, ended, finish, live
from whyloop.stores.reading import Reading, read_session
from whyloop.stores.records import Lease, RequestKey, Summary, checked_id
from whyloop.stores.store import Store
from whyloop.values.continuation import Budget
from whyloop.values.messages import Message
from whyloop.values.scalars import D, D_contra, T, T_co, new_id
from whyloop.values.state import UNNAMED_PERSON, AgentState, AgentStatus
from whyloop.values.text import shortened
from whyloop.wire.envelope import BroadcastConfig, envelope

LEASE_SECONDS = 30.0

MakeDeps = Callable[[Summary], object | Awaitable[object]]
"""A function, sync or async, that returns the deps for a run of the session with this summary."""


async def deps_for(summary: Summary, make: MakeDeps | None) -> Any:
    """Return the deps for a run of a session; None without a function that makes them."""
    if make is None:
        return None
    made = make(summary)
    return await made if isawaitable(made) else made


def refuse_make_deps(make: object) -> None:
    """Refuse deps where a function that makes them for each session is expected."""
    if make is not None and not callable(make):
        raise ConfigurationError(
            f"invalid deps of type {type(make).__name__}: pass a function of a session's summary that "
            "returns the deps for its run"
        )


class Session(Generic[D_contra, T_co]):
    """A conversation of an agent with a person or a program, recorded as it happens.

    Only one process runs a session at a time. Each step is stored before the next one begins, so another
    process can continue where this one ended, however it ended. `Session[D, T]` is a conversation of an
    `Agent[D, T]`.

    Args:
        store: The store.
        agent: The agent.
        reading: The session as it was read.
        owner: The name of this runner.
        lease_seconds: How long the session stays reserved for a runner that shows no sign of life.
        handlers: Functions that receive the events of the session. Default: none.
    """

    if not TYPE_CHECKING:  # At run time the type variables have no defaults.
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(
        self,
        store: Store,
        agent: Agent[D_contra, T_co],
        reading: Reading,
        owner: str,
        lease_seconds: float,
        handlers: Iterable[Handler] = (),
    ) -> None:
        """Use `Session.open`, which creates or reads the session."""
        self.store = store
        """The store that holds the session."""
        self.agent = agent
        """The agent that runs it."""
        self.owner = owner
        """The name of this runner."""
        self._handlers = tuple(handlers)
        self._lease_seconds = lease_seconds
        self._reading = reading
        self._journal: SessionJournal | None = None
        self._run_here: Run | None = None
        self._leaving = False

    @classmethod
    async def open(
        cls,
        store: Store,
        agent: Agent[D, T],
        agent_id: str | None = None,
        *,
        create: bool = False,
        metadata: Mapping[str, object] | None = None,
        owner: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        handlers: Iterable[Handler] = (),
        key: RequestKey | None = None,
    ) -> Session[D, T]:
        """Return a session of the store, or a new one if no id is given.

        With `create`, an unknown id becomes a new session too; `metadata` is the metadata of a new session.
        `owner` is the name of this runner in errors and lists. `handlers` receive the events of the session.

        Args:
            agent_id: The id of the session. Default: a new one.
            create: True to create a session if the id is unknown. Default: False.
            metadata: The metadata of a new session. Default: none.
            owner: The name of this runner in errors and lists. Default: its host and process.
            lease_seconds: How long the session stays reserved for a runner that shows no sign of life.
                Default: 30.
        """
        if not isinstance(store, Store):
            raise ConfigurationError(
                f"invalid store {shortened(repr(store), 80)}: open one with "
                'SqliteStore("whyloop.db") or open_store()'
            )
        if not isinstance(agent, Agent):
            raise ConfigurationError(f"invalid agent {shortened(repr(agent), 80)}: use an Agent")
        if agent_id is not None:
            checked_id(agent_id)
        if not lease_seconds > 0:
            raise ConfigurationError(
                f"invalid lease_seconds {lease_seconds!r}: use seconds, greater than zero"
            )
        owner = owner or f"{socket.gethostname()}:{os.getpid()}:{new_id()[:8]}"
        await live(store).take_turn()
        new = partial(create_session, store, agent, agent_id, metadata, key)
        reading = await read_or_create(store, agent_id, new, create=create)
        # Its type parameters are those of the agent; `cls` has none.
        return cls(store, agent, reading, owner, lease_seconds, handlers)  # type: ignore[arg-type, return-value]

    # The session as it was last read

    @property
    def agent_id(self) -> str:
        """The id of the session."""
        return self._reading.state.agent_id

    @property
    def state(self) -> AgentState[T_co]:
        """The session as this process last saw it; `refresh` reads it again."""
        return self._reading.state

    @property
    def summary(self) -> Summary:
        """The summary of the session as this process last saw it."""
        return summary_of(self.state)

    @property
    def version(self) -> int:
        """The version of `state`: the number of entries in its journal."""
        return self._reading.version

    @property
    def first_version(self) -> int:
        """The first version that the last `send`, `resume` or `recover` recorded, or 0."""
        return self._journal.first_version if self._journal is not None else 0

    def history(self) -> tuple[Message, ...]:
        """Return all messages."""
        return tuple(self.state.messages)

    def explain(self, *, debug: bool = False, redact: bool = True) -> str:
        """Return why the last execution continued, step by step, and why it stopped.

        Args:
            debug: True to show the messages of tools' own exceptions. Default: False.
            redact: False to show secrets. Default: True, which removes them.
        """
        return self.state.explain(debug=debug, redact=redact)

    async def refresh(self) -> AgentState[T_co]:
        """Return the session as it is in the store now, whichever process continued it."""
        reading = await read_session(self.store, self.agent_id, self._reading)
        if reading.version >= self._reading.version:  # Other code may have read more.
            self._reading = reading
        return self.state

    async def prepare(self, lease: Lease) -> None:
        """Read the session again if another runner continued it."""
        known = self._reading
        if (lease.identity, lease.version) != (known.summary.identity, known.version):
            await self.refresh()

    # Runs and decisions

    async def send(
        self,
        query: Query,
        *,
        deps: D_contra | None = None,
        on_event: Handler | None = None,
        key: RequestKey | None = None,
    ) -> AgentState[T_co]:
        """Ask the next question, and work on it until the criteria say stop.

        `deps` reach tools, hooks and instructions, and are never stored. `on_event` receives the events of
        the run; at the first one, the question is stored.
        """

        def start(journal: SessionJournal, handlers: Iterable[Handler]) -> Run:
            state, name = self.state, key.key if key else None
            return start_run(
                self.agent, query, state, deps=deps, journal=journal, handlers=handlers, key=name
            )

        return await self._run(start, on_event, key)

    def stream(
        self, query: Query, *, deps: D_contra | None = None, key: RequestKey | None = None
    ) -> RunStream[T_co]:
        """Ask the next question and yield the events of the run as they happen.

        Use it as `async with session.stream(query) as run`, then `async for event in run`; `run.state` is the
        state at the end. Leaving the block early stops the run.
        """
        return RunStream(
            lambda handler: (self.send(query, deps=deps, on_event=handler, key=key), self.stop_here)
        )

    async def resume(
        self,
        *,
        grant: Budget | None = None,
        deps: D_contra | None = None,
        on_event: Handler | None = None,
        key: RequestKey | None = None,
    ) -> AgentState[T_co]:
        """Continue an execution that was paused, stopped, failed or cut off by a crash.

        Deps are not stored: pass them again.
        """

        def start(journal: SessionJournal, handlers: Iterable[Handler]) -> Run:
            state, name = self.state, key.key if key else None
            return resume_run(
                self.agent, state, grant=grant, deps=deps, journal=journal, handlers=handlers, key=name
            )

        return await self._run(start, on_event, key)

    async def recover(
        self, *, deps: D_contra | None = None, on_event: Handler | None = None
    ) -> AgentState[T_co]:
        """Continue after the runner died, or when all questions are decided.

        It is not a resume: the leg and its clock continue.
        """

        def start(journal: SessionJournal, handlers: Iterable[Handler]) -> Run:
            if self.state.status is AgentStatus.PAUSED and not self.state.pending_calls:
                return resume_run(self.agent, self.state, deps=deps, journal=journal, handlers=handlers)
            if self.state.status is not AgentStatus.IN_PROGRESS:
                raise NotResumableError(
                    f"session {self.agent_id!r} is {self.state.status}: nothing to recover"
                )
            return recover_run(self.agent, self.state, journal, handlers, deps=deps)

        return await self._run(start, on_event)

    async def request_stop(self, reason: str) -> bool:
        """Stop the session's run in any process; return False if there was none."""
        await self._free()
        return await self.store.request_stop(self.agent_id, reason, criteria=self.agent.criteria)

    async def approve(self, question_id: str, *, by: str = UNNAMED_PERSON) -> AgentState[T_co]:
        """Approve a pending tool call; it runs at the next `resume`."""
        await self._free()
        await self.store.approve(self.agent_id, question_id, by=by)
        return await self.refresh()

    async def deny(self, question_id: str, reason: str = "", *, by: str = UNNAMED_PERSON) -> AgentState[T_co]:
        """Deny a pending tool call; the model gets the reason."""
        await self._free()
        await self.store.deny(self.agent_id, question_id, reason, by=by)
        return await self.refresh()

    async def edit(
        self, question_id: str, arguments: Mapping[str, object], *, by: str = UNNAMED_PERSON
    ) -> AgentState[T_co]:
        """Approve a pending tool call with other arguments, which must fit its tool."""
        refuse_edit(self.agent, self.state, question_id, arguments)
        await self._free()
        await self.store.edit(self.agent_id, question_id, arguments, by=by)
        return await self.refresh()

    async def set_metadata(self, entries: Mapping[str, object], *, by: str | None = None) -> AgentState[T_co]:
        """Merge entries into the metadata of the session, between its runs.

        Args:
            entries: The entries; None removes one.
            by: The person or program that sets them, for the record. Default: unknown.
        """
        await self.store.set_metadata(self.agent_id, entries, by=by)
        return await self.refresh()

    # Running

    async def _run(
        self,
        start: Callable[[SessionJournal, Iterable[Handler]], Run],
        on_event: Handler | None,
        key: RequestKey | None = None,
    ) -> AgentState[T_co]:
        """Run the agent and record to the journal while this process has the lease."""
        lease = await self._acquire()
        self._journal = journal = None
        is_away = False
        try:
            here = live(self.store)
            await here.take_turn()
            await self.prepare(lease)
            self._journal = journal = SessionJournal(self.store, lease, self._reading, here, key)
            handlers: list[Handler] = [
                *self._handlers,
                *([on_event] if on_event else []),
                partial(send_live, here),
            ]
            with here.running(lease, self.stop_here):
                async with Heartbeat(self.store, lease, self.stop_here, journal):
                    self._run_here = start(journal, handlers)
                    if self._leaving:
                        self._run_here.leave()
                    return await self._run_here.finish()
        except StoreUnavailableError:
            is_away = True
            raise
        finally:
            self._run_here = None
            if journal is not None and journal.version >= self._reading.version:
                self._reading = Reading(self._reading.summary, journal.state, journal.version)
            if journal is None or not journal.released:
                # Who has waited for a store that is away does not wait for it once more.
                await (begin(self._let_go(lease)) if is_away else finish(self._let_go(lease)))

    async def _acquire(self) -> Lease:
        """Acquire and return the lease; a cancellation leaves no lease behind."""
        await self._free()
        work = self.store.acquire(self.agent_id, self.owner, self._lease_seconds)
        if self.store.inline:
            return await work
        acquiring, cancelled = await ended(work)
        lease = acquiring.result()
        if cancelled is not None:
            await finish(self._let_go(lease))
            raise cancelled
        return lease

    async def _let_go(self, lease: Lease) -> None:
        """Release the lease; else it lapses, or is released before the next use of the session here."""
        live(self.store).unreleased[self.agent_id] = lease
        with suppress(StoreError):
            await self._give_back(lease)

    async def _free(self) -> None:
        """Release a lease that an earlier run in this process has not released yet."""
        lease = live(self.store).unreleased.get(self.agent_id)
        if lease is not None:
            await self._give_back(lease)

    async def _give_back(self, lease: Lease) -> None:
        reason = await self.store.release(lease)
        unreleased = live(self.store).unreleased
        if unreleased.get(self.agent_id) is lease:
            del unreleased[self.agent_id]
        if reason is not None and not self.state.status.has_ended:
            # The stop request came too late for the run, but not for the session.
            await self.request_stop(reason)
            await self.refresh()

    def stop_here(self, reason: str) -> None:
        """Stop the runs of this session in this process, without asking the store."""
        self.agent.request_stop(reason, agent_id=self.agent_id)

    def leave(self) -> None:
        """End the run after its current step, for another runner to continue."""
        self._leaving = True
        if self._run_here is not None:
            self._run_here.leave()


_LIVE = BroadcastConfig.standard()


def send_live(here: Live, event: AgentEvent) -> None:
    """Send unrecorded events to the followers of the session, in any process."""
    kind = type(event)
    if kind is AgentStepStarted or kind is StreamChunkReceived:
        is_text = kind is StreamChunkReceived
        here.send_chunk(event.agent_id, partial(_encoded, event), is_text=is_text)


def _encoded(event: AgentEvent) -> str:
    return msgspec.json.encode(envelope(event, _LIVE)).decode()
