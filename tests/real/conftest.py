"""One real model and one real database for all of these tests, in processes of their own on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.real.postgres import NoServerError, PostgresServer
from tests.real.temporal import NoTemporalError, TemporalServer
from whyloop.errors import ConfigurationError
from whyloop.models.local import LocalServer
from whyloop.stores import SqliteStore


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    """The local model, started once; without it the tests say what is missing."""
    try:
        server = LocalServer()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started once; without it the tests say what is missing."""
    pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')
    try:
        postgres = PostgresServer()
    except NoServerError as error:
        pytest.skip(str(error))
    with postgres:
        yield postgres


@pytest.fixture(scope="session")
def temporal() -> Iterator[TemporalServer]:
    """A Temporal server, started once; without it the tests say what is missing."""
    try:
        temporal = TemporalServer()
    except NoTemporalError as error:
        pytest.skip(str(error))
    temporal.start()
    yield temporal
    temporal.remove()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "sessions.db") as store:
        yield store


_numbers = count(1)


@pytest.fixture
def schema() -> str:
    """A schema of its own for each test, which is not there yet."""
    return f"Test-{next(_numbers)}"
