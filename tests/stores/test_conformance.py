"""Every store keeps the same contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whyloop.loop.world import Clock
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.testing.store_conformance import CHECKS, Check, OpenStore


def memory(folder: Path) -> OpenStore:
    first = MemoryStore()

    async def open_store(clock: Clock) -> Store:
        return MemoryStore(clock, beside=first)

    return open_store


def sqlite(folder: Path) -> OpenStore:
    async def open_store(clock: Clock) -> Store:
        return SqliteStore(folder / "sessions.db", clock=clock)

    return open_store


def synced_sqlite(folder: Path) -> OpenStore:
    async def open_store(clock: Clock) -> Store:
        return SqliteStore(folder / "sessions.db", clock=clock, durability="power")

    return open_store


STORES: dict[str, Callable[[Path], OpenStore]] = {
    "memory": memory,
    "sqlite": sqlite,
    "synced sqlite": synced_sqlite,
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
async def test_a_store_keeps_the_contract(kind: str, check: Check, tmp_path: Path) -> None:
    await check(STORES[kind](tmp_path))
