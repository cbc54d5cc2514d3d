"""Prompts of commands on a terminal: one Ctrl-C leaves each of them, and nothing has been done."""

from __future__ import annotations

import io
import signal
import sys

import pytest

from tests.cli.shop import asked, greeting, in_store
from tests.cli.terminal import CTRL_C, Terminal, on_a_terminal_of_its_own, terminal
from whyloop.cli.terminal import read_line

pytestmark = pytest.mark.usefixtures("in_the_shop")

INTERRUPTED = 130


def press_ctrl_c_once(shown: Terminal) -> str:
    """Press Ctrl-C once at a prompt, and return what the command prints until it ends."""
    shown.type(CTRL_C)
    end = shown.read_to_the_end()
    assert shown.running.returncode == INTERRUPTED, end
    return end


def sessions() -> list[str]:
    page = in_store(lambda store: store.sessions())
    return [summary.agent_id for summary in page.sessions]


def test_one_ctrl_c_leaves_the_question_before_a_deletion() -> None:
    agent_id = asked(greeting())
    with terminal("delete", agent_id[:8]) as shown:
        shown.read_until("permanently? [y/N] ")
        assert "Nothing was deleted." in press_ctrl_c_once(shown)
    assert sessions() == [agent_id]


def test_one_ctrl_c_leaves_the_question_before_pruning() -> None:
    agent_id = asked(greeting())
    with terminal("prune", "--older-than", "0s") as shown:
        shown.read_until("permanently? [y/N] ")
        assert "Nothing was deleted." in press_ctrl_c_once(shown)
    assert sessions() == [agent_id]


READS_IN_AN_EVENT_LOOP = """
import asyncio
from whyloop.cli.terminal import read_line

async def read():
    print("read", repr(read_line("first ")), flush=True)
    read_line("second ")

asyncio.run(read())
"""


def test_one_ctrl_c_ends_any_line_that_is_read_in_an_event_loop() -> None:
    with on_a_terminal_of_its_own([sys.executable, "-c", READS_IN_AN_EVENT_LOOP]) as shown:
        shown.read_until("first ")
        shown.type("Hello\n")
        shown.read_until("read 'Hello\\n'")
        shown.read_until("second ")
        shown.type(CTRL_C)
        assert "KeyboardInterrupt" in shown.read_to_the_end()


async def test_reading_a_line_restores_the_handler_of_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a line\n"))
    assert read_line() == "a line\n"
    assert signal.getsignal(signal.SIGINT) is handler
