"""Where a SQLite store has its files, and whether they are still those that it opened.

SQLite writes to a file that was deleted or replaced as long as it has it open, and nobody ever reads that. If
another file is at its path, the two even share a log, whose changes then appear in the wrong file. So each
use of the file first compares its device and inode, which takes 1.5 µs. The files beside it are compared
by all transactions but the one that a running session makes most often.
"""

from __future__ import annotations

import os
from pathlib import Path

from whyloop.errors import StoreError

Identity = tuple[int, int]
"""The device and the inode of a file."""


class Place:
    """The path of a store's file, which is one file for all connections of the store.

    Args:
        path: The path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        # SQLite follows a symbolic link before it places files beside the database.
        self._beside = os.path.realpath(path)
        self.log = f"{self._beside}-wal"
        """The path of the log, which holds the changes that were not copied to the file yet."""
        self._file: Identity | None = None

    def check(self) -> None:
        """Raise a `StoreError` if the path has another file now, or none.

        A store that was never opened has no file yet.
        """
        if self._file is not None and is_another(self.path, self._file):
            raise self._error(identity(self.path))

    def keep(self) -> list[tuple[str, Identity]]:
        """Remember the file; return the files beside it that a new connection has opened."""
        self._file = self._file or identity(self.path)
        beside = [(path, identity(path)) for path in (self.log, f"{self._beside}-shm")]
        return [(path, found) for path, found in beside if found is not None]

    def check_beside(self, opened: list[tuple[str, Identity]]) -> None:
        """Raise a `StoreError` if files beside the database are not those that a connection opened."""
        for path, known in opened:
            if is_another(path, known):
                raise StoreError(
                    f"{path} was deleted or replaced while this store had {self.path} open, so nothing more "
                    "is read or written: it belongs to the file. End all programs that use the file, but "
                    "kill none of them: the last one to end saves the latest changes. Then start them again"
                )

    def _error(self, found: Identity | None) -> StoreError:
        name = os.path.basename(self._beside)
        if found is None:
            return StoreError(
                f"{self.path} was deleted or moved while this store had it open, so nothing more is read or "
                f"written. If it was moved, move it back; its latest changes are in {name}-wal. Otherwise "
                f"end all programs that use it, delete {name}-wal and {name}-shm, restore a backup, and "
                "start them again"
            )
        return StoreError(
            f"{self.path} was replaced by another file while this store had it open, so nothing more is read "
            f"or written. End all programs that use it, delete {name}-wal and {name}-shm, which belong to "
            "the file before, put the file that you want there, and start them again"
        )


def identity(path: str | Path) -> Identity | None:
    """Return the device and the inode of a file; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_another(path: str, known: Identity) -> bool:
    """Return whether a path has another file than the known one, or none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # Its folder may not be entered any more, but the file is open.
        return False
    return (found.st_dev, found.st_ino) != known
