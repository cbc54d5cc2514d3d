"""Limits are tuned on very many recorded runs, quickly and in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.many_runs import fill, tune
from whyloop.stores import SqliteStore

pytestmark = pytest.mark.slow


async def test_every_run_of_a_store_is_counted(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        await fill(store, 1_000)
    assert tune(str(tmp_path / "whyloop.db")).report["runs"] == 1_000


@pytest.mark.soak(suite="scale")
async def test_a_hundred_thousand_runs_in_a_minute(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        await fill(store, 100_000)
    tuned = tune(str(tmp_path / "whyloop.db"))
    print(f"\nSQLite: 100,000 runs in {tuned.seconds:.0f} s, at most {tuned.megabytes:.0f} MB in a process")
    assert tuned.report["runs"] == 100_000
    assert tuned.seconds <= 60
    assert tuned.megabytes <= 200
