"""Many sessions at once on a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.postgres import PostgresServer
from tests.soak.load import MOST_TYPICAL, MOST_WORST, lag_ratios, run_load
from whyloop.stores import PostgresStore

pytestmark = pytest.mark.slow


async def test_fifty_sessions_at_once_lose_nothing(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        load = await run_load(store, 50, 2.0)
    assert load.problems == []
    assert load.steps >= 4 * 50


@pytest.mark.soak(suite="load")
async def test_five_hundred_sessions_for_two_minutes(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        load, typical, worst = await lag_ratios(tmp_path, store)
    assert load.problems == []
    assert typical <= MOST_TYPICAL
    assert worst <= MOST_WORST
