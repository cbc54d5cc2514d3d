"""The connections of a PostgreSQL store: the pool, appends that share a round trip, and migrations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from copy import copy
from math import ceil
from typing import Any, LiteralString, TypeVar
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

from whyloop.stores.postgres_schema import MIGRATIONS, filled
from whyloop.stores.records import Watch

T = TypeVar("T")
DriverError = psycopg.Error
Row = tuple[Any, ...]
Pool = AsyncConnectionPool[AsyncConnection[Row]]

# Settings of a connection, whatever the server's defaults are: entries are durable on return, each
# statement sees what was committed before it, and times come in UTC. Every statement here can follow an
# index in its order: a plan that reads all rows while a table is small would be kept when it is not.
CONFIGURE = """
SELECT set_config('statement_timeout', %(milliseconds)s, false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('TimeZone', 'UTC', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_bitmapscan', 'off', false),
       CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', false) END
"""

# Appends per round trip, their size in bytes, and round trips at once: while one batch is being synced,
# the server works on the next.
LONGEST_BATCH = 64
LARGEST_BATCH = 1 << 20
MOST_BATCHES = 2


async def to_the_end(work: Awaitable[T]) -> T:
    """Wait for a write to its end, and deliver a cancellation only then."""
    future, cancelled = asyncio.ensure_future(work), None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()
        raise cancelled
    return future.result()


class _Pool(AsyncConnectionPool[AsyncConnection[Row]]):
    """A pool whose workers end when they are cancelled.

    Those of the library continue if they are cancelled while they connect, and `asyncio.run` then waits
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
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._made: WeakSet[AsyncConnection[Row]] = WeakSet()
        self._closed = False

    async def fetch(
        self, statement: bytes, parameters: Mapping[str, Any], *, prepare: bool | None = None
    ) -> list[Row]:
        """Return the rows of one statement, which is a transaction of its own.

        If the connection breaks, the statement is sent once more on another one, with `again` set, since
        the first attempt may have arrived.
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
            raise self.fault(error) from error

    async def connect(self) -> AsyncConnection[Row]:
        """Return a connection beside those in the pool."""
        connection = await AsyncConnection[Row].connect(self._target, autocommit=True)
        self._made.add(connection)
        return connection

    def claim(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop, to which the store belongs from now on."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise StoreError("this store was closed: make a new one")
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_running():
                raise StoreError(
                    "this store is in use by another event loop, and its connections cannot be shared: "
                    "make a store for each"
                )
            self._drop()
            self._loop, self._pool, self._opening = loop, None, asyncio.Lock()
        return loop

    async def close(self) -> None:
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None and self._loop is asyncio.get_running_loop():
            await pool.close()
        self._drop()

    async def _attempt(
        self, pool: Pool, statement: bytes, parameters: Mapping[str, Any], prepare: bool | None
    ) -> list[Row]:
        connection = await self._taken(pool)
        try:
            # The server ends a statement that takes too long. If the server hangs, this does: the inner
            # timeout asks it to give up, the outer one does not wait for an answer to that.
            async with asyncio.timeout(self._timeout + 2), asyncio.timeout(self._timeout + 1):
                cursor = await connection.execute(statement, parameters, prepare=prepare, binary=True)
                return await cursor.fetchall()
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if connection.closed:
                raise _ConnectionBrokeError from error
            raise
        finally:
            await pool.putconn(connection)

    async def _taken(self, pool: Pool) -> AsyncConnection[Row]:
        """Return a connection of the pool, unless this task is cancelled.

        If the pool hands one over at the very moment of a cancellation, it forgets the cancellation.
        """
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        connection = await pool.getconn()
        if task is not None and task.cancelling() > before:
            await pool.putconn(connection)
            raise asyncio.CancelledError
        return connection

    async def _open(self) -> Pool:
        """Return the pool of this event loop; the first caller sees to the tables too."""
        self.claim()
        async with asyncio.timeout(self._timeout):
            await self._opening.acquire()
        try:
            self.claim()
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
        """Bring the tables up to date, on a connection whose errors say why it fails."""
        async with await AsyncConnection.connect(self._target, autocommit=True) as connection:
            await self._configure(connection)
            await _migrate(connection, self._schema)

    async def _configure(self, connection: AsyncConnection[Row]) -> None:
        self._made.add(connection)
        await connection.execute(CONFIGURE, {"milliseconds": str(max(1, ceil(self._timeout * 1000)))})

    def _drop(self) -> None:
        """Close the connections of an event loop that cannot do so any more."""
        for connection in list(self._made):
            connection.pgconn.finish()
        self._made.clear()

    def fault(self, error: Exception) -> StoreError:
        """Return the error to raise instead, without the password."""
        parts = conninfo.conninfo_to_dict(self._target)
        where = f"PostgreSQL ({parts.get('host', 'local')}, database {parts.get('dbname', 'by default')})"
        kind, explanation = self._explained(error)
        text = f"{where} {explanation}"
        return kind(text.replace(str(parts["password"]), "…") if parts.get("password") else text)

    def _explained(self, error: Exception) -> tuple[type[StoreError], str]:
        text = " ".join(str(error).split())
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
                    f"was not done within {self._timeout:g} s and nothing was changed: another program "
                    f"holds a lock on the session, or the server is too busy ({text}). Try again"
                )
            case errors.ReadOnlySqlTransaction():
                return StoreUnavailableError, (
                    "takes no changes, it is read-only: a standby, perhaps. Connect to the primary, or "
                    "try again when it takes changes"
                )
            case psycopg.OperationalError() | psycopg.InterfaceError() | TimeoutError():
                return StoreUnavailableError, (
                    f"cannot be used at the moment: {text or 'it does not answer'}. What is stored is "
                    "safe; a change on its way may or may not have arrived. Try again"
                )
        return StoreError, f"refused: {text}"


class _ConnectionBrokeError(Exception):
    """A connection ended in the middle of a statement; its cause says how."""


class Appends:
    """Combine the appends that wait at the same time into one round trip and one transaction."""

    def __init__(self, connections: Connections, statement: bytes, clock: Watch | None) -> None:
        self._connections = connections
        self._statement = statement
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[bytes, asyncio.Future[Row]]] = []
        self._senders = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, change: bytes) -> Row:
        """Return the answer to a change; a cancellation does not cut it off."""
        loop = self._connections.claim()
        if self._loop is not loop:
            self._loop, self._waiting, self._senders, self._tasks = loop, [], 0, set()
        answer: asyncio.Future[Row] = loop.create_future()
        self._waiting.append((change, answer))
        # It starts when this round of the event loop is over, with all that was appended in it.
        if self._senders < MOST_BATCHES:
            self._senders += 1
            self._start(self._send_waiting())
        return await to_the_end(answer)

    async def close(self) -> None:
        """Wait for the appends on their way."""
        while self._tasks and self._loop is asyncio.get_running_loop():
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                size = count = 0
                while count < len(self._waiting) and count < LONGEST_BATCH and size < LARGEST_BATCH:
                    size += len(self._waiting[count][0])
                    count += 1
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                await self._deliver(batch, waiting=False)
        except asyncio.CancelledError:
            # The event loop is about to end, and these appends with it.
            for _, answer in self._waiting:
                answer.cancel()
            raise
        finally:
            # At once, and not when the task is done: an append in between would find no sender.
            self._senders -= 1

    async def _deliver(self, batch: Sequence[tuple[bytes, asyncio.Future[Row]]], *, waiting: bool) -> None:
        """Send a batch; those whose session is locked by another program wait on their own."""
        try:
            given = {
                "changes": (b"[" + b",".join([change for change, _ in batch]) + b"]").decode(),
                "waiting": waiting,
                "again": False,
                "moment": self._clock and self._clock.now(),
            }
            rows = await self._connections.fetch(self._statement, given)
            for each, row in zip(batch, rows, strict=True):
                if row[0] == "locked":
                    self._start(self._deliver([each], waiting=True))
                else:
                    each[1].set_result(row)
        except StoreError as error:
            if len(batch) > 1 and not isinstance(error, StoreUnavailableError):
                for each in batch:  # One of them is refused, and nothing was changed.
                    await self._deliver([each], waiting=waiting)
            else:
                for _, answer in batch:
                    answer.set_exception(copy(error))
        except BaseException:
            for _, answer in batch:
                answer.cancel()
            raise


async def _migrate(connection: AsyncConnection[Any], schema: str) -> None:
    """Bring the tables up to date; any number of processes may do so at once.

    Where nothing is to be done, nothing is locked, and no right to change tables is needed.
    """
    if not await _missing(connection, schema):
        return
    async with connection.transaction():
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"whyloop {schema}"]
        )
        # A migration of big tables may take longer than any other statement.
        await connection.execute("SET LOCAL statement_timeout = 0")
        for migration in await _missing(connection, schema):
            if migration == next(iter(MIGRATIONS)):
                await _begin(connection, schema)
            await connection.execute(filled(MIGRATIONS[migration], schema))
            insert = filled("INSERT INTO {schema}.migrations (name) VALUES (%s)", schema)
            await connection.execute(insert, [migration])


async def _begin(connection: AsyncConnection[Any], schema: str) -> None:
    found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema])
    if await found.fetchone() is None:
        await connection.execute(filled("CREATE SCHEMA {schema}", schema))
    await connection.execute(
        filled(
            "CREATE TABLE {schema}.migrations ("
            "name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())",
            schema,
        )
    )


async def _missing(connection: AsyncConnection[Any], schema: str) -> list[LiteralString]:
    """Return the migrations that were not applied yet; `StoreError` if some that were are unknown."""
    # Asked of the catalogue itself: `to_regclass` may not know yet what another process has just made.
    found = await connection.execute(
        "SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relname = 'migrations'",
        [schema],
    )
    if await found.fetchone() is None:
        return list(MIGRATIONS)
    rows = await connection.execute(filled("SELECT name FROM {schema}.migrations", schema))
    applied = {row[0] for row in await rows.fetchall()}
    unknown = sorted(applied - MIGRATIONS.keys())
    if unknown:
        raise StoreError(
            f"the tables of this store were written by a newer whyloop (they have {unknown[-1]!r}): "
            "upgrade whyloop to use them"
        )
    return [migration for migration in MIGRATIONS if migration not in applied]


def _target(address: str, timeout: float) -> str:
    """Return the address with the settings of a connection that it does not give itself."""
    ours: dict[str, Any] = {
        "application_name": "whyloop",
        "connect_timeout": max(2, ceil(timeout)),
        "tcp_user_timeout": max(1, ceil(timeout * 1000)),
    }
    try:
        theirs = conninfo.conninfo_to_dict(address)
    except psycopg.ProgrammingError:
        # The message of libpq may contain a part of the password.
        raise ConfigurationError(
            "this is not an address of a PostgreSQL database: use postgresql://user:password@host:5432/name"
        ) from None
    if "@" in str(theirs.get("host", "")).lstrip("@"):
        raise ConfigurationError(
            "the host has an @ in it: an @ that belongs to the password is written as %40"
        )
    return conninfo.make_conninfo(**{**ours, **theirs})
