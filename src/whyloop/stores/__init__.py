"""Where sessions live: in memory, in one SQLite file, or in PostgreSQL. One contract, one suite of tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.stores.memory import MemoryStore as MemoryStore
    from whyloop.stores.open import open_store as open_store
    from whyloop.stores.postgres import PostgresStore as PostgresStore
    from whyloop.stores.records import (
        Lease as Lease,
        Page as Page,
        SessionFilter as SessionFilter,
        Stored as Stored,
        Summary as Summary,
    )
    from whyloop.stores.sqlite import SqliteStore as SqliteStore
    from whyloop.stores.store import Store as Store

_HOMES = {
    "Lease": "records",
    "MemoryStore": "memory",
    "Page": "records",
    "PostgresStore": "postgres",
    "SessionFilter": "records",
    "SqliteStore": "sqlite",
    "Store": "store",
    "Stored": "records",
    "Summary": "records",
    "open_store": "open",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Each store is loaded when it is asked for, so that none needs another one's driver."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
