"""Stores of sessions: in memory, in one SQLite file, or in PostgreSQL, under one contract."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Collection
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyloop.errors import (
    ConfigurationError,
    ConflictError,
    SessionNotFoundError,
    SessionRunningError,
    WorkflowOpenError,
)
from whyloop.stores.live import ChunkReceiver
from whyloop.stores.memory import MemoryStore
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
)
from whyloop.stores.sqlite import SqliteStore
from whyloop.stores.store import Store, pages
from whyloop.values.state import AgentStatus
from whyloop.values.text import shortened
from whyloop.wire.journal import Checkpoint, Counts, Entry

if TYPE_CHECKING:
    from whyloop.stores.postgres import PostgresStore
else:

    def __getattr__(name: str) -> Any:
        """Load the PostgreSQL store on first access, since it needs a driver."""
        if name == "PostgresStore":
            from whyloop.stores.postgres import PostgresStore

            return PostgresStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Checkpoint",
    "Chunk",
    "ChunkReceiver",
    "Counts",
    "Entry",
    "Lease",
    "MemoryStore",
    "OpenWorkflow",
    "Page",
    "PostgresStore",
    "RequestKey",
    "SessionFilter",
    "SqliteStore",
    "Store",
    "Stored",
    "Summary",
    "Tally",
    "open_store",
    "prune",
]
# `import *` takes every name, and this one needs an extra.
if not TYPE_CHECKING and find_spec("psycopg") is None:
    __all__.remove("PostgresStore")

VARIABLE = "WHYLOOP_STORE"
DEFAULT_PATH = "whyloop.db"
LISTED, BATCH = 1000, 100

_POSTGRES = re.compile(r"postgres(ql)?://", re.IGNORECASE)
# One letter and a colon is a drive; more letters, or slashes after the colon, are an address.
_ADDRESS = re.compile(r"\W*[a-z][a-z0-9+.-]+:|.*://|.*\b(password|host)\s*=", re.IGNORECASE | re.DOTALL)


def open_store(address: str | Path | None = None) -> Store:
    """Open the store at an address: the path of a SQLite file, or `postgresql://…`.

    If a path looks like another kind of address, pass it as a `pathlib.Path`. The default is the address in
    the variable WHYLOOP_STORE, or else the file whyloop.db in this folder.

    Args:
        address: The path or the address.
    """
    if address is None:
        address = os.environ.get(VARIABLE) or DEFAULT_PATH
    if isinstance(address, str):
        if _POSTGRES.match(address):
            from whyloop.stores.postgres import PostgresStore

            return PostgresStore(address)
        if _ADDRESS.match(address):
            # The message only has its beginning, since the rest may contain a password.
            begins = shortened(re.split("[:=]", address)[0], 40)
            raise ConfigurationError(
                f"not the address of a store (it begins with {begins!r}): use the path of a file, or an "
                "address that begins with postgresql://"
            )
    return SqliteStore(address)


async def prune(
    store: Store,
    older_than: timedelta,
    *,
    statuses: Collection[AgentStatus | str] = (AgentStatus.COMPLETED,),
    dry_run: bool = False,
) -> AsyncIterator[tuple[str, ...]]:
    """Delete sessions that ended long ago, oldest first; yield the ids by batch.

    A session is as old as its last change. Only completed, stopped and failed sessions can be pruned: a
    running or paused session is never deleted, nor one whose workflow on an engine may be open. With
    `dry_run`, the only batch has the sessions that would be deleted, and nothing is deleted.

    Args:
        older_than: The age.
        statuses: The statuses of the sessions. Default: completed.
        dry_run: True to delete nothing. Default: False.
    """
    if older_than < timedelta():
        raise ConfigurationError(f"invalid age {older_than}: use a timedelta of zero or more")
    ended, before = [status for status in AgentStatus if status.has_ended], store.now() - older_than
    for status in statuses:
        if status not in ended:
            known = ", ".join(ended)
            raise ConfigurationError(f"sessions that are {status!s} are never pruned: choose from {known}")
    old: list[tuple[datetime, str, int]] = []
    for status in set(statuses):
        async for page in pages(store, status=status, updated_before=before, limit=LISTED):
            free = [each for each in page.sessions if each.runner is None and each.workflow is None]
            old += [(summary.updated_at, summary.agent_id, summary.version) for summary in free]
    batch: list[str] = []
    for _, agent_id, version in sorted(old):
        try:
            if not dry_run:
                await store.delete(agent_id, expected_version=version)
        except (ConflictError, SessionNotFoundError, SessionRunningError, WorkflowOpenError):
            continue  # It has been continued or deleted in the meantime.
        batch.append(agent_id)
        if len(batch) == BATCH and not dry_run:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)
