"""A terminal for commands that draw and ask: it types, reads, and presses Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.shop import WHYLOOP, environment

CTRL_C, CTRL_D = "\x03", "\x04"
SECONDS = 30  # For a machine that is busy; nothing waits as long.
LONGEST = 5 * SECONDS  # What moves on a terminal is output too, so silence is not enough to give up.
PATIENCE = 5  # Before Ctrl-C is pressed again.
_CODES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, running: subprocess.Popen[bytes], ours: int) -> None:
        self.running = running
        self.shown = ""
        """Everything that was printed, with its control codes."""
        self._ours = ours
        self._decoder = getincrementaldecoder("utf-8")()
        self._read_up_to = 0

    @property
    def text(self) -> str:
        """Everything that was printed, without colours and movements of the cursor."""
        return _CODES.sub("", self.shown)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self, wanted: str) -> str:
        """Press Ctrl-C at a prompt and return what is printed next, up to a text.

        A signal that comes between a key and the wait for the next one is only seen after the
        next key, so Ctrl-C is pressed until it is answered, as a person would.
        """
        self.type(CTRL_C)
        for _ in range(int(SECONDS / PATIENCE)):
            while self._is_readable(PATIENCE):
                assert self._read(), f"it ended without {wanted!r}"
                if wanted in self.text[self._read_up_to :]:
                    return self.read_until(wanted)
            self.type(CTRL_C)
        raise AssertionError(f"Ctrl-C was not answered: {self.text[self._read_up_to :]!r}")

    def read_until(self, wanted: str) -> str:
        """Return what is printed next, up to a text."""
        end = time.monotonic() + LONGEST
        while (at := self.text.find(wanted, self._read_up_to)) < 0:
            assert time.monotonic() < end, f"it moves, without {wanted!r}: {self.text[-2000:]!r}"
            assert self._read(), f"it ended without {wanted!r}: {self.text[self._read_up_to :]}"
        start, self._read_up_to = self._read_up_to, at + len(wanted)
        return self.text[start : self._read_up_to]

    def read_to_the_end(self) -> str:
        """Return what is printed until the command ends."""
        while self._read():
            pass
        self.running.wait(timeout=SECONDS)
        start, self._read_up_to = self._read_up_to, len(self.text)
        return self.text[start:]

    def _read(self) -> bool:
        assert self._is_readable(SECONDS), f"nothing more came after {self.text[self._read_up_to :]!r}"
        try:
            piece = os.read(self._ours, 65_536)
        except OSError:  # How some systems say that the other end is closed.
            return False
        self.shown += self._decoder.decode(piece)
        return bool(piece)

    def _is_readable(self, seconds: float) -> bool:
        return bool(select.select([self._ours], [], [], seconds)[0])


@contextmanager
def terminal(*argv: str, **variables: str) -> Iterator[Terminal]:
    """Run a whyloop command on a terminal of 100 columns and 40 rows."""
    with on_a_terminal_of_its_own([*WHYLOOP, *argv], **variables) as shown:
        yield shown


@contextmanager
def on_a_terminal_of_its_own(command: list[str], **variables: str) -> Iterator[Terminal]:
    """Run any program on a terminal of 100 columns and 40 rows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    running = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**{"TERM": "xterm-256color", **variables}),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  (Ctrl-C needs it)
    )
    os.close(theirs)
    try:
        yield Terminal(running, ours)
    finally:
        running.kill()
        running.wait()
        os.close(ours)


def on_a_terminal(argv: list[str], *, columns: int = 100, **variables: str) -> str:
    """What a terminal of this width is sent."""
    ours, theirs = pty.openpty()
    variables = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLUMNS": str(columns),
        "LINES": "40",
        **variables,
    }
    try:
        with subprocess.Popen([*WHYLOOP, *argv], stdout=theirs, env=variables) as running:
            os.close(theirs)
            shown = b""
            while chunk := _read(ours):
                shown += chunk
        assert running.returncode == 0
    finally:
        os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how some systems say that the other end is closed
        return b""
