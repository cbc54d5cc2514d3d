"""The connection that a store keeps for itself: it holds locks, and passes streaming text on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from secrets import randbits
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from whyloop.errors import StoreError
from whyloop.logger import Logger
from whyloop.stores.postgres_connections import Connections, DriverError, Row
from whyloop.stores.records import Chunk
from whyloop.stores.store import ChunkReceiver, Deliver

if TYPE_CHECKING:
    from psycopg import AsyncConnection

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
# holds one lock that stands for all of them.
MOST_LOCKS = 200
EVERYTHING = 0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


class OwnConnection:
    """The one connection that a store keeps for itself, beside the pool; one task owns it.

    It holds an advisory lock that shows that this runner lives, and one for each session that is followed.
    It sends chunks, and receives those that others send. It is made when one of these is first needed, and
    whenever it breaks it is made again, with the same locks.
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
        """Return the number of the lock that shows that this runner lives, None if there is none."""
        self._runs = True
        if not self._start() or not self._locked:
            await self.ready()
        return self._lock if self._locked else None

    async def ready(self) -> None:
        """Wait until the connection has all its locks, or an attempt to make it has failed."""
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
        """Close the connection soon, from whatever thread."""
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _start(self) -> bool:
        """Have the connection made if there is none; False if there can be none."""
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
                        self._report(f"there is no connection for locks and streaming text: {fault}")
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
                "a connection pooler stands between this store and PostgreSQL: streaming text does not reach "
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
        """Hold a lock for each session that is followed, by its number, and listen if there are any."""
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """Return a chunk with the lengths of its parts; empty if it is too long, or no text for PostgreSQL."""
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
