"""What SQLite complains about, in words that say what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from whyloop.errors import StoreError, StoreUnavailableError

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

# What passes, or can be put right, while all that was stored is safe.
_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: "the disk is full, so nothing more can be stored: make room and try again",
    sqlite3.SQLITE_READONLY: "the file or its folder cannot be written to: check who owns them and their "
    "permissions, and whether the disk was mounted for reading only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: check that it is a file, that its folder is there, "
    "and the permissions of both",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write: check the disk and try again",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
}
_UNAVAILABLE[sqlite3.SQLITE_PERM] = _UNAVAILABLE[sqlite3.SQLITE_READONLY]
_UNAVAILABLE[sqlite3.SQLITE_AUTH] = _UNAVAILABLE[sqlite3.SQLITE_READONLY]

_BROKEN = {
    sqlite3.SQLITE_NOTADB: "this is no SQLite database: choose another file. It was left as it is",
    sqlite3.SQLITE_TOOBIG: "an entry is larger than SQLite can store, which is about a gigabyte",
}


def is_busy(error: sqlite3.Error) -> bool:
    """Somebody else writes at this moment, so it is worth trying again."""
    return _code(error) in _BUSY


def locked(path: Path, seconds: float) -> StoreError:
    """The error of who has waited long enough."""
    return StoreUnavailableError(
        f"{path}: the database is locked, and was so for {seconds:g} s. Another process keeps writing to it, "
        "or has left a transaction open: a shell of sqlite3, a viewer, a backup. End that and try again"
    )


def damaged(path: Path, what: str) -> StoreError:
    """The error of data that is not what was stored."""
    return StoreError(
        f"{path} is damaged: {what}. Other sessions may still be readable. Restore the file from a backup, "
        'or save what can be saved with: sqlite3 FILE ".recover"'
    )


def explained(error: sqlite3.Error, path: Path) -> StoreError:
    """An error of SQLite as one of ours."""
    code = _code(error)
    if code in _UNAVAILABLE:
        return StoreUnavailableError(f"{path}: {_UNAVAILABLE[code]} ({error})")
    if code in _BROKEN:
        return StoreError(f"{path}: {_BROKEN[code]} ({error})")
    # Text that is no text comes without any code.
    if code == sqlite3.SQLITE_CORRUPT or "decode to UTF-8" in str(error):
        return damaged(path, str(error))
    return StoreError(f"{path}: SQLite refused: {error}")


def _code(error: sqlite3.Error) -> int:
    """The kind of error; what SQLite adds to it is in the higher bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
