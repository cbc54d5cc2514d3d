"""Followers of a session in PostgreSQL get everything once and in order, whichever way they arrive."""

from __future__ import annotations

from random import Random

import pytest

from tests.broadcasting.arrivals import FeedSource, HttpSource, problems_of, write
from tests.real.postgres import PostgresServer
from tests.server.recorded import Recorder, new_session
from tests.server.streams_support import stage
from tests.support import seeds
from whyloop.broadcasting import EventFeed

pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

from whyloop.stores.postgres import PostgresStore

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("process", [0, 1])
@seeds(3)
async def test_random_followers_get_everything_once_and_in_order(
    postgres: PostgresServer, schema: str, process: int, seed: int
) -> None:
    random = Random(seed)
    async with (
        PostgresStore(postgres.address(), schema=schema) as store,
        PostgresStore(postgres.address(), schema=schema) as other,
    ):
        await new_session(store)
        recorder = Recorder((store, other)[process])
        async with (
            EventFeed(store, recent=random.choice((3, 20, 500)), linger_seconds=0.01) as feed,
            FeedSource(feed).connect(None),
        ):
            writing = write(recorder, random, 12)
            assert await problems_of(FeedSource(feed), writing, random, followers=12) == []


@pytest.mark.parametrize("way", ["events", "socket"])
async def test_random_clients_get_everything_once_and_in_order(
    postgres: PostgresServer, schema: str, way: str
) -> None:
    random = Random(way)
    async with stage(PostgresStore(postgres.address(), schema=schema), linger=0.01) as a:
        writing = a.server.do(lambda: write(a.recorder, random, 8))
        assert await problems_of(HttpSource(a, way), writing, random, followers=6) == []
