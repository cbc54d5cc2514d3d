"""The connections of a PostgreSQL store: a pool, and one more for locks and streaming text."""

from __future__ import annotations

import asyncio
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from secrets import randbits
from typing import Any, Self
from weakref import WeakSet

import msgspec

from whyloop.errors import (
    ConfigurationError,
    StoreConfigurationError,
    StoreError,
    StoreUnavailableError,
    how_to_install,
)
from whyloop.logger import Logger
from whyloop.stores.live import ChunkReceiver, Deliver
from whyloop.stores.records import Chunk
from whyloop.values.credentials import without_known

try:
    import psycopg
    from psycopg import AsyncConnection, conninfo, errors
    from psycopg.pq import TransactionStatus
except ImportError as error:
    raise ConfigurationError(
        f"a PostgreSQL store needs a driver: {how_to_install('postgres')} ({error})"
    ) from None


DriverError = psycopg.Error
Row = tuple[Any, ...]
MakeConnection = Callable[[], Awaitable["AsyncConnection[Row]"]]

# After the first release, new migrations are added at the end, and none is ever changed.
MIGRATIONS = {"0001": Path(__file__).with_name("postgres_0001.sql").read_text(encoding="utf-8")}
# A question to a person that libpq adds, in the middle of our sentence.
_HINT = " Is the server running on that host and accepting TCP/IP connections?"

# Parts of the timeout: after which the server ends a statement, after which one that the server did not end
# is given up, and after which the caller gets the error, who still has to tidy up.
STATEMENT, LAST_CALL, BUDGET = 0.75, 0.9, 0.95
# So long after there were more idle connections than stay open, those that are idle then are closed.
IDLE_SECONDS = 600.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

CLOSED = "this store was closed: make a new one"
_SAFE = "Stored sessions are safe; a change on its way may or may not have arrived. Try again"

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


class _Connection(AsyncConnection[Row]):
    """A connection that ends with a program that left its store open, without a warning."""

    def __del__(self, *_: object) -> None:
        if hasattr(self, "pgconn"):
            self.pgconn.finish()


class _Pool:
    """The connections of one event loop, made when all others are in use.

    It has no task of its own: whoever needs a connection makes it, and receives the error if that fails.

    Args:
        connect: The function that makes a connection.
        fewest: The connections that stay open.
        most: The maximum number of connections.
    """

    def __init__(self, connect: MakeConnection, fewest: int, most: int) -> None:
        self._connect = connect
        self._fewest = fewest
        self._free = asyncio.Semaphore(most)
        self._idle: deque[AsyncConnection[Row]] = deque()
        self._closing: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def is_full(self) -> bool:
        """True if all connections are in use."""
        return self._free.locked()

    def add(self, connection: AsyncConnection[Row]) -> None:
        """Keep a connection for the first statement."""
        self._idle.append(connection)

    async def take(self) -> AsyncConnection[Row]:
        """Return a connection, the one that was used last if there is one."""
        await self._free.acquire()
        try:
            if self._closed:
                raise StoreError(CLOSED)
            return self._idle.pop() if self._idle else await self._connect()
        except BaseException:
            self._free.release()
            raise

    def give_back(self, connection: AsyncConnection[Row]) -> None:
        """Keep a connection for the next statement, unless it broke in the middle of one."""
        is_idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
        if self._closed or not is_idle:
            connection.pgconn.finish()
        else:
            self._idle.append(connection)
            if len(self._idle) > self._fewest and self._closing is None:
                loop = asyncio.get_running_loop()
                self._closing = loop.call_later(IDLE_SECONDS, self._close_oldest)
        self._free.release()

    def close(self) -> None:
        """Close all connections, those in use as soon as they are given back."""
        self._closed = True
        if self._closing is not None:
            self._closing.cancel()
        self.close_idle()

    def close_idle(self, fewest: int = 0) -> None:
        """Close the connections that are not in use, the oldest ones first."""
        while len(self._idle) > fewest:
            self._idle.popleft().pgconn.finish()

    def _close_oldest(self) -> None:
        self._closing = None
        self.close_idle(self._fewest)


class Connections:
    """The connections of one store, made when they are first needed.

    They belong to the event loop that made them. Once that one has ended, the next gets new ones.
    """

    def __init__(self, address: str, schema: str, fewest: int, most: int, timeout: float) -> None:
        self._target = _target(address, timeout)
        self._schema = schema
        self._fewest, self._most, self.timeout = fewest, most, timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: _Pool | None = None
        self._opening = asyncio.Lock()
        self._made: WeakSet[AsyncConnection[Row]] = WeakSet()
        self._closed = False

    @property
    def database(self) -> str:
        """The name of the database."""
        return str(conninfo.conninfo_to_dict(self._target).get("dbname") or "postgresql")

    def deadline(self) -> float:
        """Return when work that begins now must have ended, by the clock of the event loop."""
        return asyncio.get_running_loop().time() + BUDGET * self.timeout

    async def fetch(
        self,
        statement: bytes,
        parameters: Mapping[str, Any],
        *,
        prepare: bool | None = None,
        deadline: float | None = None,
    ) -> list[Row]:
        """Return the rows of one statement, in its own transaction, or raise an error before the deadline.

        If the connection breaks, the statement is sent once more on another one, with `again` set, since
        the first attempt may have arrived.
        """
        deadline = self.deadline() if deadline is None else deadline
        try:
            pool = self._pool
            if pool is None or self._loop is not asyncio.get_running_loop():
                pool, deadline = await self._open(deadline)
            try:
                return await self._attempt(pool, statement, parameters, prepare, deadline)
            except _ConnectionBrokeError:
                # After a restart of the server every other connection is as dead as this one.
                pool.close_idle()
            try:
                return await self._attempt(pool, statement, {**parameters, "again": True}, prepare, deadline)
            except _ConnectionBrokeError as broke:
                raise (broke.__cause__ or broke) from None
        except (psycopg.Error, TimeoutError) as error:
            raise self.fault(error) from error

    async def connect(self) -> AsyncConnection[Row]:
        """Return a connection beside those in the pool."""
        connection = await _Connection.connect(self._target, autocommit=True)
        self._made.add(connection)
        return connection

    def claim(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop, to which the store belongs from now on."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise StoreError(CLOSED)
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_running():
                raise StoreError(
                    "this store is in use by another event loop, and its connections cannot be shared: "
                    "make a store for each"
                )
            self._drop()
            self._loop, self._pool, self._opening = loop, None, asyncio.Lock()
        return loop

    def close(self) -> None:
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None and self._loop is asyncio.get_running_loop():
            pool.close()
        self._drop()

    async def _attempt(
        self,
        pool: _Pool,
        statement: bytes,
        parameters: Mapping[str, Any],
        prepare: bool | None,
        deadline: float,
    ) -> list[Row]:
        last_call = deadline - (BUDGET - LAST_CALL) * self.timeout
        connection = await self._taken(pool, last_call)
        try:
            # The server ends a statement that takes too long. If the server hangs, this does: the inner
            # timeout asks it to give up, the outer one does not wait for an answer to that.
            async with asyncio.timeout_at(deadline), asyncio.timeout_at(last_call):
                cursor = await connection.execute(statement, parameters, prepare=prepare, binary=True)
                return await cursor.fetchall()
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if connection.closed:
                raise _ConnectionBrokeError from error
            raise
        finally:
            pool.give_back(connection)

    async def _taken(self, pool: _Pool, deadline: float) -> AsyncConnection[Row]:
        """Return a connection; while the server is away, try to make one until the deadline."""
        failure, pause = None, FIRST_PAUSE
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        return await pool.take()
                    except psycopg.OperationalError as error:
                        if misconfigured(error):
                            raise
                        failure = error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        except TimeoutError:
            why = "all connections of this store are in use" if pool.is_full else "it does not answer"
            raise _NoConnectionError(why if failure is None else _sentence(failure)) from failure

    async def _open(self, deadline: float) -> tuple[_Pool, float]:
        """Return the pool of this event loop, and the deadline, a later one after a migration.

        The first caller brings the tables up to date, on a connection whose errors say why it fails.
        """
        self.claim()
        async with asyncio.timeout_at(deadline):
            await self._opening.acquire()
        try:
            self.claim()
            if self._pool is None:
                async with asyncio.timeout_at(deadline):
                    connection = await self._connected()
                    missing = await _missing(connection, self._schema)
                if missing:  # Which may take longer than any other work.
                    await _migrate(connection, self._schema)
                    deadline = self.deadline()
                self.claim()
                pool = _Pool(self._connected, self._fewest, self._most)
                pool.add(connection)
                self._pool = pool
            return self._pool, deadline
        finally:
            self._opening.release()

    async def _connected(self) -> AsyncConnection[Row]:
        """Return a new connection with the settings of this store."""
        connection = await self.connect()
        limit = max(1, math.ceil(STATEMENT * self.timeout * 1000))
        try:
            await connection.execute(CONFIGURE, {"milliseconds": str(limit)})
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection

    def abandon(self) -> None:
        """Close the connections soon; any thread may call this."""
        if self._loop is not None and self._pool is not None and not self._loop.is_closed():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._pool.close)

    def _drop(self) -> None:
        """Close the connections of an event loop that cannot do so any more."""
        for connection in list(self._made):
            connection.pgconn.finish()
        self._made.clear()

    def fault(self, error: Exception) -> StoreError:
        """Return the error to raise instead, without the password."""
        parts = conninfo.conninfo_to_dict(self._target)
        secrets = [str(parts.get("password") or "")]
        where = f"{parts.get('host', 'local')}, database {parts.get('dbname', 'by default')}"
        kind, explanation = self._explained(error, without_known(_sentence(error), secrets))
        return kind(f"PostgreSQL ({without_known(where, secrets)}) {explanation}")

    def _explained(self, error: Exception, text: str) -> tuple[type[StoreError], str]:
        advice = misconfigured(error)
        if advice:
            return StoreConfigurationError, f"refused the store: {text}. {advice}"
        match error:
            case _NoConnectionError():
                return StoreUnavailableError, (
                    f"provided no connection within {self.timeout:g} s: {text}. {_SAFE}"
                )
            case errors.QueryCanceled():
                return StoreUnavailableError, (
                    f"did not finish within {self.timeout:g} s, and nothing was changed: another program "
                    f"holds a lock on the session, or the server is too busy ({text}). Try again"
                )
            case errors.ReadOnlySqlTransaction():
                return StoreUnavailableError, (
                    "is read-only, perhaps because it is a standby. Connect to the primary, or try again "
                    "when it accepts changes"
                )
            case psycopg.OperationalError() | psycopg.InterfaceError() | TimeoutError():
                return StoreUnavailableError, (
                    f"cannot be used at the moment: {text or 'it does not answer'}. {_SAFE}"
                )
        return StoreError, f"refused: {text}"


class _ConnectionBrokeError(Exception):
    """A connection ended in the middle of a statement; its cause says how."""


class _NoConnectionError(TimeoutError):
    """There was no connection in time; its text says why."""


def _sentence(error: Exception) -> str:
    """Return the text of an error on one line, without a question to a person that libpq adds."""
    return " ".join(str(error).split()).replace(_HINT, "")


# What to do about errors that no other attempt can mend: by SQLSTATE, of which the beginning suffices, and by
# the text of a connection that was refused, for which libpq tells no SQLSTATE.
_ROLE = "Check the user and the password in the address of the store, and pg_hba.conf on the server"
_DATABASE = "Create the database, or name another one in the address of the store"
_RIGHTS = (
    "Let the role of the store own the schema with all that is in it, or grant it the right to use them; "
    "to connect and to make the schema, it needs CONNECT and CREATE on the database"
)
_TABLES = (
    "The tables of this store were removed or changed by another program: restore them from a backup; if the "
    "whole schema is gone, a new store makes it again, empty"
)
_ENCODING = "Use a database with the encoding UTF8"
_HOST = "Correct the host in the address of the store"
_SETTINGS = "Correct the options in the address of the store"
_NOT_POSTGRES = "Another service has this port: correct the host and port in the address of the store"
_TLS = "Correct sslmode and the certificates in the address of the store, or the settings of the server"
_BY_STATE = {
    "28": _ROLE,
    "3D000": _DATABASE,
    "42501": _RIGHTS,
    "3F000": _TABLES,
    "42P01": _TABLES,
    "42703": _TABLES,
    "42704": _TABLES,
    "42883": _TABLES,
    "22021": _ENCODING,
    "22P05": _ENCODING,
}
_BY_TEXT = {
    _ROLE: (
        r"authentication failed|no password supplied|pg_hba\.conf|"
        r"role \".*\" (does not exist|is not permitted)"
    ),
    _DATABASE: r"database \".*\" (does not exist|is not currently accepting)",
    _RIGHTS: r"permission denied for database",
    _HOST: r"failed to resolve host (?!.*(temporary failure|\[errno -3\]))",
    _TLS: r"SSL was required|certificate|SSL error|SSL negotiation|does not support SSL|no encryption",
    _SETTINGS: (
        r"unrecognized configuration parameter|invalid (value for parameter|command-line argument|\w+ value)|"
        r"invalid (integer value|port number)|parameter \".*\" cannot be (changed|set)"
    ),
    _NOT_POSTGRES: r"expected (authentication|.*response)|invalid response|unsupported frontend protocol",
}


def misconfigured(error: Exception) -> str | None:
    """Return what to do about an error that no other attempt can mend; None for any other."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return next((advice for known, advice in _BY_STATE.items() if state.startswith(known)), None)
    if not isinstance(error, psycopg.OperationalError) or isinstance(error, errors.ConnectionTimeout):
        return None
    text = _sentence(error)
    return next((advice for advice, words in _BY_TEXT.items() if re.search(words, text, re.IGNORECASE)), None)


async def _migrate(connection: AsyncConnection[Any], schema: str) -> None:
    """Bring the tables up to date; any number of processes may do so at once."""
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
        "connect_timeout": max(2, math.ceil(timeout)),
        "tcp_user_timeout": max(1, math.ceil(timeout * 1000)),
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
            await asyncio.wait([waiting], timeout=min(PATIENCE_SECONDS, self._connections.timeout / 4))

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
        """Keep the connection; if it cannot be made for long, end until it is needed again."""
        pause, give_up = 0.0, self._connections.deadline()
        try:
            while self._direct and not self._closing:
                try:
                    async with await self._connections.connect() as connection:
                        pause, give_up = 0, math.inf
                        if await self._is_direct(connection):
                            await self._serve(connection)
                except (DriverError, OSError) as error:
                    give_up = min(give_up, self._connections.deadline())
                    is_late = asyncio.get_running_loop().time() > give_up and not self.receivers
                    is_over = misconfigured(error) is not None or is_late
                    if pause or is_over:
                        fault = self._connections.fault(error)
                        self._report(f"no connection for locks and streaming text: {fault}")
                    if is_over:
                        return
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
