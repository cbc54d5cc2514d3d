"""Every store keeps the same contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whyloop.loop.ports import Clock
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.testing.store_conformance import CHECKS, Check, OpenStore


def memory(folder: Path) -> OpenStore:
    """What is in the memory of a process is shared by sharing the store."""
    opened: list[Store] = []

    async def open_store(clock: Clock) -> Store:
        if not opened:
            opened.append(MemoryStore(clock))
        return opened[0]

    return open_store


def sqlite(folder: Path) -> OpenStore:
    async def open_store(clock: Clock) -> Store:
        return SqliteStore(folder / "sessions.db", clock=clock)

    return open_store


STORES: dict[str, Callable[[Path], OpenStore]] = {"memory": memory, "sqlite": sqlite}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
async def test_a_store_keeps_the_contract(kind: str, check: Check, tmp_path: Path) -> None:
    await check(STORES[kind](tmp_path))
