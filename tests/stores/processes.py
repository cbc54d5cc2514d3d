"""Other processes for tests: Python programs that are told when to go on, and that can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROLOGUE = """
import asyncio, os, signal, sys
from datetime import UTC, datetime
from whyloop.errors import SessionRunningError
from whyloop.stores import Chunk, Entry, SqliteStore, Summary
from whyloop.values.state import AgentStatus

path, *arguments = sys.argv[1:]

def say(text):
    os.write(1, f"{text}\\n".encode())

def wait():
    return sys.stdin.readline().strip()

"""


class Process:
    """A program that runs beside the test."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen
        self.pid = popen.pid

    def hear(self) -> str:
        """Return the next line that the program says; empty at its end."""
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()

    def tell(self, text: str = "go") -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{text}\n")
        self._popen.stdin.flush()

    def kill(self) -> None:
        """Kill the program, and return when it is dead."""
        self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()

    def end(self) -> int:
        """Return the exit code of a program that comes to its end."""
        self._popen.communicate(timeout=60)
        return self._popen.returncode


@contextmanager
def another_process(code: str, *arguments: object) -> Iterator[Process]:
    """Run a program that has its arguments as `path` and `arguments`, and end it with the test."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROLOGUE + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        try:
            yield Process(popen)
        finally:
            if popen.poll() is None:
                popen.kill()
