"""Processes that die, freeze or are cancelled at any moment: nothing is lost, done twice or untrue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

KILLS, RACES = 40, 40
SOAK_KILLS, SOAK_RACES = 300, 200


def lab(kind: str, address: str, folder: Path, trials: int = 0) -> dict[str, Any]:
    """What the lab found, which forks and so needs a process without threads."""
    command = [sys.executable, "-m", "tests.sessions.crash_lab", kind, address, str(folder), str(trials), "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    print(
        f"{kind}: {report['kills']} kills ({report['frozen']} of them frozen), {report['deploys']} deploys, "
        f"{report['followed']} followed: {report['lost']} lost, {report['doubled']} doubled, "
        f"{report['untrue']} untrue, {report['differs']} events that differ"
    )
    assert report["problems"] == [], done.stderr
    return report


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "whyloop.db")


def test_a_session_that_was_killed_or_frozen_at_any_moment_completes(address: str, tmp_path: Path) -> None:
    check_kills(lab("random", address, tmp_path, KILLS), KILLS)


@pytest.mark.soak(suite="crash")
def test_three_hundred_kills_and_freezes_lose_and_repeat_nothing(address: str, tmp_path: Path) -> None:
    check_kills(lab("random", address, tmp_path, SOAK_KILLS), SOAK_KILLS)


def check_kills(report: dict[str, Any], kills: int) -> None:
    assert report["kills"] >= kills
    assert report["frozen"] > kills // 10  # Stopped until their lease had lapsed, and woken then.
    assert report["deploys"] > kills // 10  # Cancelled while another program was in their way.
    assert report["asked"] > 0  # Some were killed while a tool ran, and a person had to be asked.
    assert report["followed"] > 5


def test_a_session_that_was_killed_before_or_after_any_write_completes(address: str, tmp_path: Path) -> None:
    report = lab("boundaries", address, tmp_path)
    assert report["kills"] > 40
    assert report["asked"] > 0


def test_of_two_that_race_for_a_session_one_runs_it(address: str, tmp_path: Path) -> None:
    report = lab("race", address, tmp_path, RACES)
    assert report["refused"] > 0


@pytest.mark.soak(suite="crash")
def test_of_two_that_race_for_a_session_one_runs_it_every_time(address: str, tmp_path: Path) -> None:
    report = lab("race", address, tmp_path, SOAK_RACES)
    assert report["refused"] > 0
