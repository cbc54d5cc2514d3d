"""Whether a runner is alive: a lock on a small file, which ends with the process that holds it.

A process may fork. The child has copies of the descriptors and connections of its parent, and must not use
them: objects that hold some are `Forked`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock
from weakref import WeakSet, finalize

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Forked:
    """An object that has to know when its process forks: see `watch_forks`."""

    def before_fork(self) -> None:
        """Prepare for a fork; the objects that hold locks acquire them."""

    def after_fork(self, child: bool) -> None:
        """Continue in the parent or in the child."""


_FORKED: WeakSet[Forked] = WeakSet()
_forking: list[Forked] = []


def watch_forks(*objects: Forked) -> None:
    """Tell these objects when the process forks, as long as they exist."""
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


class RunnerLock(Forked):
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
# The files that this process has locked: it never opens these to find out.
_HELD: set[str] = set()


def _drop(descriptor: int, path: str, process: int) -> None:
    """Release a runner's file; without effect in a process that only inherited it."""
    if os.getpid() == process:
        with suppress(OSError):
            os.unlink(path)
        _HELD.discard(path)
        os.close(descriptor)
