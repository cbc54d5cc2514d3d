"""Connections to PostgreSQL: kept in a pool, replaced when they break, and what their faults mean."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import ceil
from typing import Any
from weakref import WeakSet

from whyloop.errors import ConfigurationError, StoreError, StoreUnavailableError

try:
    import psycopg
    from psycopg import AsyncConnection, conninfo, errors
    from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout
except ImportError as error:
    raise ConfigurationError(
        f'a PostgreSQL store needs a driver: pip install "whyloop[postgres]" ({error})'
    ) from None

from whyloop.stores.postgres_migrations import migrate

Row = tuple[Any, ...]

# What a connection is to be like, whatever the server's defaults are: entries are durable on
# return, each statement sees what was committed before it, and times come in UTC. No statement of
# ours has to read a whole table: one that did while it was small would go on when it is not, since
# the plan is kept.
CONFIGURE = """
SELECT set_config('statement_timeout', %(milliseconds)s, false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('TimeZone', 'UTC', false),
       set_config('enable_seqscan', 'off', false),
       CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', false) END
"""


class _Pool(AsyncConnectionPool):
    """A pool whose workers end when they are cancelled.

    Those of the library go on if they are cancelled while they connect, and `asyncio.run` then waits
    for ever for a program that left its store open.
    """

    @classmethod
    async def worker(cls, q: Any) -> None:
        until_cancelled: Any = _UntilCancelled(q)
        await super().worker(until_cancelled)


class _UntilCancelled:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def get(self) -> Any:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return await self._queue.get()


class Connections:
    """The connections of one store, made when they are first needed.

    They belong to the event loop that made them. Once that one has ended, the next gets new ones.
    """

    def __init__(self, address: str, schema: str, fewest: int, most: int, timeout: float) -> None:
        self._target = _target(address, timeout)
        self._schema = schema
        self._fewest, self._most, self._timeout = fewest, most, timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: AsyncConnectionPool[AsyncConnection[Row]] | None = None
        self._opening = asyncio.Lock()
        self._made: WeakSet[AsyncConnection[Row]] = WeakSet()
        self._closed = False

    async def fetch(
        self, statement: bytes, parameters: Mapping[str, Any], *, prepare: bool | None = None
    ) -> list[Row]:
        """The rows that one statement returns, which is a transaction of its own.

        If the connection broke it is sent once more on another one, with `again` set: whether the
        first attempt came through nobody can know.
        """
        try:
            pool = self._pool
            if pool is None or self._loop is not asyncio.get_running_loop():
                pool = await self._open()
            try:
                return await self._attempt(pool, statement, parameters, prepare)
            except _ConnectionBrokeError:
                # After a restart of the server every other connection is as dead as this one.
                await pool.check()
            try:
                return await self._attempt(pool, statement, {**parameters, "again": True}, prepare)
            except _ConnectionBrokeError as broke:
                raise (broke.__cause__ or broke) from None
        except (psycopg.Error, TimeoutError) as error:
            raise self._fault(error) from error

    async def connect(self) -> AsyncConnection[Row]:
        """A connection beside those in the pool, to listen on."""
        connection = await AsyncConnection[Row].connect(self._target, autocommit=True)
        self._made.add(connection)
        return connection

    async def close(self) -> None:
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None and self._loop is asyncio.get_running_loop():
            await pool.close()
        self._drop()

    async def _attempt(
        self,
        pool: AsyncConnectionPool[AsyncConnection[Row]],
        statement: bytes,
        parameters: Mapping[str, Any],
        prepare: bool | None,
    ) -> list[Row]:
        connection = await self._taken(pool)
        try:
            # The server ends a statement that takes too long. If it hangs itself, this does: the
            # inner one asks it to give up, the outer one does not wait for an answer to that.
            async with asyncio.timeout(self._timeout + 2), asyncio.timeout(self._timeout + 1):
                cursor = await connection.execute(statement, parameters, prepare=prepare)
                return await cursor.fetchall()
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if connection.closed:
                raise _ConnectionBrokeError from error
            raise
        finally:
            await pool.putconn(connection)

    async def _taken(self, pool: AsyncConnectionPool[AsyncConnection[Row]]) -> AsyncConnection[Row]:
        """A connection of the pool, unless this task is cancelled.

        When one is handed over at the very moment of a cancellation, the pool returns it and the cancellation
        is forgotten.
        """
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        connection = await pool.getconn()
        if task is not None and task.cancelling() > before:
            await pool.putconn(connection)
            raise asyncio.CancelledError
        return connection

    async def _open(self) -> AsyncConnectionPool[AsyncConnection[Row]]:
        """The pool of this event loop; the first one to ask sees to the tables too."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_running():
                raise StoreError(
                    "this store is in use by another event loop, and its connections cannot be shared: "
                    "make a store for each"
                )
            self._drop()
            self._loop, self._pool, self._opening = loop, None, asyncio.Lock()
        async with asyncio.timeout(self._timeout):
            await self._opening.acquire()
        try:
            if self._closed:
                raise StoreError("this store was closed: make a new one")
            if self._pool is None:
                await self._prepare()
                pool = _Pool(
                    self._target,
                    kwargs={"autocommit": True},
                    min_size=self._fewest,
                    max_size=self._most,
                    timeout=self._timeout,
                    reconnect_timeout=self._timeout,
                    configure=self._configure,
                    open=False,
                )
                await pool.open()
                self._pool = pool
            return self._pool
        finally:
            self._opening.release()

    async def _prepare(self) -> None:
        """Bring the tables up to date, on a connection of its own that says why it fails if it does."""
        async with await AsyncConnection.connect(self._target, autocommit=True) as connection:
            await self._configure(connection)
            await migrate(connection, self._schema)

    async def _configure(self, connection: AsyncConnection[Row]) -> None:
        self._made.add(connection)
        await connection.execute(CONFIGURE, {"milliseconds": str(max(1, ceil(self._timeout * 1000)))})

    def _drop(self) -> None:
        """Close what an event loop has left behind that cannot do it any more."""
        for connection in list(self._made):
            connection.pgconn.finish()
        self._made.clear()

    def _fault(self, error: Exception) -> StoreError:
        """What a person is told of a fault, and whether it is worth another try."""
        parts = conninfo.conninfo_to_dict(self._target)
        where = f"PostgreSQL ({parts.get('host', 'local')}, database {parts.get('dbname', 'by default')})"
        kind, words = self._in_words(error)
        told = f"{where} {words}"
        return kind(told.replace(str(parts["password"]), "…") if parts.get("password") else told)

    def _in_words(self, error: Exception) -> tuple[type[StoreError], str]:
        words = " ".join(str(error).split())
        match error:
            case PoolClosed():
                return StoreError, "is not used by this store any more, which was closed: make a new one"
            case PoolTimeout():
                return StoreUnavailableError, (
                    f"gave no connection within {self._timeout:g} s: it is down, or all {self._most} "
                    "connections of this store are in use. What is stored is safe; try again"
                )
            case errors.QueryCanceled():
                return StoreUnavailableError, (
                    f"was not done within {self._timeout:g} s and nothing was changed: somebody holds a "
                    f"lock on the session, or the server is too busy ({words}). Try again"
                )
            case errors.ReadOnlySqlTransaction():
                return StoreUnavailableError, (
                    "takes no changes, it is read-only: a standby, perhaps. Connect to the primary, or "
                    "try again when it takes changes"
                )
            case psycopg.OperationalError() | psycopg.InterfaceError() | TimeoutError():
                return StoreUnavailableError, (
                    f"cannot be used at the moment: {words or 'it does not answer'}. What is stored is "
                    "safe; a change on its way may or may not have arrived. Try again"
                )
        return StoreError, f"refused: {words}"


class _ConnectionBrokeError(Exception):
    """A connection ended in the middle of a statement; its cause says how."""


def _target(address: str, timeout: float) -> str:
    """The address with what a connection of ours needs, where it does not say otherwise."""
    ours: dict[str, Any] = {
        "application_name": "whyloop",
        "connect_timeout": max(2, ceil(timeout)),
        "tcp_user_timeout": max(1, ceil(timeout * 1000)),
    }
    try:
        theirs = conninfo.conninfo_to_dict(address)
    except psycopg.ProgrammingError:
        # What libpq says about it may have a part of the password in it.
        raise ConfigurationError(
            "this is no address of a PostgreSQL database: it looks like postgresql://user:password@host:5432/name"
        ) from None
    if "@" in str(theirs.get("host", "")).lstrip("@"):
        raise ConfigurationError(
            "the host has an @ in it: an @ that belongs to the password is written as %40"
        )
    return conninfo.make_conninfo(**{**ours, **theirs})
