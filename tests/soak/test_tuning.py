"""Limits are tuned on very many recorded runs, in bounded time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.many_runs import MOST_TIMES, compare, fill, tune
from whyloop.stores import SqliteStore

pytestmark = pytest.mark.slow


async def test_every_run_of_a_store_is_counted(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        await fill(store, 1_000)
    assert tune(str(tmp_path / "whyloop.db")).report["runs"] == 1_000


@pytest.mark.soak(suite="scale")
async def test_a_hundred_thousand_runs_take_a_few_times_a_bare_loop(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        await fill(store, 100_000)
    tuned, ratio = compare("SQLite", str(tmp_path / "whyloop.db"), 100_000)
    assert ratio <= MOST_TIMES
    assert tuned.megabytes <= 200
