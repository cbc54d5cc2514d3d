"""The connections of a PostgreSQL store: a pool, and one more for locks and streaming text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from math import ceil
from pathlib import Path
from secrets import randbits
from typing import Any, Self
from weakref import WeakSet

import msgspec

from whyloop.errors import ConfigurationError, StoreError, StoreUnavailableError, how_to_install
from whyloop.logger import Logger
from whyloop.stores.live import ChunkReceiver, Deliver
from whyloop.stores.records import Chunk

try:
    import psycopg
    from psycopg import AsyncConnection, conninfo, errors
    from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout
except ImportError as error:
    raise ConfigurationError(
        f"a PostgreSQL store needs a driver: {how_to_install('postgres')} ({error})"
    ) from None


DriverError = psycopg.Error
Row = tuple[Any, ...]
Pool = AsyncConnectionPool[AsyncConnection[Row]]

# After the first release, new migrations are added at the end, and none is ever changed.
MIGRATIONS = {"0001": Path(__file__).with_name("postgres_0001.sql").read_text(encoding="utf-8")}
# A question to a person that libpq adds, in the middle of our sentence.
_HINT = " Is the server running on that host and accepting TCP/IP connections?"

# Settings of a connection, independent of the server's defaults: entries are durable on return, each
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


class _Pool(AsyncConnectionPool[AsyncConnection[Row]]):
    """A pool whose workers end when they are cancelled.

    Those of the library continue if they are cancelled while they connect, and `asyncio.run` then waits
    forever for a program that left its store open.
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

    @property
    def database(self) -> str:
        """The name of the database."""
        return str(conninfo.conninfo_to_dict(self._target).get("dbname") or "postgresql")

    async def fetch(
        self, statement: bytes, parameters: Mapping[str, Any], *, prepare: bool | None = None
    ) -> list[Row]:
        """Return the rows of one statement, in its own transaction.

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

        If the pool hands one over at the moment of a cancellation, it forgets the cancellation.
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
        text = " ".join(str(error).split()).replace(_HINT, "")
        match error:
            case PoolClosed():
                return StoreError, "cannot be used by this store, which was closed: make a new one"
            case PoolTimeout():
                return StoreUnavailableError, (
                    f"provided no connection within {self._timeout:g} s: it is down, or all {self._most} "
                    "connections of this store are in use. Stored sessions are safe; try again"
                )
            case errors.QueryCanceled():
                return StoreUnavailableError, (
                    f"did not finish within {self._timeout:g} s, and nothing was changed: another program "
                    f"holds a lock on the session, or the server is too busy ({text}). Try again"
                )
            case errors.ReadOnlySqlTransaction():
                return StoreUnavailableError, (
                    "is read-only, perhaps because it is a standby. Connect to the primary, or try again "
                    "when it accepts changes"
                )
            case psycopg.OperationalError() | psycopg.InterfaceError() | TimeoutError():
                return StoreUnavailableError, (
                    f"cannot be used at the moment: {text or 'it does not answer'}. Stored sessions "
                    "are safe; a change on its way may or may not have arrived. Try again"
                )
        return StoreError, f"refused: {text}"


class _ConnectionBrokeError(Exception):
    """A connection ended in the middle of a statement; its cause says how."""


async def _migrate(connection: AsyncConnection[Any], schema: str) -> None:
    """Bring the tables up to date; any number of processes may do so at once.

    If nothing is missing, it locks nothing and needs no right to change tables.
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
            found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema])
            if await found.fetchone() is None:
                await connection.execute(filled("CREATE SCHEMA {schema}", schema))
            await connection.execute(filled(MIGRATIONS[migration], schema))
            insert = filled("INSERT INTO {schema}.migrations (name) VALUES (%s)", schema)
            await connection.execute(insert, [migration])


def filled(statement: str, schema: str) -> bytes:
    """Return a statement for the tables of one schema."""
    if not schema or len(schema.encode()) > 63 or any(sign in schema for sign in "'$\x00"):
        raise ConfigurationError(f"invalid schema {schema!r}: use 1 to 63 characters, without ' and $")
    quoted = schema.replace('"', '""')
    return statement.replace("{schema}", f'"{quoted}"').encode()


async def _missing(connection: AsyncConnection[Any], schema: str) -> list[str]:
    """Return the missing migrations; raise a `StoreError` for unknown ones."""
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
    """Return the address with default settings that it does not have."""
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


_log = Logger()

# Settings of the connection that a store keeps for itself: it may wait, and be idle, for as long as it
# likes. Not every version of PostgreSQL has all of them.
CONFIGURE_OWN = """
SELECT pg_backend_pid(), count(set_config(name, '0', false)) FROM pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout')
"""

# PostgreSQL takes less than 8,000 bytes in a notification.
LARGEST_PAYLOAD = 7_400
PATIENCE_SECONDS = 1.0
# All connections of a server share room for some 6,400 locks. A store that follows more sessions than this
# holds one lock for all of them.
MOST_LOCKS = 200
EVERYTHING = 0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


class OwnConnection:
    """The one connection that a store keeps for itself, beside the pool; one task owns it.

    It holds an advisory lock that shows that this runner lives, and one for each session that is followed.
    It sends chunks, and receives those that others send. It is made when one of these is first needed, and
    whenever it breaks, it is made again with the same locks.
    """

    def __init__(self, connections: Connections, schema: str, send: bytes) -> None:
        self._connections = connections
        self._send_statement = send
        self._schema = schema
        self._space = _number(f"whyloop chunks {schema}")
        self._channel = f"whyloop_{self._space}"
        self._lock = randbits(63)
        self._runs = self._locked = self._listens = self._closing = self._pausing = self._reported = False
        self._changed = False
        self._direct = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._outbox: dict[asyncio.Future[None], Mapping[str, Any]] = {}
        self._held: set[int] = set()
        self.receivers: list[ChunkReceiver] = []

    async def runner_lock(self) -> int | None:
        """Return the number of the lock that shows that this runner lives, or None."""
        self._runs = True
        if not self._start() or not self._locked:
            await self.ready()
        return self._lock if self._locked else None

    async def ready(self) -> None:
        """Wait until the connection has all its locks or has failed."""
        if self._start():
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            self._wake.set()
            await asyncio.wait([waiting], timeout=PATIENCE_SECONDS)

    def refresh(self) -> None:
        """Take the locks that the receivers need now, and release the others."""
        self._changed = True
        self._wake.set()

    async def send(self, chunks: Sequence[Chunk]) -> None:
        """Send chunks to other connections that follow their sessions, as far as possible."""
        framed = [
            {"session": _number(chunk.agent_id), "chunk": text}
            for chunk in chunks
            if (text := _framed(chunk))
        ]
        try:
            if not framed or not self._start() or self._pausing:
                return
        except StoreError as error:
            self._report(str(error))
            return
        sent = asyncio.get_running_loop().create_future()
        given = {
            "channel": self._channel,
            "space": self._space,
            "chunks": msgspec.json.encode(framed).decode(),
            "longest": LARGEST_PAYLOAD,
        }
        self._outbox[sent] = given
        self._wake.set()
        await asyncio.wait([sent], timeout=PATIENCE_SECONDS)
        self._outbox.pop(sent, None)

    async def close(self) -> None:
        self._closing = True
        if self._task is not None and self._loop is asyncio.get_running_loop():
            self._wake.set()
            await asyncio.wait([self._task], timeout=PATIENCE_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])

    def abandon(self) -> None:
        """Close the connection soon; any thread may call this."""
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _start(self) -> bool:
        """Start the connection if there is none; False if there can be none."""
        loop = self._connections.claim()
        if self._loop is not loop:
            self._loop, self._task, self._wake = loop, None, asyncio.Event()
            self._lose()
        if self._direct and not self._closing and (self._task is None or self._task.done()):
            self._task = loop.create_task(self._run(), name="whyloop connection")
        return self._direct

    async def _run(self) -> None:
        pause = 0.0
        try:
            while self._direct and not self._closing:
                try:
                    async with await self._connections.connect() as connection:
                        pause = 0
                        if await self._is_direct(connection):
                            await self._serve(connection)
                except (DriverError, OSError) as error:
                    if pause:
                        fault = self._connections.fault(error)
                        self._report(f"no connection for locks and streaming text: {fault}")
                self._lose()
                self._wake.clear()
                self._pausing = pause > 0
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                self._pausing = False
                pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
        finally:
            self._lose()

    async def _is_direct(self, connection: AsyncConnection[Row]) -> bool:
        """Set the connection up; False if a pooler answers, which keeps no locks."""
        rows = await (await connection.execute(CONFIGURE_OWN)).fetchall()
        self._pid = connection.info.backend_pid
        self._direct = rows[0][0] == self._pid
        if not self._direct:
            _log.warning(
                "a connection pooler is between this store and PostgreSQL: streaming text does not reach "
                "followers in other processes, and a dead runner is detected when its lease lapses. "
                "Connect to the server itself"
            )
        return self._direct

    async def _serve(self, connection: AsyncConnection[Row]) -> None:
        loop, pgconn = asyncio.get_running_loop(), connection.pgconn
        connection.add_notify_handler(lambda notice: self._receive(notice.pid, notice.payload))
        while not self._closing:
            self._wake.clear()
            await self._catch_up(connection)
            pgconn.consume_input()
            while (notice := pgconn.notifies()) is not None:
                self._receive(notice.be_pid, notice.extra.decode())
            descriptor = pgconn.socket
            loop.add_reader(descriptor, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                loop.remove_reader(descriptor)
        # Closing the connection would release the locks a moment later.
        await connection.execute("SELECT pg_advisory_unlock_all()")

    async def _catch_up(self, connection: AsyncConnection[Row]) -> None:
        """Take and release locks, and send chunks, until nothing is left to do."""
        if self._runs and not self._locked:
            # If the server has not noticed yet that the connection before is dead, this waits for it.
            await connection.execute("SELECT pg_advisory_lock(%s::bigint)", [self._lock])
            self._locked = True
        if self._changed:
            self._changed = False
            followed = {agent_id for each in self.receivers for agent_id in each.followed}
            numbers = {EVERYTHING} if len(followed) > MOST_LOCKS else set(map(_number, followed))
            await self._follow(connection, numbers)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            _resolve(each)
        while self._outbox:
            sent = next(iter(self._outbox))
            try:
                await connection.execute(self._send_statement, self._outbox.pop(sent))
            except DriverError as error:
                if connection.closed:
                    raise
                self._report(f"streaming text could not be sent: {self._connections.fault(error)}")
            finally:
                _resolve(sent)

    async def _follow(self, connection: AsyncConnection[Row], wanted: set[int]) -> None:
        """Hold a lock for each followed session, and listen if there are any."""
        if bool(wanted) != self._listens:
            await connection.execute(f"{'LISTEN' if wanted else 'UNLISTEN'} {self._channel}")
            self._listens = bool(wanted)
        for function, numbers in (
            ("pg_advisory_lock_shared", wanted - self._held),
            ("pg_advisory_unlock_shared", self._held - wanted),
        ):
            if numbers:
                await connection.execute(
                    f"SELECT {function}(%s::integer, number) FROM unnest(%s::integer[]) AS number",
                    [self._space, list(numbers)],
                )
        self._held = wanted

    def _receive(self, pid: int, payload: str) -> None:
        if pid != self._pid:
            chunks = _chunks_in(payload)
            for receiver in list(self.receivers):
                receiver.hand_over(chunks)

    def _report(self, failure: str) -> None:
        """Log the first failure, since the next ones are likely to be the same."""
        if not self._reported:
            self._reported = True
            _log.warning("%s", failure)

    def _lose(self) -> None:
        """Forget the locks of a connection that is gone, and stop waiting for it."""
        self._locked = self._listens = False
        self._held, self._changed = set(), True
        for each in (*self._waiting, *self._outbox):
            _resolve(each)
        self._waiting, self._outbox = [], {}


class PostgresReceiver(ChunkReceiver):
    """Receive chunks on the connection that the store keeps for itself."""

    def __init__(self, own: OwnConnection, deliver: Deliver) -> None:
        super().__init__(deliver)
        self._own = own

    async def __aenter__(self) -> Self:
        await self._own.ready()
        self._own.receivers.append(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._own.receivers.remove(self)
        self.followed.clear()
        self._own.refresh()

    async def catch_up(self) -> None:
        await self._own.ready()  # Its task then reads all notifications that have arrived.

    def follow(self, agent_id: str) -> None:
        super().follow(agent_id)
        self._own.refresh()

    def unfollow(self, agent_id: str) -> None:
        super().unfollow(agent_id)
        self._own.refresh()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@lru_cache(maxsize=10_000)
def _number(text: str) -> int:
    """Return 31 bits of a text's fingerprint."""
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def _framed(chunk: Chunk) -> str:
    """Return a chunk with the lengths of its parts; empty if it cannot be sent."""
    text = f"{len(chunk.agent_id)},{len(chunk.body)};{chunk.agent_id}{chunk.body}"
    if len(text) > LARGEST_PAYLOAD or "\x00" in text:
        return ""
    try:
        return text if len(text.encode()) <= LARGEST_PAYLOAD else ""
    except UnicodeEncodeError:
        return ""


def _chunks_in(payload: str) -> list[Chunk]:
    chunks: list[Chunk] = []
    start = 0
    while start < len(payload):
        comma, semicolon = payload.index(",", start), payload.index(";", start)
        middle = semicolon + 1 + int(payload[start:comma])
        end = middle + int(payload[comma + 1 : semicolon])
        chunks.append(Chunk(payload[semicolon + 1 : middle], payload[middle:end]))
        start = end
    return chunks
