"""A conversation that lives in a store, for days, across processes."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from whyloop.errors import ConfigurationError, SessionNotFoundError, StoreError
from whyloop.loop.agent import Agent, Query
from whyloop.sessions.heartbeat import Heartbeat
from whyloop.sessions.journal import SessionJournal
from whyloop.stores.store import Store
from whyloop.values.budget import Budget
from whyloop.values.ids import new_id
from whyloop.values.messages import Message
from whyloop.values.state import SOMEBODY, AgentState
from whyloop.wire.journal import entries_of, folded

LEASE_SECONDS = 30.0


class Session:
    """One conversation of an agent with somebody, recorded as it happens.

    Only one process runs a session at a time; what it did is in the store before anything builds
    on it, so any other can go on where it ended, however it ended.
    """

    def __init__(
        self, store: Store, agent: Agent, state: AgentState, version: int, owner: str, lease_seconds: float
    ) -> None:
        """Sessions are opened with `Session.open`."""
        self.store = store
        self.agent = agent
        self.owner = owner
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
    ) -> Session:
        """A session of the store, or a new one if no id is given.

        With `create`, an id that the store does not know becomes a new session too; `metadata` is
        what a new session starts with. `owner` is the name by which others are told who runs it.
        """
        if not lease_seconds > 0:
            raise ConfigurationError(f"lease_seconds is greater than zero, not {lease_seconds!r}")
        owner = owner or f"{socket.gethostname()}:{os.getpid()}:{new_id()[:8]}"
        if agent_id is not None:
            try:
                stored = await store.read(agent_id)
            except SessionNotFoundError:
                if not create:
                    raise
            else:
                state = folded(agent_id, entries_of(stored.entries))
                return cls(store, agent, state, stored.summary.version, owner, lease_seconds)
        state = agent.new_session(agent_id, metadata)
        await store.add(state)
        return cls(store, agent, state, 1, owner, lease_seconds)

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
        stored = await self.store.read(self.agent_id, after=self._version)
        if stored.summary.version < self._version:  # Deleted, and created again under its id.
            self._version = 0
            stored = await self.store.read(self.agent_id)
        if stored.entries:
            base = self._state if self._version else None
            self._state = folded(self.agent_id, entries_of(stored.entries), base)
            self._version = stored.summary.version
        return self._state

    # What can be done with it

    async def send(self, query: Query) -> AgentState:
        """Ask the next question, and work on it until the criteria say stop."""
        async with self._run() as agent:
            return await agent.final_step(agent.start(query, state=self._state))

    async def resume(self, *, grant: Budget | None = None) -> AgentState:
        """Go on with an execution that was paused, stopped, failed or cut off by a crash."""
        async with self._run() as agent:
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
    async def _run(self) -> AsyncIterator[Agent]:
        """The agent, writing to this session's journal for as long as this process holds its lease."""
        lease = await self.store.acquire(self.agent_id, self.owner, self._lease_seconds)
        journal: SessionJournal | None = None
        try:
            state = await self.refresh()
            journal = SessionJournal(self.store, lease, state, self._version, self._stop)
            async with Heartbeat(self.store, lease, self._stop):
                yield self.agent.journaled(journal)
        finally:
            if journal is not None:
                self._state, self._version = journal.state, journal.version
            if journal is None or not journal.released:
                with suppress(StoreError):  # A lease that cannot be given back lapses.
                    await self.store.release(lease)

    def _stop(self, words: str) -> None:
        self.agent.request_stop(words, agent_id=self.agent_id)
