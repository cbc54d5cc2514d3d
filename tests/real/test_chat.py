"""`whyloop chat --model local`: a real model in a real terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.terminal import CTRL_C, terminal
from whyloop.models.local import LocalServer

pytestmark = pytest.mark.slow


def test_ctrl_c_stops_the_answer_and_not_the_model(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with terminal("chat", "--model", "local", "--timeout", "60") as shown:
        shown.read_until("❯ ")
        shown.type("Write a long story about a fjord.\r")
        shown.read_until(" ◆  ")
        shown.type(CTRL_C)
        assert "stop (user_requested)" in shown.read_until("❯ ")
        shown.type("Say hello.\r")
        answer = shown.read_until("❯ ")
        assert " ◆  " in answer
        assert "the model call failed" not in answer
        shown.type("/quit\r")
        shown.read_to_the_end()
    assert shown.running.returncode == 0
