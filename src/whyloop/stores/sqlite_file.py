"""The files of a SQLite store: connections, their errors, and the lock that shows that a runner is alive."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import stat
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from threading import Lock, Thread
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakSet, finalize

import msgspec

from whyloop.errors import StoreError, StoreUnavailableError
from whyloop.logger import Logger
from whyloop.stores.sqlite_schema import prepare

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
Durability = Literal["process", "power"]
Work = Callable[[sqlite3.Connection], T]
Sleep = Callable[[float], Awaitable[None]]
Connect = Callable[[Path], sqlite3.Connection]
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]

_log = Logger()

_CACHE_KIBIBYTES = 16_384
# Each step changes the same page again, so the longer the log, the less of it is copied to the file.
LONGEST_LOG = 16_000_000
_LOG_MILLISECONDS = 500
_SHORTEST_WAIT, _LONGEST_WAIT = 0.001, 0.05


class SqliteFile:
    """A connection to a file that any thread may use, one transaction after the other."""

    def __init__(self, path: Path, connect: Connect) -> None:
        self.path = path
        self._log = f"{path}-wal"
        self._connect = connect
        self._db: sqlite3.Connection | None = None
        self._closed = False
        self._lock = Lock()
        FORKED.add(self)

    def open(self) -> None:
        """Open the file, and leave it to its first use if another process is creating it now."""
        try:
            with self._lock:
                self._opened()
        except sqlite3.Error as error:
            if not is_busy(error):
                raise explained(error, self.path) from error
        except UnicodeDecodeError as error:
            raise damaged(self.path, str(error)) from None

    def transaction(self, begin: str, work: Work[T]) -> T:
        """Run a transaction, all of it or nothing; the errors are those of SQLite."""
        with self._lock:
            db = self._db or self._opened()
            try:
                db.execute(begin)
                result = work(db)
                db.execute("COMMIT")
            except BaseException:
                self._undo(db)
                raise
            return result

    def insert(self, statement: str, values: Sequence[object]) -> bool:
        """Insert one row with a single statement; False if it was refused, or if the file is busy."""
        try:
            with self._lock:
                (self._db or self._opened()).execute(statement, values)
        except sqlite3.IntegrityError:
            return False
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise explained(error, self.path) from error
        return True

    async def patiently(self, attempt: Callable[[], Awaitable[T]], seconds: float, sleep: Sleep) -> T:
        """Try again while another process writes, for so many seconds, with errors that say what to do."""
        waited, wait = 0.0, _SHORTEST_WAIT
        while True:
            try:
                return await attempt()
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise explained(error, self.path) from error
                if waited >= seconds:
                    raise _locked(self.path, seconds) from error
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise damaged(self.path, str(error)) from None
            except UnicodeEncodeError as error:
                raise StoreError(f"invalid text, which is not Unicode: {error}") from None
            await sleep(wait)
            waited, wait = waited + wait, min(2 * wait, _LONGEST_WAIT)

    def log_size(self) -> int:
        """Return the bytes of the log, which holds what was not copied to the file yet."""
        try:
            return os.stat(self._log).st_size
        except OSError:
            return 0

    def empty_log(self) -> None:
        """Copy the log to the file, which waits for the disk, as far as no other connection needs it.

        Writers are let through while most of it is copied, and are held up for the rest. A log that cannot
        be emptied grows until it can: nothing is lost.
        """
        with suppress(sqlite3.Error, StoreError), self._lock:
            db = self._db or self._opened()
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            db.execute(f"PRAGMA busy_timeout = {_LOG_MILLISECONDS}")
            try:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                db.execute("PRAGMA busy_timeout = 0")

    def _undo(self, db: sqlite3.Connection) -> None:
        """Roll back; a connection that cannot do that is replaced by a new one."""
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _opened(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"this store ({self.path}) has been closed: open a new one")
        with _OPENING:
            self._db = self._connect(self.path)
        return self._db

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()

    def disconnect(self) -> None:
        """Release the file until it is used again; the last one to do so empties the log into it."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        self._disconnect()

    def after_fork(self, child: bool) -> None:
        self._lock.release()


def connect_to(path: Path, durability: Durability) -> sqlite3.Connection:
    """Connect to a store's file, which is created if there is none."""
    if not os.path.isdir(path.parent):
        raise StoreUnavailableError(
            f"there is no folder {path.parent} for {path.name}, or it cannot be entered: create it first"
        )
    if os.path.isdir(path):
        raise StoreError(f"{path} is a folder: name a file in it, such as {path / 'whyloop.db'}")
    create(path)
    _warn_of_readers(path)
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        prepare(db, path)
        db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
        db.execute("PRAGMA wal_autocheckpoint = 0")  # The store does it in its thread: see `empty_log`.
    except BaseException:
        db.close()
        raise
    return db


def create(path: Path) -> None:
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


class WriterThread:
    """The one thread in which a store writes, so that the event loop never waits for the disk.

    A queue of our own takes 60 to 90 µs there and back, where an executor takes 120 to 200 µs.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._end: finalize[[None], WriterThread] | None = None
        self._closed = False
        FORKED.add(self)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in the thread to its end, whatever happens, and then deliver a cancellation."""
        if self._closed:
            return call()
        if self._jobs is None:
            self._jobs = SimpleQueue()
            self._end = finalize(self, self._jobs.put, None)
            Thread(target=_work, args=(self._jobs,), name="whyloop-sqlite", daemon=True).start()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._jobs.put((call, loop, result))
        cancellation: asyncio.CancelledError | None = None
        while not result.done():
            try:
                await asyncio.shield(result)
            except asyncio.CancelledError as error:
                cancellation = error
            except Exception:
                break
        if cancellation is not None:
            result.exception()  # Asked for, so that asyncio does not report it as forgotten.
            raise cancellation
        return result.result()

    def close(self) -> None:
        """End the thread; a later call is not worth another one, since its store is closed."""
        self._closed = True
        if self._end is not None:
            self._end()

    def before_fork(self) -> None: ...

    def after_fork(self, child: bool) -> None:
        if child and self._end is not None:
            self._end.detach()
            self._jobs = self._end = None  # A child has no thread but the one that forked.


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        call, loop, result = job
        try:
            report = partial(result.set_result, call())
        except BaseException as error:
            report = partial(result.set_exception, error)
        with suppress(RuntimeError):  # The event loop is closed, and nothing waits for the result.
            loop.call_soon_threadsafe(report)
        del job, call, loop, result, report


class RunnerLock:
    """A lock on a small file, by which other processes know whether this store object is alive.

    The operating system releases the lock when the process ends, however it ends. So a runner is dead if
    its file can be locked, or is gone. Where files cannot be locked, every runner counts as alive, and the
    time of its lease decides. The name of a file is random, and means nothing on another machine.
    """

    def __init__(self, database: Path) -> None:
        # SQLite follows a symbolic link before it puts files beside the database, and so do we.
        self._prefix = f"{os.path.realpath(database)}-runner-"
        self._name: str | None = None
        self._drop: finalize[[int, str, int], RunnerLock] | None = None
        self._lock = Lock()
        self._works = fcntl is not None
        FORKED.add(self)

    def name(self) -> str | None:
        """Return the name of this runner, and lock its file at first; None where files cannot be locked."""
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
            # A shared lock: two processes that find out at once do not take each other for the runner.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with suppress(OSError):
                os.unlink(path)
            return False
        except OSError:
            return True
        finally:
            os.close(descriptor)

    def _remove_stale_files(self) -> None:
        """Remove the files of runners that died without a lease, which are in no session's row."""
        folder, prefix = os.path.split(self._prefix)
        with suppress(OSError):
            for file in os.listdir(folder):
                if file.startswith(prefix):
                    self.is_alive(file.removeprefix(prefix))

    def close(self) -> None:
        """Be dead from now on; all leases that were not given back are void."""
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
# The files that this process has locked: it never opens these to find out.
_HELD: set[str] = set()


def _drop(descriptor: int, path: str, process: int) -> None:
    """Release a runner's file; without effect in a process that only inherited it."""
    if os.getpid() == process:
        with suppress(OSError):
            os.unlink(path)
        _HELD.discard(path)
        os.close(descriptor)


# Errors

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

# These pass, or can be put right, while all that was stored is safe.
_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: "the disk is full, so nothing more can be stored: make room and try again",
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
    sqlite3.SQLITE_TOOBIG: "an entry is larger than SQLite can store, which is about a gigabyte",
}


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another process writes at this moment, so that it is worth trying again."""
    return _code(error) in _BUSY


def is_broken(error: sqlite3.Error) -> bool:
    """Return whether the file is not a database, or a damaged one."""
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _locked(path: Path, seconds: float) -> StoreError:
    return StoreUnavailableError(
        f"{path}: the database was locked for {seconds:g} s. Another process keeps writing to it, "
        "or has left a transaction open: a shell of sqlite3, a viewer, a backup. End that and try again"
    )


def damaged(path: Path, what: str) -> StoreError:
    """Return the error for data that is not what was stored."""
    return StoreError(
        f"{path} is damaged: {what}. Other sessions may still be readable. Restore the file from a backup, "
        'or save what can be saved with: sqlite3 FILE ".recover"'
    )


def explained(error: sqlite3.Error, path: Path) -> StoreError:
    """Return an error of SQLite as one of ours."""
    code = _code(error)
    if code in _UNAVAILABLE:
        return StoreUnavailableError(f"{path}: {_UNAVAILABLE[code]} ({error})")
    if code in _BROKEN:
        return StoreError(f"{path}: {_BROKEN[code]} ({error})")
    # Text that is not UTF-8 comes without a code.
    if code == sqlite3.SQLITE_CORRUPT or "decode to UTF-8" in str(error):
        return damaged(path, str(error))
    return StoreError(f"{path}: SQLite refused: {error}")


def _code(error: sqlite3.Error) -> int:
    """Return the kind of error; SQLite puts details into the higher bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


# SQLite keeps a list of the locks of its process, and a child inherits the list without the locks. Even a
# new connection of the child would believe it, and lose its writes. So a process forks without a
# connection, and both sides open one when they need it.


class _Forked(Protocol):
    def before_fork(self) -> None: ...

    def after_fork(self, child: bool) -> None: ...


FORKED: WeakSet[_Forked] = WeakSet()
_OPENING = Lock()
_forking: list[_Forked] = []


def _before_fork() -> None:
    for each in list(FORKED):
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
