"""Decisions, wake-ups, queries, stops and repeats at random times, with a store that takes its time."""

from __future__ import annotations

import os

import pytest

from tests.real.temporal import TemporalServer
from tests.real.temporal_schedules import play

pytestmark = [pytest.mark.slow]

CHOSEN = [int(number) for number in os.environ.get("WHYLOOP_SCHEDULES", "").split()]
"""The numbers of schedules to play instead, to repeat what went wrong."""


async def test_thirty_random_schedules_fail_no_workflow_task_and_leave_no_session_stuck(
    temporal: TemporalServer,
) -> None:
    await _play_well(temporal, CHOSEN or list(range(30)))


@pytest.mark.soak(suite="temporal")
async def test_three_hundred_random_schedules_fail_no_workflow_task_and_leave_no_session_stuck(
    temporal: TemporalServer,
) -> None:
    await _play_well(temporal, list(range(300)))


async def _play_well(temporal: TemporalServer, numbers: list[int]) -> None:
    wrong = await play(temporal, numbers)
    assert not wrong, "\n".join([*wrong, 'repeat one with WHYLOOP_SCHEDULES="NUMBER"'])
