"""Bringing the tables of a PostgreSQL store up to date."""

from __future__ import annotations

from typing import Any, LiteralString

from psycopg import AsyncConnection, sql

from whyloop.errors import StoreError
from whyloop.stores.postgres_schema import MIGRATIONS


async def migrate(connection: AsyncConnection[Any], schema: str) -> None:
    """Bring the tables up to date; any number of processes may do so at once.

    Where nothing is to be done nothing is locked, and no right to change tables is needed.
    """
    if not await _missing(connection, schema):
        return
    name = sql.Identifier(schema)
    async with connection.transaction():
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"whyloop {schema}"]
        )
        # A migration of big tables may take longer than any other statement.
        await connection.execute("SET LOCAL statement_timeout = 0")
        for migration in await _missing(connection, schema):
            if migration == next(iter(MIGRATIONS)):
                await _begin(connection, schema)
            await connection.execute(sql.SQL(MIGRATIONS[migration]).format(schema=name))
            await connection.execute(
                sql.SQL("INSERT INTO {schema}.migrations (name) VALUES (%s)").format(schema=name), [migration]
            )


async def _begin(connection: AsyncConnection[Any], schema: str) -> None:
    name = sql.Identifier(schema)
    found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema])
    if await found.fetchone() is None:
        await connection.execute(sql.SQL("CREATE SCHEMA {schema}").format(schema=name))
    await connection.execute(
        sql.SQL(
            "CREATE TABLE {schema}.migrations ("
            "name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        ).format(schema=name)
    )


async def _missing(connection: AsyncConnection[Any], schema: str) -> list[LiteralString]:
    """The migrations that were not applied yet; a `StoreError` if there are some that nobody here knows."""
    # Asked of the catalogue itself: `to_regclass` may not know yet what another process has just made.
    found = await connection.execute(
        "SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relname = 'migrations'",
        [schema],
    )
    if await found.fetchone() is None:
        return list(MIGRATIONS)
    rows = await connection.execute(
        sql.SQL("SELECT name FROM {schema}.migrations").format(schema=sql.Identifier(schema))
    )
    applied = {row[0] for row in await rows.fetchall()}
    unknown = sorted(applied - MIGRATIONS.keys())
    if unknown:
        raise StoreError(
            f"the tables of this store were written by a newer whyloop (they have {unknown[-1]!r}): "
            "upgrade whyloop to use them"
        )
    return [migration for migration in MIGRATIONS if migration not in applied]
