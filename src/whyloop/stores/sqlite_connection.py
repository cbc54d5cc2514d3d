"""One SQLite file: opened, shared by threads, waited for when it is busy, and closed around a fork."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Literal, TypeVar
from weakref import WeakSet

import msgspec

from whyloop.errors import StoreError, StoreUnavailableError
from whyloop.stores.sqlite_errors import damaged, explained, is_busy, locked
from whyloop.stores.sqlite_schema import prepare

T = TypeVar("T")
Durability = Literal["process", "power"]
Work = Callable[[sqlite3.Connection], T]
Sleep = Callable[[float], Awaitable[None]]

_SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}
_CACHE_KIBIBYTES = 16_384
# Each step changes the same page again, so the longer the log, the less of it is copied to the file.
_LOG_PAGES = 4_000
_SHORTEST_WAIT, _LONGEST_WAIT = 0.001, 0.05


class SqliteFile:
    """A connection that any thread may use, one transaction after the other.

    A transaction runs where it is called, and is far shorter than the way to a thread and back.
    While another process writes, it is tried again, and the event loop goes on in between.
    """

    def __init__(self, path: Path, durability: Durability, busy_seconds: float, sleep: Sleep) -> None:
        self.path = path
        self._synchronous = _SYNCHRONOUS[durability]
        self._busy_seconds = busy_seconds
        self._sleep = sleep
        self._db: sqlite3.Connection | None = None
        self._closed = False
        self._lock = Lock()
        _FILES.add(self)
        try:
            with self._lock:
                self._opened()
        except sqlite3.Error as error:
            # A file that another process is making at this moment is waited for when it is used.
            if not is_busy(error):
                raise explained(error, path) from error
        except UnicodeDecodeError as error:
            raise damaged(path, str(error)) from None

    async def read(self, work: Work[T]) -> T:
        """What some reading gives, all of it from one moment."""
        return await self._patiently("BEGIN", work)

    async def write(self, work: Work[T]) -> T:
        """What some writing gives, done altogether or not at all."""
        return await self._patiently("BEGIN IMMEDIATE", work)

    def done_at_once(self, statement: str, values: Sequence[object]) -> bool:
        """Try to add a row with a single statement; False if it was not to be, and why is to be found out."""
        try:
            with self._lock:
                db = self._db or self._opened()
                return db.execute(statement, values).rowcount == 1
        except (sqlite3.IntegrityError, UnicodeEncodeError):
            return False
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise explained(error, self.path) from error

    async def _patiently(self, begin: str, work: Work[T]) -> T:
        waited, wait = 0.0, _SHORTEST_WAIT
        while True:
            try:
                return self._transaction(begin, work)
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise explained(error, self.path) from error
                if waited >= self._busy_seconds:
                    raise locked(self.path, self._busy_seconds) from error
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise damaged(self.path, str(error)) from None
            except UnicodeEncodeError as error:
                raise StoreError(f"this text cannot be stored, since it is no Unicode: {error}") from None
            await self._sleep(wait)
            waited, wait = waited + wait, min(2 * wait, _LONGEST_WAIT)

    def _transaction(self, begin: str, work: Work[T]) -> T:
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

    def _undo(self, db: sqlite3.Connection) -> None:
        """Back to before the transaction; a connection that cannot go back is given up for a new one."""
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            self.disconnect()

    def _opened(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"this store ({self.path}) has been closed: open a new one")
        with _OPENING:
            self._db = connect(self.path, self._synchronous)
        return self._db

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.disconnect()

    def disconnect(self) -> None:
        """Let go of the file until it is used again; the last one to do so empties the log into it."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        self.disconnect()

    def after_fork(self) -> None:
        self._lock.release()


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """A connection to a store's file, which is made if there is none."""
    if not os.path.isdir(path.parent):
        raise StoreUnavailableError(
            f"there is no folder {path.parent} to keep {path.name} in, or it cannot be entered: make it first"
        )
    if os.path.isdir(path):
        raise StoreError(f"{path} is a folder: name a file in it, such as {path / 'whyloop.db'}")
    _create(path)
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        prepare(db, path)
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
        db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    except BaseException:
        db.close()
        raise
    return db


def _create(path: Path) -> None:
    """Conversations are nobody else's business, so SQLite does not get to choose who may read the file.

    One that is there is not opened: closing it again would end the locks that this process has on it.
    What goes wrong here goes wrong for SQLite too, which then says what it is.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


# SQLite keeps a list of the locks of its process, and a child inherits the list without the locks.
# Even a new connection of the child would believe it, and lose what it writes. So a process forks
# without a connection, and both sides open one when they need it.
_FILES: WeakSet[SqliteFile] = WeakSet()
_OPENING = Lock()
_waiting: list[SqliteFile] = []


def _before_fork() -> None:
    for file in list(_FILES):
        file.before_fork()
        _waiting.append(file)


def _after_fork() -> None:
    while _waiting:
        _waiting.pop().after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
