"""Processes that die, freeze or are cancelled at any moment while they write to a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.postgres import PostgresServer
from tests.sessions.test_crashes import KILLS, RACES, SOAK_KILLS, SOAK_RACES, check_kills, lab

pytestmark = pytest.mark.slow


def test_a_session_that_was_killed_or_frozen_at_any_moment_completes(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    check_kills(lab("random", f"{postgres.address()}#{schema}", tmp_path, KILLS), KILLS)


@pytest.mark.soak(suite="crash")
def test_three_hundred_kills_and_freezes_lose_and_repeat_nothing(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    check_kills(lab("random", f"{postgres.address()}#{schema}", tmp_path, SOAK_KILLS), SOAK_KILLS)


def test_a_session_that_was_killed_before_or_after_any_write_completes(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    report = lab("boundaries", f"{postgres.address()}#{schema}", tmp_path)
    assert report["kills"] > 40
    assert report["asked"] > 0


def test_of_two_that_race_for_a_session_one_runs_it(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    report = lab("race", f"{postgres.address()}#{schema}", tmp_path, RACES)
    assert report["refused"] > 0


@pytest.mark.soak(suite="crash")
def test_of_two_that_race_for_a_session_one_runs_it_every_time(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    report = lab("race", f"{postgres.address()}#{schema}", tmp_path, SOAK_RACES)
    assert report["refused"] > 0
