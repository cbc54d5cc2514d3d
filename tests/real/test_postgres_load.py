"""Many sessions at once on a real PostgreSQL."""

from __future__ import annotations

import pytest

from tests.real.postgres import PostgresServer
from tests.soak.load import run_load
from whyloop.stores import PostgresStore

pytestmark = pytest.mark.slow


async def test_fifty_sessions_at_once_lose_nothing(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        load = await run_load(store, 50, 2.0)
    assert load.problems == []
    assert load.steps >= 4 * 50


@pytest.mark.soak(suite="load")
async def test_five_hundred_sessions_for_two_minutes(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        load = await run_load(store, 500, 120.0)
    print(f"\nPostgreSQL: {load.steps_per_second:.0f} steps/s, worst lag {load.worst_lag * 1000:.0f} ms")
    assert load.problems == []
    assert load.worst_lag <= 0.1
    assert load.steps_per_second >= 700
