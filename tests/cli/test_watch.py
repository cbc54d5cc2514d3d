"""`whyloop watch`: what happens in a session, line by line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shop import HERE, greeting, in_store, refused, run
from whyloop import Session
from whyloop.stores import Store

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


def new_session(agent_id: str = "q") -> None:
    async def make(store: Store) -> None:
        await Session.open(store, greeting(), agent_id, create=True)

    in_store(make)


def test_what_was_told_so_far_is_read_line_by_line(capsys: Capsys) -> None:
    new_session()
    run(capsys, "run", "Hi", "--agent", f"{HERE}:greeting", "--session", "q")
    code, out, err = run(capsys, "watch", "q", "--so-far")
    assert (code, err) == (0, "")
    assert [line.split()[2:4] for line in out.splitlines()] == [
        ["1", "status"],
        ["2", "step.started"],
        ["5", "step.completed"],
        ["6", "status"],
    ]
    code, out, _ = run(capsys, "watch", "q", "--so-far", "--json", "--after", "5")
    assert [json.loads(line)["data"]["status"] for line in out.splitlines()] == ["completed"]


def test_what_another_process_does_is_seen_as_it_happens(capsys: Capsys) -> None:
    new_session()
    command = [*WHYLOOP, "watch", "q", "--json"]
        with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        try:
            assert "Nothing was kept" in watching.stderr.readline()
            run(capsys, "run", "Hi", "--agent", f"{HERE}:greeting", "--session", "q")
            told = [json.loads(watching.stdout.readline()) for _ in range(4)]
            assert [each["seq"] for each in told] == [1, 2, 5, 6]
            watching.send_signal(signal.SIGINT)
            assert watching.wait(timeout=20) in (130, -signal.SIGINT)
        finally:
            watching.kill()


def test_of_a_session_that_nobody_told_of_it_says_so(capsys: Capsys) -> None:
    new_session()
    code, out, err = run(capsys, "watch", "q", "--so-far")
    assert (code, out) == (0, "")
    assert "Nothing was kept" in err


def test_a_session_or_a_place_that_is_none_is_refused(capsys: Capsys) -> None:
    new_session()
    assert "there is no session" in refused(capsys, "watch", "z", "--so-far")
    assert "is no place" in run(capsys, "watch", "q", "--so-far", "--after", "x")[2]
