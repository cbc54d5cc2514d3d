"""Many sessions at once: nothing is lost or numbered twice, and the event loop stays responsive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.load import MOST_TYPICAL, MOST_WORST, lag_ratios, run_load
from whyloop.stores import SqliteStore

pytestmark = pytest.mark.slow


async def test_fifty_sessions_at_once_lose_nothing(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        load = await run_load(store, 50, 2.0)
    assert load.problems == []
    assert load.steps >= 4 * 50


@pytest.mark.soak(suite="load")
async def test_five_hundred_sessions_for_two_minutes(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        load, typical, worst = await lag_ratios(tmp_path, store)
    assert load.problems == []
    assert typical <= MOST_TYPICAL
    assert worst <= MOST_WORST
