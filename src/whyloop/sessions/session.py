"""A conversation that lives in a store, for days, across processes."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from whyloop.broadcasting.adapter import AgentEventEnvelopeAdapter
from whyloop.errors import ConfigurationError, SessionExistsError, SessionNotFoundError, StoreError
from whyloop.loop.agent import Agent, Query
from whyloop.loop.emit import Handler
from whyloop.sessions.heartbeat import Heartbeat
from whyloop.sessions.journal import SessionJournal
from whyloop.sessions.numbering import numbered_on
from whyloop.stores.records import Lease, checked_id
from whyloop.stores.store import Store
from whyloop.values.budget import Budget
from whyloop.values.ids import new_id
from whyloop.values.messages import Message
from whyloop.values.state import SOMEBODY, AgentState, AgentStatus
from whyloop.values.text import shortened
from whyloop.wire.journal import state_of

LEASE_SECONDS = 30.0


class Session:
    """One conversation of an agent with somebody, recorded as it happens.

    Only one process runs a session at a time; what it did is in the store before anything builds
    on it, so any other can go on where it ended, however it ended.
    """

    def __init__(
        self,
        store: Store,
        agent: Agent,
        state: AgentState,
        version: int,
        owner: str,
        lease_seconds: float,
        events: AgentEventEnvelopeAdapter | None = None,
    ) -> None:
        """Sessions are opened with `Session.open`."""
        self.store = store
        self.agent = agent
        self.owner = owner
        self.events = events
        self._lease_seconds = lease_seconds
        self._state = state
        self._version = version

    @classmethod
    async def open(
        cls,
        store: Store,
        agent: Agent,
        agent_id: str | None = None,
        *,
        create: bool = False,
        metadata: Mapping[str, object] | None = None,
        owner: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        events: AgentEventEnvelopeAdapter | None = None,
    ) -> Session:
        """A session of the store, or a new one if no id is given.

        With `create`, an id that the store does not know becomes a new session too; `metadata` is
        what a new session starts with. `owner` is the name by which others are told who runs it.
        `events` hears what happens in the session, and numbers it on from where another process left off.
        """
        if not isinstance(store, Store):
            raise ConfigurationError(
                f"a session lives in a store, not in {shortened(repr(store), 80)}: open one with "
                'SqliteStore("whyloop.db") or open_store()'
            )
        if not isinstance(agent, Agent):
            raise ConfigurationError(f"a session needs an Agent to run it, not {shortened(repr(agent), 80)}")
        if agent_id is not None:
            checked_id(agent_id)
        if not lease_seconds > 0:
            raise ConfigurationError(f"lease_seconds is greater than zero, not {lease_seconds!r}")
        owner = owner or f"{socket.gethostname()}:{os.getpid()}:{new_id()[:8]}"
        if agent_id is None or (create and not await _is_there(store, agent_id)):
            state = agent.new_session(agent_id, metadata)
            try:
                await store.add(state)
                return cls(store, agent, state, 1, owner, lease_seconds, events)
            except SessionExistsError:
                if agent_id is None or not create:
                    raise
        # Another process may have created it at this very moment.
        stored = await store.read(state.agent_id if agent_id is None else agent_id)
        state = state_of(stored.summary.agent_id, stored.entries)
        return cls(store, agent, state, stored.summary.version, owner, lease_seconds, events)

    # What it is

    @property
    def agent_id(self) -> str:
        return self._state.agent_id

    @property
    def state(self) -> AgentState:
        """The session as this process last saw it; `refresh` looks again."""
        return self._state

    def history(self) -> tuple[Message, ...]:
        """Everything that was said."""
        return tuple(self._state.messages)

    def explain(self) -> str:
        """Why the last execution went on, step by step, and why it stopped."""
        return self._state.explain()

    async def refresh(self) -> AgentState:
        """The session as it is in the store now, whoever has gone on with it."""
        base, version = self._state, self._version
        stored = await self.store.read(self.agent_id, after=version)
        if stored.summary.version < version or stored.summary.started_at != base.state_info.started_at:
            # It was deleted, and created again under its id.
            stored = await self.store.read(self.agent_id)
            state = state_of(self.agent_id, stored.entries)
        else:
            state = state_of(self.agent_id, stored.entries, base) if stored.entries else base
        if self._version == version:  # Unless it has moved on meanwhile.
            self._state, self._version = state, stored.summary.version
        return self._state

    # What can be done with it

    async def send(self, query: Query, *, on_event: Handler | None = None) -> AgentState:
        """Ask the next question, and work on it until the criteria say stop.

        `on_event` hears what happens meanwhile; when it hears of the first thing, the question is stored.
        """
        async with self._run(on_event) as agent:
            return await agent.final_step(agent.start(query, state=self._state))

    async def resume(self, *, grant: Budget | None = None, on_event: Handler | None = None) -> AgentState:
        """Go on with an execution that was paused, stopped, failed or cut off by a crash."""
        async with self._run(on_event) as agent:
            if self.events is not None:
                await numbered_on(self.events, self.store, self._state)
            return await agent.final_step(agent.restart(self._state, grant=grant))

    async def request_stop(self, reason: str) -> bool:
        """End the session's run at its next safe point, wherever it runs; False if there was none."""
        return await self.store.request_stop(self.agent_id, reason)

    async def approve(self, call_id: str, *, by: str = SOMEBODY) -> AgentState:
        """Let a pending tool call run; `resume` goes on."""
        await self.store.approve(self.agent_id, call_id, by=by)
        return await self.refresh()

    async def deny(self, call_id: str, reason: str = "", *, by: str = SOMEBODY) -> AgentState:
        """Do not let a pending tool call run; the model is told the reason."""
        await self.store.deny(self.agent_id, call_id, reason, by=by)
        return await self.refresh()

    async def edit(self, call_id: str, arguments: Mapping[str, object], *, by: str = SOMEBODY) -> AgentState:
        """Let a pending tool call run with other arguments."""
        await self.store.edit(self.agent_id, call_id, arguments, by=by)
        return await self.refresh()

    # How it runs

    @asynccontextmanager
    async def _run(self, on_event: Handler | None) -> AsyncIterator[Agent]:
        """The agent, writing to this session's journal for as long as this process holds its lease."""
        lease = await self._acquired()
        journal: SessionJournal | None = None
        try:
            state = await self.refresh()
            journal = SessionJournal(self.store, lease, state, self._version, self.stop_here)
            async with Heartbeat(self.store, lease, self.stop_here, journal):
                listeners = [each for each in (self.events, on_event) if each is not None]
                yield self.agent.journaled(journal, *listeners)
        finally:
            if journal is not None:
                self._state, self._version = journal.state, journal.version
            if journal is None or not journal.released:
                with suppress(StoreError):  # A lease that cannot be given back lapses.
                    await self._give_back(lease)

    async def _acquired(self) -> Lease:
        """The lease; a cancellation meanwhile leaves none behind, which nobody could use."""
        work = self.store.acquire(self.agent_id, self.owner, self._lease_seconds)
        if self.store.inline:
            return await work
        acquiring = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            with suppress(StoreError):
                await self.store.release(await acquiring)
            raise

    async def _give_back(self, lease: Lease) -> None:
        words = await self.store.release(lease)
        if words is not None and self._state.status is AgentStatus.PAUSED:
            # Somebody asked for a stop when it was too late for the run, and not for the session.
            await self.store.request_stop(self.agent_id, words)
            await self.refresh()

    def stop_here(self, reason: str) -> None:
        """End what this process runs of the session at its next safe point, without asking the store."""
        self.agent.request_stop(reason, agent_id=self.agent_id)


async def _is_there(store: Store, agent_id: str) -> bool:
    try:
        await store.read(agent_id, after=sys.maxsize)
    except SessionNotFoundError:
        return False
    return True
