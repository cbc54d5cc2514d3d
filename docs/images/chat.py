"""Draw chat.svg: a chat in a terminal, exactly as `whyloop chat` prints it there.

`make picture` runs this: it types into a real terminal, reads what appears, and draws the last screen.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
from codecs import getincrementaldecoder
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from whyloop import Agent
from whyloop.cli.demo.assistant import INSTRUCTIONS, DemoWorld, PartnerDesk
from whyloop.cli.demo.scenarios import SCENARIOS, START
from whyloop.testing import FakeClock, ScriptedModel

WIDTH = 100
# What the person types, each after the text that is waited for.
TYPED = [
    ("❯ ", "Delete the copy of the Fjord Systems lead."),
    ("edits: ", "y"),
    (" s\n❯ ", "/why"),
    ("asked for no tools\n\n❯ ", ""),
]
_CODE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b.|[\r\n]|[^\x1b\r\n]+")

_UNFINISHED = re.compile(r"\x1b(?:\[[?\d;]*)?\Z")
SECONDS = 30


def agent() -> Agent:
    """Return the assistant of the demo, in which a person approves a deletion."""
    scenario, clock = SCENARIOS["approval"], FakeClock(START)
    model = ScriptedModel(scenario.script)
    world = DemoWorld(model, clock, tool_seconds={}, paced=False)
    tools = PartnerDesk().tools(scenario.needs_approval)
    return Agent(model, tools, instructions=INSTRUCTIONS, world=world, timeout=60)


class Screen:
    """The lines of a terminal, with the few codes that Rich and readline use."""

    def __init__(self) -> None:
        self.lines: list[list[tuple[str, str]]] = [[]]
        self._row = self._column = 0
        self._style = self._rest = ""

    def feed(self, text: str) -> None:
        text = self._rest + text
        whole = len(text) if (cut := _UNFINISHED.search(text)) is None else cut.start()
        self._rest = text[whole:]
        for code in _CODE.finditer(text[:whole]):
            match code[0], code[2]:
                case _, "m":
                    self._style = "" if code[1] in ("", "0") else f"{self._style}\x1b[{code[1]}m"
                case _, "A":
                    self._row = max(0, self._row - int(code[1] or 1))
                case _, "K":
                    kept = 0 if code[1] == "2" else self._column
                    del self.lines[self._row][kept:]
                case "\r", _:
                    self._column = 0
                case "\n", _:
                    self._row, self._column = self._row + 1, 0
                    self.lines += [[]] if self._row == len(self.lines) else []
                case printed, None if not printed.startswith("\x1b"):
                    self._write(printed)

    def _write(self, text: str) -> None:
        line = self.lines[self._row]
        line += [(" ", "")] * (self._column - len(line))
        line[self._column : self._column + len(text)] = [(char, self._style) for char in text]
        self._column += len(text)

    def __str__(self) -> str:
        return "\n".join("".join(char for char, _ in line).rstrip() for line in self.lines)

    def draw(self, title: str) -> str:
        """Return the screen as a picture that fetches nothing."""
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
        for line in self.lines:
            runs = groupby(line, key=lambda cell: cell[1])
            ansi = "".join(f"\x1b[0m{style}{''.join(char for char, _ in run)}" for style, run in runs)
            console.print(Text.from_ansi(ansi))
        picture = console.export_svg(title=title, unique_id="whyloop-chat")
        return re.sub(r"<!--.*?-->|@font-face \{.*?\}", "", picture, flags=re.DOTALL)


def record() -> Screen:
    """Return the screen after the chat."""
    screen, decoder = Screen(), getincrementaldecoder("utf-8")()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    here = Path(__file__).resolve().parent
    variables = {"TERM": "xterm-256color", "LOGNAME": "kim", "COLORTERM": "truecolor"}
    # A size in the environment would count for more than that of the terminal.
    outside = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "whyloop", "chat", "--agent", "chat:agent"]
        with subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**outside, **variables, "PYTHONPATH": path},
        ) as running:
            os.close(theirs)
            try:
                for awaited, typed in TYPED:
                    while not f"{screen} ".endswith(awaited):
                        if not select.select([ours], [], [], SECONDS)[0]:
                            raise TimeoutError(f"no {awaited!r} came after:\n{screen}")
                        screen.feed(decoder.decode(os.read(ours, 65_536)))
                    os.write(ours, f"{typed}\r".encode() if typed else b"")
            finally:
                running.kill()
                os.close(ours)
    return screen


if __name__ == "__main__":
    picture = Path(sys.argv[1])
    picture.write_text(record().draw("whyloop chat"), encoding="utf-8")
    sys.stdout.write(f"Wrote {picture}\n")
