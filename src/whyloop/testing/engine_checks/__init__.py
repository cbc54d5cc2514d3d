"""The scenarios of `engine_conformance` by topic, and the interface of an engine that plays them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from whyloop.errors import ConfigurationError
from whyloop.loop.agent import Agent
from whyloop.loop.executions import Query
from whyloop.sessions.session import MakeDeps, Session, deps_for
from whyloop.stores.memory import MemoryStore
from whyloop.stores.store import Store
from whyloop.values.continuation import Budget
from whyloop.values.state import UNNAMED_PERSON, AgentState


class EngineSession(Protocol):
    """A session that an engine runs, with the semantics of `whyloop.Session`."""

    async def send(self, query: Query) -> AgentState:
        """Send the next query; return the state when the run ends or pauses."""

    async def resume(self, *, grant: Budget | None = None) -> AgentState:
        """Continue the execution; return the state at its end or at the next pause."""

    async def approve(self, question_id: str, *, by: str = UNNAMED_PERSON) -> AgentState:
        """Approve a pending call, which runs at the next `resume`."""

    async def deny(self, question_id: str, reason: str = "", *, by: str = UNNAMED_PERSON) -> AgentState:
        """Do not let a pending call run; return the state after the decision."""

    async def edit(
        self, question_id: str, arguments: Mapping[str, object], *, by: str = UNNAMED_PERSON
    ) -> AgentState:
        """Approve a pending call with other arguments."""

    async def request_stop(self, reason: str) -> object:
        """End the session's run; return once the request is certain to reach it."""


class Engine(Protocol):
    """An engine that runs some agents, and the store that holds their sessions."""

    @property
    def store(self) -> Store:
        """The store that holds the sessions."""

    async def open(
        self, agent: str, agent_id: str, metadata: Mapping[str, object] | None = None
    ) -> EngineSession:
        """Return a session of the agent with this name.

        Create it with this metadata if the id is unknown.

        Args:
            agent: The name of the agent.
        """


class OpenEngine(Protocol):
    """A function that starts an engine for some agents, on a store without sessions."""

    def __call__(
        self, agents: Sequence[Agent[Any, Any]], *, deps: MakeDeps | None = None
    ) -> AbstractAsyncContextManager[Engine]:
        """Return a context in which the engine runs.

        Args:
            agents: The agents, each with a name of its own. They stay in this process.
            deps: A function that returns the deps for a run of the session with this summary, plain or async.
                Default: None, there are no deps.
        """


Check = Callable[[OpenEngine], Awaitable[None]]


class LocalEngine:
    """The loop in this process, as the engine with which others are compared.

    Args:
        agents: The agents, each with a name of its own.
        deps: A function of a session's summary that returns the deps for its run. Default: none.
    """

    def __init__(
        self, store: Store, agents: Sequence[Agent[Any, Any]], *, deps: MakeDeps | None = None
    ) -> None:
        self.store = store
        """The store that holds the sessions."""
        self._agents = {agent.name: agent for agent in agents}
        self._deps = deps

    async def open(
        self, agent: str, agent_id: str, metadata: Mapping[str, object] | None = None
    ) -> LocalSession:
        """Return a session of the agent with this name.

        Create it with this metadata if the id is unknown.

        Args:
            agent: The name of the agent.
        """
        if agent not in self._agents:
            raise ConfigurationError(f"unknown agent {agent!r}: use one of {sorted(self._agents)}")
        session = await Session.open(
            self.store, self._agents[agent], agent_id, create=True, metadata=metadata
        )
        return LocalSession(session, self._deps)


class LocalSession:
    """A `Session` with the deps that a function makes for each of its runs.

    Args:
        session: The session.
        deps: A function of its summary that returns the deps. Default: none.
    """

    def __init__(self, session: Session[Any, Any], deps: MakeDeps | None = None) -> None:
        self.session = session
        """The session."""
        self._deps = deps

    async def send(self, query: Query) -> AgentState:
        """Send the next query; return the state when the run ends or pauses."""
        return await self.session.send(query, deps=await deps_for(self.session.summary, self._deps))

    async def resume(self, *, grant: Budget | None = None) -> AgentState:
        """Continue the execution; return the state at its end or at the next pause."""
        return await self.session.resume(grant=grant, deps=await deps_for(self.session.summary, self._deps))

    async def approve(self, question_id: str, *, by: str = UNNAMED_PERSON) -> AgentState:
        """Approve a pending call, which runs at the next `resume`."""
        return await self.session.approve(question_id, by=by)

    async def deny(self, question_id: str, reason: str = "", *, by: str = UNNAMED_PERSON) -> AgentState:
        """Do not let a pending call run; return the state after the decision."""
        return await self.session.deny(question_id, reason, by=by)

    async def edit(
        self, question_id: str, arguments: Mapping[str, object], *, by: str = UNNAMED_PERSON
    ) -> AgentState:
        """Approve a pending call with other arguments."""
        return await self.session.edit(question_id, arguments, by=by)

    async def request_stop(self, reason: str) -> bool:
        """End the session's run; return False if there was none."""
        return await self.session.request_stop(reason)


@asynccontextmanager
async def open_local_engine(
    agents: Sequence[Agent[Any, Any]], *, deps: MakeDeps | None = None
) -> AsyncIterator[LocalEngine]:
    """Start the loop in this process on a store in memory.

    Args:
        agents: The agents, each with a name of its own.
        deps: A function of a session's summary that returns the deps for its run. Default: none.
    """
    async with MemoryStore() as store:
        yield LocalEngine(store, agents, deps=deps)
