"""Stores of sessions: in memory, in one SQLite file, or in PostgreSQL, under one contract."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyloop.errors import ConfigurationError
from whyloop.stores.live import ChunkReceiver
from whyloop.stores.memory import MemoryStore
from whyloop.stores.records import (
    Checkpoint,
    Chunk,
    Entry,
    Lease,
    Page,
    RequestKey,
    SessionFilter,
    Stored,
    Summary,
    prunable,
)
from whyloop.stores.sqlite import SqliteStore
from whyloop.stores.store import Store
from whyloop.values.state import AgentStatus

if TYPE_CHECKING:
    from whyloop.stores.postgres import PostgresStore
else:

    def __getattr__(name: str) -> Any:
        """Load the PostgreSQL store when it is asked for: it needs a driver that others do without."""
        if name == "PostgresStore":
            from whyloop.stores.postgres import PostgresStore

            return PostgresStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Checkpoint",
    "Chunk",
    "ChunkReceiver",
    "Entry",
    "Lease",
    "MemoryStore",
    "Page",
    "PostgresStore",
    "RequestKey",
    "SessionFilter",
    "SqliteStore",
    "Store",
    "Stored",
    "Summary",
    "open_store",
    "prune",
]

VARIABLE = "WHYLOOP_STORE"
DEFAULT_PATH = "whyloop.db"
SESSIONS_PER_TRANSACTION = 100

_POSTGRES = re.compile(r"postgres(ql)?://", re.IGNORECASE)
# A letter and a colon is a drive; more letters, or a slash after them, are an address of some kind.
_ADDRESS = re.compile(r"\W*[a-z][a-z0-9+.-]+:|.*://|.*\b(password|host)\s*=", re.IGNORECASE | re.DOTALL)


def open_store(address: str | Path | None = None) -> Store:
    """Open the store at an address: the path of a SQLite file, or `postgresql://…`.

    Without an address, the variable WHYLOOP_STORE decides, else it is the file whyloop.db in this folder.
    """
    if address is None:
        address = os.environ.get(VARIABLE) or DEFAULT_PATH
    if isinstance(address, str):
        if _POSTGRES.match(address):
            from whyloop.stores.postgres import PostgresStore

            return PostgresStore(address)
        if _ADDRESS.match(address):
            # The address is not in the message, since it may contain a password.
            raise ConfigurationError(
                "not the address of a store: use the path of a file, or an address that begins with "
                "postgresql://. A path that looks like an address is given as a pathlib.Path"
            )
    return SqliteStore(address)


async def prune(
    store: Store,
    older_than: timedelta,
    *,
    statuses: Collection[AgentStatus | str] = (AgentStatus.COMPLETED,),
    dry_run: bool = False,
) -> AsyncIterator[tuple[str, ...]]:
    """Delete sessions that ended long ago, in small transactions; yield the ids of each batch.

    A session is as old as its last change. Only completed, stopped and failed sessions can be pruned: one
    that runs or is paused is never deleted. With `dry_run`, one batch names the oldest sessions that would be
    deleted, and nothing is.
    """
    if older_than < timedelta():
        raise ConfigurationError(f"invalid age {older_than}: use a timedelta of zero or more")
    wanted, before = prunable(statuses), store.now() - older_than
    while True:
        limit = 10**6 if dry_run else SESSIONS_PER_TRANSACTION
        deleted = await store.prune(statuses=wanted, updated_before=before, limit=limit, dry_run=dry_run)
        if deleted:
            yield deleted
        if dry_run or len(deleted) < limit:
            return
