"""Deleting old sessions, in small transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import timedelta

from whyloop.errors import ConfigurationError
from whyloop.stores.store import Store
from whyloop.values.state import AgentStatus

SESSIONS_PER_TRANSACTION = 100
ENDED = (AgentStatus.COMPLETED, AgentStatus.STOPPED, AgentStatus.FAILED)


async def prune(
    store: Store,
    older_than: timedelta,
    *,
    statuses: Collection[AgentStatus | str] = (AgentStatus.COMPLETED,),
    dry_run: bool = False,
) -> AsyncIterator[tuple[str, ...]]:
    """Delete sessions that ended long ago; yield the ids of each batch that was deleted.

    A session is as old as its last change. Only completed, stopped and failed sessions can be pruned: one
    that runs or is paused is never deleted. With `dry_run`, one batch names the oldest sessions that would be
    deleted, and nothing is.
    """
    if older_than < timedelta():
        raise ConfigurationError(f"invalid age {older_than}: use a timedelta of zero or more")
    wanted = []
    for status in statuses:
        if status not in ENDED:
            known = ", ".join(ENDED)
            raise ConfigurationError(f"sessions that are {status!s} are never pruned: choose from {known}")
        wanted.append(AgentStatus(status))
    before = store.now() - older_than
    while True:
        limit = 10**6 if dry_run else SESSIONS_PER_TRANSACTION
        deleted = await store.prune(statuses=wanted, updated_before=before, limit=limit, dry_run=dry_run)
        if deleted:
            yield deleted
        if dry_run or len(deleted) < limit:
            return
