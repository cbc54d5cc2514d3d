"""The files of a SQLite store: the database, its errors, the lock of a runner, and one for streaming text.

SQLite keeps a list of the locks of its process, and a child that was forked inherits the list without the
locks. Even a new connection of the child would believe it, and lose its writes. So a process forks without a
connection, and both sides open one when they need it. Objects that hold connections, or descriptors, are
`Forked`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from threading import Lock, Thread
from typing import Any, Literal, Self, TypeVar
from weakref import WeakSet, finalize

import msgspec

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from whyloop.errors import StoreError, StoreUnavailableError, WhyloopError
from whyloop.logger import Logger
from whyloop.stores.live import ChunkReceiver, Deliver, ended, finish
from whyloop.stores.records import Chunk
from whyloop.stores.sqlite_place import Identity, Place

T = TypeVar("T")
Durability = Literal["process", "power"]
Work = Callable[[sqlite3.Connection], T]
Sleep = Callable[[float], Awaitable[None]]
Connect = Callable[[Path], sqlite3.Connection]
Insert = tuple[str, Sequence[object]]
"""A statement that inserts one row, and its values."""
_Job = tuple[Callable[[], Any], asyncio.Future[Any]]

_log = Logger()

# This number in its header marks a file as one of ours: "whyl" in ASCII.
APPLICATION_ID = 0x7768796C
# After the first release, new migrations are added at the end, and none is ever changed.
MIGRATIONS = {"0001": Path(__file__).with_name("sqlite_0001.sql").read_text(encoding="utf-8")}

READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"
_CACHE_KIBIBYTES = 16_384
# Each step changes the same page again, so the longer the log, the less of it is copied to the file.
LONGEST_LOG = 16_000_000
# The zeros that a log gets at its end, and how few of them are left when it gets more.
LOG_RESERVE, _LEAST_RESERVE = 4_000_000, 1_000_000
_FRAME = 4096 + 24
_LOG_MILLISECONDS = 500
_SHORTEST_WAIT, _LONGEST_WAIT = 0.001, 0.05


_UNREADABLE = ValueError, TypeError, AttributeError, msgspec.DecodeError
_OPENING = Lock()


class Forked:
    """An object that must know when its process forks: see `watch_forks`."""

    def before_fork(self) -> None:
        """Prepare for a fork; objects with thread locks acquire them."""

    def after_fork(self, child: bool) -> None:
        """Continue in the parent or in the child."""


_FORKED: WeakSet[Forked] = WeakSet()
_forking: list[Forked] = []


def watch_forks(*objects: Forked) -> None:
    """Notify these objects when the process forks, for as long as they exist."""
    _FORKED.update(objects)


def _before_fork() -> None:
    for each in list(_FORKED):
        each.before_fork()
        _forking.append(each)


def _after_fork(child: bool) -> None:
    while _forking:
        _forking.pop().after_fork(child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(False),
        after_in_child=lambda: _after_fork(True),
    )


class SqliteFile(Forked):
    """A connection to a file that any thread may use, one transaction after the other.

    With a thread, all its transactions run there. A transaction waits for another process that writes, for
    at most `busy_seconds`.
    """

    def __init__(
        self,
        path: Path,
        connect: Connect,
        *,
        place: Place | None = None,
        thread: WriterThread | None = None,
        busy_seconds: float = 0.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.path = path
        self._place = place
        self._beside: list[tuple[str, Identity]] = []
        self._is_sound = True
        self._thread = thread
        self._busy_seconds = busy_seconds
        self._sleep = sleep
        self._connect = connect
        self._db: sqlite3.Connection | None = None
        self._closed = False
        self._lock = Lock()

    def open(self) -> None:
        """Open the file; wait for its first use if another process is creating it."""
        try:
            with self._lock:
                self._connection()
        except sqlite3.Error as error:
            if not _is_busy(error):
                raise _explained(error, self.path) from error
        except UnicodeDecodeError as error:
            raise _damaged(self.path, str(error)) from None

    def transaction(self, begin: str, work: Work[T]) -> T:
        """Run a transaction, all of it or nothing; the errors are those of SQLite."""
        with self._lock:
            db = self._connection()
            try:
                db.execute(begin)
                result = work(db)
                db.execute("COMMIT")
            except BaseException:
                self._undo(db)
                raise
            return result

    async def run(
        self, begin: str, work: Work[T], insert: Insert | None = None, *, until_cancelled: bool = False
    ) -> T:
        """Run a transaction, and retry it while another process writes.

        It waits to its end, even if its task is cancelled, and has one of two outcomes: its error, or the
        result, before which a cancellation is delivered. So a cancelled writer knows what happened.

        Args:
            begin: The statement that begins the transaction: `READ` or `WRITE`.
            work: The transaction.
            insert: A statement that does the same work unless it is refused. Default: none.
            until_cancelled: True to wait no longer when the task is cancelled. Default: False.
        """
        attempt: Callable[[], Any] = partial(self.transaction, begin, work)
        if insert is not None:
            attempt = partial(self._insert_or, insert, attempt)
        waited, wait, cancelled = 0.0, _SHORTEST_WAIT, None
        while True:
            try:
                if self._thread is None or self._thread.closed:
                    result: T = attempt()
                else:
                    future, interrupted = await ended(self._thread.start(attempt))
                    cancelled = interrupted or cancelled
                    result = future.result()
                if cancelled is not None:
                    raise cancelled
                return result
            except Exception as error:
                self._give_up(error, waited)
            try:
                await self._sleep(wait)
            except asyncio.CancelledError as error:
                cancelled = error
            if cancelled is not None and until_cancelled:
                raise cancelled
            waited, wait = waited + wait, min(2 * wait, _LONGEST_WAIT)

    def _give_up(self, error: Exception, waited: float) -> None:
        """Raise an error as one of ours, unless another process writes and can be waited for."""
        if isinstance(error, sqlite3.Error):
            if not _is_busy(error):
                raise _explained(error, self.path) from error
            if waited >= self._busy_seconds:
                raise _locked(self.path, self._busy_seconds) from error
            return
        if isinstance(error, UnicodeEncodeError):
            raise StoreError(f"invalid text, which is not Unicode: {error}") from None
        if isinstance(error, WhyloopError) or not isinstance(error, _UNREADABLE):
            raise error
        raise _damaged(self.path, str(error)) from None  # A row is not as it was written.

    def _insert_or(self, insert: Insert, attempt: Callable[[], T]) -> T | None:
        """Insert one row with a single statement, or run the transaction if that is refused."""
        try:
            with self._lock:
                self._connection(is_quick=True).execute(*insert)
        except sqlite3.IntegrityError:
            return attempt()
        return None

    def log_size(self) -> int:
        """Return the bytes of the log, which holds what was not copied to the file yet."""
        try:
            return 0 if self._place is None else os.stat(self._place.log).st_size
        except OSError:
            return 0

    def empty_log(self) -> None:
        """Copy the log to the file, as far as no other connection needs it.

        Writers are let through while most of it is copied, and are held up for the rest. A log that cannot
        be emptied grows until it can: nothing is lost.
        """
        with suppress(sqlite3.Error, StoreError), self._lock:
            db = self._connection()
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            db.execute(f"PRAGMA busy_timeout = {_LOG_MILLISECONDS}")
            try:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                db.execute("PRAGMA busy_timeout = 0")

    def reserve_log(self) -> None:
        """Extend the log with zeros for writes that wait for the disk, if few are left.

        A write that makes a file longer waits for the file system to record its length, too: on ext4 a
        commit takes 150 µs there and 80 µs within the zeros. SQLite ignores everything after its last frame.
        Only the holder of the write lock may change the file beside it.
        """
        if self._place is None:
            return
        with suppress(OSError, sqlite3.Error, StoreError), self._lock:
            db = self._connection()
            log = os.open(self._place.log, os.O_RDWR)
            try:
                if _has_reserve(log):
                    return
                db.execute(WRITE)
                try:
                    os.pwrite(log, bytes(LOG_RESERVE), os.fstat(log).st_size)
                    os.fsync(log)
                finally:
                    db.execute("ROLLBACK")
            finally:
                os.close(log)

    def _undo(self, db: sqlite3.Connection) -> None:
        """Roll back; a connection that cannot do that is replaced by a new one."""
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _connection(self, *, is_quick: bool = False) -> sqlite3.Connection:
        """Return the connection, after a look at its files; connect if there is none.

        A quick look is at the database alone, unless something was wrong with a file beside it.
        """
        if self._place is not None and not self._closed:
            self._place.check()
            if self._db is not None and not (is_quick and self._is_sound):
                self._is_sound = False
                self._place.check_beside(self._beside)
                self._is_sound = True
        return self._db or self._opened()

    def _opened(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"this store ({self.path}) has been closed: open a new one")
        with _OPENING:
            self._db = self._connect(self.path)
        if self._place is not None:
            self._beside = self._place.keep()
        self._at_end = finalize(self, self._db.close)  # A store may become garbage without being closed.
        self._at_end.atexit = False
        return self._db

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()

    def disconnect(self) -> None:
        """Release the file until it is used again.

        The last connection empties the log into it.
        """
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            self._at_end.detach()
            with suppress(sqlite3.Error):
                db.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        self._disconnect()

    def after_fork(self, child: bool) -> None:
        self._lock.release()


def _has_reserve(log: int) -> bool:
    """Return whether a log ends with zeros: SQLite never writes a frame of zeros."""
    start = os.fstat(log).st_size - _LEAST_RESERVE
    return start > 0 and not any(os.pread(log, _FRAME, start))


def connect_to(path: Path, durability: Durability) -> sqlite3.Connection:
    """Connect to a store's file, which is created if there is none."""
    if not os.path.isdir(path.parent):
        raise StoreUnavailableError(
            f"no folder {path.parent} for {path.name}, or it cannot be entered: create it first"
        )
    if os.path.isdir(path):
        raise StoreError(f"{path} is a folder: name a file in it, such as {path / 'whyloop.db'}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreError(f"{path} is not a regular file: name another, such as whyloop.db")
    _create(path)
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db, path)
        _warn_of_readers(path)
        db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
        db.execute("PRAGMA wal_autocheckpoint = 0")  # The store does it in its thread: see `empty_log`.
    except BaseException:
        db.close()
        raise
    return db


def _create(path: Path) -> None:
    """Create a file that other users cannot read, since SQLite would let them.

    An existing file is not opened: closing it again would end the locks that this process has on it.
    Errors here are errors for SQLite too, which then reports them.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


_warned: set[Path] = set()


def _warn_of_readers(path: Path) -> None:
    """Log once that other users can read a store: it holds everything that was said."""
    with suppress(OSError):
        readers = os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH)
        if readers and os.name == "posix" and path not in _warned:
            _warned.add(path)
            _log.warning("other users of this machine can read the sessions in %s: chmod 600 it", path)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Update a file; refuse one of another program or of a newer whyloop."""
    db.execute("BEGIN")
    applied = _applied(db, path)
    db.execute("COMMIT")
    unknown = sorted(applied - MIGRATIONS.keys())
    if unknown:
        raise StoreError(
            f"{path} was written by a newer whyloop, with the unknown migrations {', '.join(unknown)}: "
            "upgrade whyloop. The file was left as it is"
        )
    if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreError(
            f"{path} is on a file system on which SQLite cannot keep its log, such as a network drive: "
            "move it to a local disk, or use PostgreSQL"
        )
    for name in [name for name in MIGRATIONS if name not in applied]:
        db.execute("BEGIN IMMEDIATE")
        if name not in _applied(db, path):  # Another process may have come first.
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in MIGRATIONS[name].split(";\n"):
                db.execute(statement)
            db.execute("INSERT INTO migrations VALUES (?, datetime('now'))", (name,))
        db.execute("COMMIT")


def _applied(db: sqlite3.Connection, path: Path) -> set[str]:
    """Return the names of the migrations that the file has; none if it is empty."""
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    if application_id == APPLICATION_ID:
        return {str(name) for (name,) in db.execute("SELECT name FROM migrations")}
    if application_id or db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise StoreError(
            f"{path} is the SQLite database of another program: choose another file. It was left as it is"
        )
    return set()


class WriterThread(Forked):
    """The one thread in which a store writes, so that the event loop never waits for the disk.

    This queue takes 55 µs there and back, where an executor takes 90 µs.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._end: finalize[[None], WriterThread] | None = None
        self.closed = False

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in the thread to its end, and deliver a cancellation only then: see `finish`."""
        return call() if self.closed else await finish(self.start(call))

    def start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Start a call in the thread, which runs it to its end."""
        if self._jobs is None:
            self._jobs = SimpleQueue()
            self._end = finalize(self, self._jobs.put, None)
            Thread(target=_work, args=(self._jobs,), name="whyloop-sqlite", daemon=True).start()
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((call, result))
        return result

    def close(self) -> None:
        """End the thread; a later call does not start another one."""
        self.closed = True
        if self._end is not None:
            self._end()

    def after_fork(self, child: bool) -> None:
        if child and self._end is not None:
            self._end.detach()
            self._jobs = self._end = None  # A child has no thread but the one that forked.


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        call, result = job
        try:
            report = partial(result.set_result, call())
        except BaseException as error:
            report = partial(result.set_exception, error)
        with suppress(RuntimeError):  # The event loop is closed, and nothing waits for the result.
            result.get_loop().call_soon_threadsafe(report)
        del job, call, result, report


# Whether a runner is alive


class RunnerLock(Forked):
    """A lock on a small file, which shows other processes that this store object is alive.

    The operating system releases the lock when the process ends, however it ends. So a runner is dead if
    its file can be locked, or is gone. Where files cannot be locked, every runner counts as alive, and the
    time of its lease decides. The name of a file is random, and means nothing on another machine.
    """

    def __init__(self, database: Path) -> None:
        # Like SQLite, follow a symbolic link before placing files beside the database.
        self._prefix = f"{os.path.realpath(database)}-runner-"
        self._name: str | None = None
        self._drop: finalize[[int, str, int], RunnerLock] | None = None
        self._lock = Lock()
        self._works = fcntl is not None

    def name(self) -> str | None:
        """Return the name of this runner, and lock its file.

        None if files cannot be locked.
        """
        with self._lock:
            while self._name is None and self._works:
                name = token_hex(8)
                path = self._prefix + name
                try:
                    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | _CLOEXEC, 0o600)
                except OSError:
                    self._works = False
                    break
                if self._taken(descriptor, path):
                    self._name = name
                    self._drop = finalize(self, _drop, descriptor, path, os.getpid())
                    self._remove_stale_files()
            return self._name

    def _taken(self, descriptor: int, path: str) -> bool:
        """Lock a new file; False if another process took it for a stale one in between."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                _HELD.add(path)
                return True
        except BlockingIOError:
            pass
        except OSError:  # This file system has no locks.
            self._works = False
            with suppress(OSError):
                os.unlink(path)
        os.close(descriptor)
        return False

    def is_alive(self, name: str | None) -> bool:
        """Return whether a runner may be alive; remove the file of one that is dead."""
        if fcntl is None or name is None or not _NAME.fullmatch(name):
            return True
        path = self._prefix + name
        if path in _HELD:
            return True
        try:
            descriptor = os.open(path, os.O_RDONLY | _CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            # A shared lock, so that two processes checking at once do not mistake each other for the runner.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with suppress(OSError):
                os.unlink(path)
            return False
        except OSError:
            return True
        finally:
            os.close(descriptor)

    def _remove_stale_files(self) -> None:
        """Remove the files of runners that died without a lease."""
        folder, prefix = os.path.split(self._prefix)
        with suppress(OSError):
            for file in os.listdir(folder):
                if file.startswith(prefix):
                    self.is_alive(file.removeprefix(prefix))

    def close(self) -> None:
        """Release the lock; all leases that were not given back are void."""
        with self._lock:
            self._works = False
            self._name = None
            if self._drop is not None:
                self._drop()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, child: bool) -> None:
        # The lock belongs to the parent, and lasts until every copy of the descriptor is closed. So the
        # child closes its copy, without unlocking, and gets a lock of its own when it takes a lease.
        if child and self._name is not None and self._drop is not None:
            detached = self._drop.detach()
            if detached is not None:
                _, _, (descriptor, path, _), _ = detached
                os.close(descriptor)
                _HELD.discard(path)
            self._name = self._drop = None
        self._lock.release()


_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_NAME = re.compile("[0-9a-f]{16}")
# The files that this process has locked, which it never opens to check them.
_HELD: set[str] = set()


def _drop(descriptor: int, path: str, process: int) -> None:
    """Release a runner's file, unless this process only inherited it."""
    if os.getpid() == process:
        with suppress(OSError):
            os.unlink(path)
        _HELD.discard(path)
        os.close(descriptor)


# Streaming text

_CHUNK_TABLES = """
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

_POLL_SECONDS, _RETRY_SECONDS = 0.05, 1.0
_CACHE_SECONDS = 0.1
_RENEW_SECONDS, _FOLLOW_SECONDS = 3.0, 10.0
_CLEAN_SECONDS, _KEEP_SECONDS = 1.0, 10.0
_BUSY_TRIES, _BUSY_SECONDS = 20, 0.002


class SqliteChunks(Forked):
    """Pass streaming text on between processes, through a file beside the database.

    Receivers write down which sessions they follow, and senders write nothing for any other session. The
    file is created by the first receiver and never synced. It may be removed at any time.
    """

    def __init__(self, database: Path) -> None:
        self.store = token_hex(8)
        self.closed = False
        self.inode = 0
        """The file that was used last: a new file has no followers yet."""
        self._path = Path(f"{os.path.realpath(database)}-chunks")
        self._file = SqliteFile(self._path, self._connect)
        self._followed: frozenset[str] = frozenset()
        self._followed_until = 0.0
        self._clean_at = 0.0
        self._warned = False

    async def send(self, chunks: Sequence[Chunk]) -> None:
        """Write the chunks that other store objects follow, in one transaction."""
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
            db.executemany("INSERT INTO chunks (agent_id, body, store, sent_at) VALUES (?, ?, ?, ?)", rows)
            if time.monotonic() >= self._clean_at:
                self._clean_at = time.monotonic() + _CLEAN_SECONDS
                _remove_old(db)

        if rows:
            await self.run("BEGIN IMMEDIATE", work)

    def _read_followed(self, db: sqlite3.Connection) -> frozenset[str]:
        query = "SELECT DISTINCT session FROM followers WHERE store != ? AND until > ?"
        return frozenset([session for (session,) in db.execute(query, (self.store, time.time()))])

    async def forget(self, agent_id: str) -> None:
        """Remove the chunks of a deleted session."""
        if self._path.exists():
            statement = "DELETE FROM chunks WHERE agent_id = ?"
            await self.run("BEGIN IMMEDIATE", lambda db: db.execute(statement, (agent_id,)))

    async def run(self, begin: str, work: Work[T]) -> T | None:
        """Run a transaction on the file; None if it failed, which is logged once."""
        try:
            if not self._path.exists() or self._path.stat().st_ino != self.inode:
                self._file.disconnect()
            for _ in range(0 if self.closed else _BUSY_TRIES):
                try:
                    return self._file.transaction(begin, work)
                except sqlite3.Error as error:
                    if not _is_busy(error):
                        raise
                await asyncio.sleep(_BUSY_SECONDS)
        except Exception as error:
            if not self._warned:
                self._warned = True
                _log.warning("streaming text may not reach other processes: %s: %s", self._path, error)
            self._file.disconnect()
            if isinstance(error, sqlite3.Error) and _is_broken(error):
                for suffix in ("", "-wal", "-shm"):
                    with suppress(OSError):
                        os.unlink(f"{self._path}{suffix}")
        return None

    def _connect(self, path: Path) -> sqlite3.Connection:
        _create(path)
        db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            # In a log, receivers neither wait for senders nor hold them up.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("BEGIN IMMEDIATE")
            for statement in _CHUNK_TABLES.split(";\n"):
                db.execute(statement)
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        self.inode = path.stat().st_ino
        return db

    def close(self) -> None:
        self.closed = True
        self._file.close()

    def before_fork(self) -> None:
        self._file.before_fork()

    def after_fork(self, child: bool) -> None:
        self._file.after_fork(child)
        if child:
            self.store = token_hex(8)  # The child is another store object to its parent.


class SqliteReceiver(ChunkReceiver):
    """Look for chunks in the file twenty times a second, as long as a session is followed."""

    def __init__(self, chunks: SqliteChunks, deliver: Deliver) -> None:
        super().__init__(deliver)
        self._chunks = chunks
        self._name = token_hex(8)
        self._registered: set[str] = set()
        self._inode = 0
        self._renew_at = 0.0
        self._last: int | None = None
        self._changed = asyncio.Event()
        self._receiving = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.followed.clear()
        if self._registered:
            await self._receive()

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
            is_known = self._registered == self.followed and self._inode == self._chunks.inode
            if is_known and time.monotonic() < self._renew_at:
                found = await self._chunks.run("BEGIN", self._read)
            else:
                found = await self._chunks.run("BEGIN IMMEDIATE", self._register)
            if found:
                self.hand_over(found)
            return found

    def _register(self, db: sqlite3.Connection) -> list[Chunk]:
        """Write down which sessions are followed, and return the chunks that came since."""
        now = time.time()
        rows = [
            (self._name, agent_id, self._chunks.store, now + _FOLLOW_SECONDS) for agent_id in self.followed
        ]
        db.execute("DELETE FROM followers WHERE receiver = ?", (self._name,))
        db.executemany("INSERT INTO followers (receiver, session, store, until) VALUES (?, ?, ?, ?)", rows)
        _remove_old(db)
        self._registered, self._inode = set(self.followed), self._chunks.inode
        self._renew_at = time.monotonic() + _RENEW_SECONDS
        return self._read(db)

    def _read(self, db: sqlite3.Connection) -> list[Chunk]:
        """Return the chunks that came since; the first time, none are new."""
        (last,) = db.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()
        since, self._last = last if self._last is None else self._last, last
        if last <= since:  # A file that was replaced counts from 1 again.
            return []
        query = "SELECT agent_id, body FROM chunks WHERE id > ? AND store != ? ORDER BY id"
        return [Chunk(*row) for row in db.execute(query, (since, self._chunks.store))]


def _remove_old(db: sqlite3.Connection) -> None:
    """Remove old chunks, and receivers that are gone."""
    now = time.time()
    db.execute("DELETE FROM chunks WHERE sent_at < ?", (now - _KEEP_SECONDS,))
    db.execute("DELETE FROM followers WHERE until < ?", (now,))


# Errors

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

# These pass, or can be put right, while all that was stored is safe.
_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: "the disk is full, so nothing more can be stored: free some space and try again",
    sqlite3.SQLITE_READONLY: "the file or its folder cannot be written to: check their owner and "
    "permissions, and whether the disk was mounted for reading only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: check that it is a file, that its folder exists, "
    "and the permissions of both",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write: check the disk and try again",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
}
_UNAVAILABLE[sqlite3.SQLITE_PERM] = _UNAVAILABLE[sqlite3.SQLITE_READONLY]
_UNAVAILABLE[sqlite3.SQLITE_AUTH] = _UNAVAILABLE[sqlite3.SQLITE_READONLY]

_BROKEN = {
    sqlite3.SQLITE_NOTADB: "not a SQLite database: choose another file. It was left as it is",
    sqlite3.SQLITE_TOOBIG: "an entry or a claim is larger than SQLite can store, which is about a gigabyte",
}


def _is_busy(error: sqlite3.Error) -> bool:
    """Return whether another process is writing, so trying again may succeed."""
    return _code(error) in _BUSY


def _is_broken(error: sqlite3.Error) -> bool:
    """Return whether the file is not a database, or a damaged one."""
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _locked(path: Path, seconds: float) -> StoreError:
    return StoreUnavailableError(
        f"{path}: the database was locked for {seconds:g} s. Another process keeps writing to it, "
        "or has left a transaction open: a shell of sqlite3, a viewer, a backup. End that and try again"
    )


def _damaged(path: Path, what: str) -> StoreError:
    """Return the error for data that is not what was stored."""
    return StoreError(
        f"{path} is damaged: {what}. Other sessions may still be readable. Restore the file from a backup, "
        'or save what can be saved with: sqlite3 FILE ".recover"'
    )


def _explained(error: sqlite3.Error, path: Path) -> StoreError:
    """Return an error of SQLite as one of ours."""
    code = _code(error)
    if code in _UNAVAILABLE:
        return StoreUnavailableError(f"{path}: {_UNAVAILABLE[code]} ({error})")
    if code in _BROKEN:
        return StoreError(f"{path}: {_BROKEN[code]} ({error})")
    # Text that is not UTF-8 comes without a code.
    if code == sqlite3.SQLITE_CORRUPT or "decode to UTF-8" in str(error):
        return _damaged(path, str(error))
    return StoreError(f"{path}: SQLite refused: {error}")


def _code(error: sqlite3.Error) -> int:
    """Return the kind of error; SQLite puts details into the higher bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
