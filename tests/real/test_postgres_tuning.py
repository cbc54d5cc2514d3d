"""Limits are tuned on very many runs that PostgreSQL keeps."""

from __future__ import annotations

import pytest

from tests.real.postgres import PostgresServer
from tests.soak.many_runs import MOST_TIMES, compare, fill
from whyloop.stores import PostgresStore

pytestmark = pytest.mark.slow


@pytest.mark.soak(suite="scale")
async def test_a_hundred_thousand_runs_take_a_few_times_a_bare_loop(postgres: PostgresServer) -> None:
    async with PostgresStore(postgres.address()) as store:
        await fill(store, 100_000)
    tuned, ratio = compare("PostgreSQL", postgres.address(), 100_000)
    assert ratio <= MOST_TIMES
    assert tuned.megabytes <= 200
