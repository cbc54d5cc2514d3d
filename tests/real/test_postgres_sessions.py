"""Everything that is tested of sessions, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest

from tests.real.postgres import PostgresServer
from tests.sessions import test_leases as leases, test_session as sessions
from whyloop.stores import PostgresStore, Store

pytestmark = pytest.mark.slow


def suite_of(module: ModuleType, fixture: str) -> dict[str, Any]:
    """The tests of a module that ask for a store by this name."""
    found = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    return {name: test for name, test in found.items() if fixture in test.__code__.co_varnames}


globals().update(suite_of(sessions, "store"))
globals().update(suite_of(leases, "timed"))


@pytest.fixture
async def store(postgres: PostgresServer, schema: str) -> AsyncIterator[Store]:
    async with PostgresStore(postgres.address(), schema=schema, max_connections=4) as store:
        yield store


@pytest.fixture
async def timed(postgres: PostgresServer, schema: str) -> AsyncIterator[tuple[Store, leases.Now]]:
    now = leases.Now()
    async with PostgresStore(postgres.address(), schema=schema, clock=now, max_connections=4) as store:
        yield store, now


def test_there_are_many() -> None:
    assert len(suite_of(sessions, "store")) > 20
    assert len(suite_of(leases, "timed")) >= 4
