"""Stores of sessions: in memory, in one SQLite file, or in PostgreSQL, under one contract."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.stores.memory import MemoryStore as MemoryStore
    from whyloop.stores.open import open_store as open_store
    from whyloop.stores.postgres import PostgresStore as PostgresStore
    from whyloop.stores.pruning import prune as prune
    from whyloop.stores.records import (
        Checkpoint as Checkpoint,
        Chunk as Chunk,
        Entry as Entry,
        Lease as Lease,
        Page as Page,
        RequestKey as RequestKey,
        SessionFilter as SessionFilter,
        Stored as Stored,
        Summary as Summary,
    )
    from whyloop.stores.sqlite import SqliteStore as SqliteStore
    from whyloop.stores.store import ChunkReceiver as ChunkReceiver, Store as Store

_HOMES = {
    "Checkpoint": "records",
    "Chunk": "records",
    "ChunkReceiver": "store",
    "Entry": "records",
    "Lease": "records",
    "MemoryStore": "memory",
    "Page": "records",
    "PostgresStore": "postgres",
    "RequestKey": "records",
    "SessionFilter": "records",
    "SqliteStore": "sqlite",
    "Store": "store",
    "Stored": "records",
    "Summary": "records",
    "open_store": "open",
    "prune": "pruning",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Load a store when it is asked for, so that none needs the driver of another one."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
