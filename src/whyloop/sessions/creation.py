"""A session of a store: read, or created."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from whyloop.errors import SessionExistsError, SessionNotFoundError
from whyloop.loop.agent import Agent
from whyloop.loop.executions import creation
from whyloop.stores.listing import summary_of
from whyloop.stores.reading import Reading, read_session
from whyloop.stores.records import RequestKey
from whyloop.stores.store import Store
from whyloop.values.encoding import jsonable
from whyloop.values.scalars import new_id
from whyloop.values.state import AgentState
from whyloop.values.transitions import Created
from whyloop.wire.journal import entries_of


async def read_or_create(
    store: Store, agent_id: str | None, new: Callable[[], Awaitable[Reading]], *, create: bool
) -> Reading:
    """Return a session of the store; a new one without an id, or if it may be created."""
    if agent_id is None:
        return await new()
    try:
        return await read_session(store, agent_id)
    except SessionNotFoundError:
        if not create:
            raise
    try:
        return await new()
    except SessionExistsError:  # Another process created it at the same moment.
        return await read_session(store, agent_id)


async def create_session(
    store: Store,
    agent: Agent[Any, Any] | str,
    agent_id: str | None,
    metadata: Mapping[str, object] | None,
    key: RequestKey | None = None,
) -> Reading:
    """Store a new session of an agent, which an engine knows by its name; return it."""
    name = key.key if key else None
    if isinstance(agent, str):
        now, given = store.now(), jsonable(metadata or {})
        created = Created(now, identity=new_id(), metadata=given, agent=agent, key=name)
    else:
        created = creation(agent, metadata, name)
    nothing = AgentState.before_creation(new_id() if agent_id is None else agent_id)
    state = created.apply_to(nothing)
    summary = summary_of(state)
    await store.create(summary, entries_of([created], nothing), key=key)
    return Reading(summary, state, 1)
