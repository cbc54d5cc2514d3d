"""Limits are tuned on very many runs that PostgreSQL keeps."""

from __future__ import annotations

import pytest

from tests.real.postgres import PostgresServer
from tests.soak.many_runs import fill, tune
from whyloop.stores import PostgresStore

pytestmark = pytest.mark.slow


@pytest.mark.soak(suite="scale")
async def test_a_hundred_thousand_runs_in_a_minute(postgres: PostgresServer) -> None:
    async with PostgresStore(postgres.address()) as store:
        await fill(store, 100_000)
    tuned = tune(postgres.address())
    print(
        f"\nPostgreSQL: 100,000 runs in {tuned.seconds:.0f} s, at most {tuned.megabytes:.0f} MB in a process"
    )
    assert tuned.report["runs"] == 100_000
    assert tuned.seconds <= 60
    assert tuned.megabytes <= 200
