"""Scripts that use a PostgreSQL store, as people write them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.real.postgres import PostgresServer

pytestmark = pytest.mark.slow

LEFT_OPEN = """
import asyncio, sys
from whyloop.stores import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], schema=sys.argv[2])
    await store.sessions()
    await asyncio.gather(*[store.sessions() for _ in range(3)])
    raise RuntimeError("a mistake, before the store was closed")

asyncio.run(main())
"""


@pytest.mark.parametrize("attempt", range(5))
def test_a_script_that_leaves_its_store_open_ends(
    postgres: PostgresServer, schema: str, attempt: int
) -> None:
    command = [sys.executable, "-c", LEFT_OPEN, postgres.address(), schema]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "RuntimeError: a mistake" in done.stderr
