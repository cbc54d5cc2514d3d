"""The suite for engines: the local loop passes it over any store, with any ids and clock."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.testing.engines import BY_NAME, local_world, opening
from whyloop.loop.setup import Setup
from whyloop.stores import SqliteStore, Store
from whyloop.testing.engine_checks import interruptions
from whyloop.testing.engine_conformance import (
    CHECKS,
)


@pytest.fixture(autouse=True)
def _short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "DEADLINE_SECONDS", 0.3)


# The ends of the sessions of each scenario, newest first; of all others, one is completed.
ENDS = {
    "an_unknown_tool": "failed error",
    "a_truncated_answer": "stopped finish_reason",
    "two_agents": "pending None, completed completed, completed completed",
    "tool_errors_beyond_the_retries": "failed retry_limit",
    "a_tool_error_that_is_not_retryable": "failed error",
    "a_model_error_that_is_not_retryable": "failed error",
    "an_unknown_model_error": "failed error",
    "a_limit_of_the_session": "stopped token_limit",
    "a_cost_limit": "stopped guard",
    "feedback_and_a_guard": "stopped guard",
    "custom_criteria": "stopped guard",
    "a_criterion_that_raises": "failed error",
    "a_wrap_up_that_fails": "stopped steps_limit",
    "a_stop_while_the_model_streams": "stopped user_requested",
    "a_stop_while_a_tool_runs": "stopped user_requested",
    "a_stop_while_a_tool_finishes": "stopped user_requested",
    "a_stop_in_a_wait": "stopped user_requested",
    "a_stop_in_a_wait_of_the_model": "stopped user_requested",
    "a_deadline_of_a_model_call": "stopped time_limit",
    "a_deadline_of_active_time": "stopped time_limit",
    "an_output_that_never_fits": "failed retry_limit",
    "a_hook_that_raises": "failed error",
    "missing_deps": "pending None",
}


@pytest.mark.parametrize("name", BY_NAME)
async def test_the_local_loop_over_sqlite_is_like_that_in_memory(name: str, tmp_path: Path) -> None:
    ends: list[str] = []

    async def note_ends(store: Store) -> None:
        ends.extend([f"{each.status} {each.stop_reason}" for each in (await store.sessions()).sessions])

    await BY_NAME[name](opening(store=lambda: SqliteStore(tmp_path / "sessions.db"), at_end=note_ends))
    assert ", ".join(ends) == ENDS.get(name, "completed completed")


def test_every_check_is_there_once_and_says_what_it_checks() -> None:
    assert len(BY_NAME) == len(CHECKS) > 60
    assert set(ENDS) < set(BY_NAME)
    assert all(check.__name__.startswith("check_") and check.__doc__ for check in CHECKS)


async def test_an_engine_may_leave_calls_waiting_and_end_them_when_it_ends() -> None:
    left: list[asyncio.Task[object]] = []
    ended: list[object] = []

    def shield_calls(setup: Setup) -> Setup:
        world = local_world(setup)
        call_tool = world.call_tool

        async def call_shielded(*details: Any) -> object:
            left.append(asyncio.create_task(call_tool(*details)))
            return await asyncio.shield(left[-1])

        world.call_tool = call_shielded  # type: ignore[assignment, method-assign]
        return setup

    async def wait_for_calls(store: Store) -> None:
        ended.extend(await asyncio.gather(*left))

    await BY_NAME["a_stop_while_a_tool_runs"](opening(prepare=shield_calls, at_end=wait_for_calls))
    assert ended == ["waited"]


@pytest.mark.parametrize("name", BY_NAME)
async def test_an_engine_with_its_own_ids_clock_and_chance_passes(name: str) -> None:
    ids = itertools.count(1)

    def change(setup: Setup) -> Setup:
        world = local_world(setup)
        world.new_id = lambda: f"workflow/{next(ids)}"
        world.now = lambda: datetime.now(UTC) + timedelta(hours=1)
        world.random = lambda: 0.25
        return setup

    await BY_NAME[name](opening(prepare=change))
