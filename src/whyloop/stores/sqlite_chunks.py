"""Streaming text between processes that share a SQLite store: a second file, which may be lost."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from whyloop.logger import Logger
from whyloop.stores.records import Chunk
from whyloop.stores.sqlite_file import FORKED, SqliteFile, Work, create, is_broken, is_busy
from whyloop.stores.store import ChunkReceiver, Deliver

T = TypeVar("T")

_log = Logger()

_TABLES = """
CREATE TABLE IF NOT EXISTS followers (
    receiver TEXT NOT NULL, session TEXT NOT NULL, store TEXT NOT NULL, until REAL NOT NULL,
    PRIMARY KEY (receiver, session)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id TEXT NOT NULL, body TEXT NOT NULL, store TEXT NOT NULL, sent_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS chunks_by_age ON chunks (sent_at);
"""
_FOLLOWED = "SELECT DISTINCT session FROM followers WHERE store != ? AND until > ?"
_FOLLOW = "INSERT OR REPLACE INTO followers (receiver, session, store, until) VALUES (?, ?, ?, ?)"
_UNFOLLOW = "DELETE FROM followers WHERE receiver = ? AND session = ?"
_RENEW = "UPDATE followers SET until = ? WHERE receiver = ?"
_SEND = "INSERT INTO chunks (agent_id, body, store, sent_at) VALUES (?, ?, ?, ?)"
_LAST = "SELECT coalesce(max(id), 0) FROM chunks"
_RECEIVE = """
SELECT agent_id, body FROM chunks
WHERE id > ? AND store != ? AND agent_id IN (SELECT value FROM json_each(?)) ORDER BY id
"""

_POLL_SECONDS, _RETRY_SECONDS = 0.05, 1.0
_CACHE_SECONDS = 0.1
_RENEW_SECONDS, _FOLLOW_SECONDS = 3.0, 10.0
_CLEAN_SECONDS, _KEEP_SECONDS = 1.0, 10.0
_BUSY_TRIES, _BUSY_SECONDS = 20, 0.002


class SqliteChunks:
    """Send and receive chunks through a file beside the database.

    Receivers write down which sessions they follow, and senders write nothing for any other session. The
    file is created by the first receiver and never synced. It may be removed at any time.
    """

    def __init__(self, database: Path) -> None:
        self.store = token_hex(8)
        self.closed = False
        self.connections = 0
        self._path = Path(f"{os.path.realpath(database)}-chunks")
        self._file = SqliteFile(self._path, self._connect)
        self._inode = 0
        self._followed: frozenset[str] = frozenset()
        self._followed_until = 0.0
        self._clean_at = 0.0
        self._warned = False
        FORKED.add(self)

    async def send(self, chunks: Sequence[Chunk]) -> None:
        """Write the chunks of sessions that other store objects follow, in one transaction."""
        if not chunks or not self._path.exists():
            return
        if time.monotonic() >= self._followed_until:
            self._followed = await self.run("BEGIN", self._read_followed) or frozenset()
            self._followed_until = time.monotonic() + _CACHE_SECONDS
        now = time.time()
        rows = [
            (each.agent_id, each.body, self.store, now) for each in chunks if each.agent_id in self._followed
        ]

        def work(db: sqlite3.Connection) -> None:
            db.executemany(_SEND, rows)
            if time.monotonic() >= self._clean_at:
                self._clean_at = time.monotonic() + _CLEAN_SECONDS
                remove_old(db)

        if rows:
            await self.run("BEGIN IMMEDIATE", work)

    def _read_followed(self, db: sqlite3.Connection) -> frozenset[str]:
        return frozenset([session for (session,) in db.execute(_FOLLOWED, (self.store, time.time()))])

    async def forget(self, agent_ids: Collection[str]) -> None:
        """Remove the chunks of deleted sessions."""
        rows = [(agent_id,) for agent_id in agent_ids]
        if rows and self._path.exists():
            statement = "DELETE FROM chunks WHERE agent_id = ?"
            await self.run("BEGIN IMMEDIATE", lambda db: db.executemany(statement, rows))

    async def run(self, begin: str, work: Work[T]) -> T | None:
        """Run a transaction on the file; None if it failed, which is logged once."""
        try:
            self._reconnect_if_replaced()
            for _ in range(0 if self.closed else _BUSY_TRIES):
                try:
                    return self._file.transaction(begin, work)
                except sqlite3.Error as error:
                    if not is_busy(error):
                        raise
                await asyncio.sleep(_BUSY_SECONDS)
        except Exception as error:
            if not self._warned:
                self._warned = True
                _log.warning("streaming text may not reach other processes: %s: %s", self._path, error)
            self._file.disconnect()
            if isinstance(error, sqlite3.Error) and is_broken(error):
                for suffix in ("", "-wal", "-shm"):
                    with suppress(OSError):
                        os.unlink(f"{self._path}{suffix}")
        return None

    def _connect(self, path: Path) -> sqlite3.Connection:
        create(path)
        db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            # In a log, receivers neither wait for senders nor hold them up.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";\n"):
                db.execute(statement)
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        self._inode = os.stat(path).st_ino
        self.connections += 1
        return db

    def _reconnect_if_replaced(self) -> None:
        try:
            inode = os.stat(self._path).st_ino
        except FileNotFoundError:
            inode = 0
        if inode != self._inode:
            self._file.disconnect()

    def close(self) -> None:
        self.closed = True
        self._file.close()

    def before_fork(self) -> None: ...

    def after_fork(self, child: bool) -> None:
        if child:
            self.store = token_hex(8)  # The child is another store object to its parent.


class SqliteReceiver(ChunkReceiver):
    """Look for chunks in the file twenty times a second, as long as a session is followed."""

    def __init__(self, chunks: SqliteChunks, deliver: Deliver) -> None:
        super().__init__(deliver)
        self._chunks = chunks
        self._name = token_hex(8)
        self._registered: set[str] = set()
        self._renew_at = 0.0
        self._connection = 0
        self._last: int | None = None
        self._changed = asyncio.Event()
        self._receiving = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._poll())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.followed.clear()
        if self._registered:
            await self._chunks.run("BEGIN IMMEDIATE", self._register)

    def follow(self, agent_id: str) -> None:
        super().follow(agent_id)
        self._changed.set()

    async def _poll(self) -> None:
        while not self._chunks.closed:
            if not self.followed and not self._registered:
                await self._changed.wait()
            self._changed.clear()
            found = await self._receive()
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS if found is None else _POLL_SECONDS):
                    await self._changed.wait()

    async def catch_up(self) -> None:
        if self._registered:
            await self._receive()

    async def _receive(self) -> list[Chunk] | None:
        """Hand new chunks over, and return them; None if the file cannot be used."""
        async with self._receiving:
            found = await self._read_new()
            if found:
                self.hand_over(found)
            return found

    async def _read_new(self) -> list[Chunk] | None:
        if self.followed != self._registered or time.monotonic() >= self._renew_at:
            last = await self._chunks.run("BEGIN IMMEDIATE", self._register)
            if last is None:
                return None
            self._registered = set(self.followed)
            if time.monotonic() >= self._renew_at:
                self._renew_at = time.monotonic() + _RENEW_SECONDS
            self._connection = self._chunks.connections
            # A file that was replaced counts from 1 again.
            self._last = last if self._last is None else min(self._last, last)
        found = await self._chunks.run("BEGIN", self._read)
        if self._connection != self._chunks.connections:
            self._registered = set()  # The file may be a new one.
        if found is None:
            return None
        self._last, chunks = found
        return chunks

    def _register(self, db: sqlite3.Connection) -> int:
        """Write down which sessions are followed, and return the number of the last chunk."""
        until = time.time() + _FOLLOW_SECONDS
        added, removed = self.followed - self._registered, self._registered - self.followed
        db.executemany(_FOLLOW, [(self._name, agent_id, self._chunks.store, until) for agent_id in added])
        db.executemany(_UNFOLLOW, [(self._name, agent_id) for agent_id in removed])
        if time.monotonic() >= self._renew_at:
            db.execute(_RENEW, (until, self._name))
            remove_old(db)
        (last,) = db.execute(_LAST).fetchone()
        return int(last)

    def _read(self, db: sqlite3.Connection) -> tuple[int, list[Chunk]]:
        """Return the number of the last chunk, and the chunks that came since."""
        (last,) = db.execute(_LAST).fetchone()
        if last == self._last:
            return last, []
        wanted = msgspec.json.encode(list(self.followed)).decode()
        rows = db.execute(_RECEIVE, (self._last, self._chunks.store, wanted)).fetchall()
        return last, [Chunk(agent_id, body) for agent_id, body in rows]


def remove_old(db: sqlite3.Connection) -> None:
    """Remove chunks that every receiver has seen long ago, and receivers that are gone."""
    now = time.time()
    db.execute("DELETE FROM chunks WHERE sent_at < ?", (now - _KEEP_SECONDS,))
    db.execute("DELETE FROM followers WHERE until < ?", (now,))
