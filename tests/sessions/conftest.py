"""The stores that every test of a session is run on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from whyloop.stores import MemoryStore, SqliteStore, Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "whyloop.db")
    async with made:
        yield made
