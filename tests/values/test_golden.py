"""Snapshots that were written once are read for ever."""

from __future__ import annotations

import pytest

from tests.golden.fixed_run import Recording, fixed_run, snapshot, stopped_run
from tests.support import assert_readable
from whyloop import AgentState, AgentStatus
from whyloop.values.snapshot import VERSION


def test_a_snapshot_of_version_1_can_be_read() -> None:
    state = AgentState.from_dict(snapshot(1))
    assert state.status is AgentStatus.STOPPED
    assert state.stop_reason == "user_requested"
    assert state.step_count == 5
    assert state.messages[0].text == "Who are they?"
    assert state.steps[0].failures[0].retry_after == 2
    assert state.metadata["customer"] == {"id": 7, "tags": ["a", "b"]}
    assert state.open_step is None
    assert "closed for today" in assert_readable(state)


def test_a_snapshot_of_version_2_can_be_read() -> None:
    state = AgentState.from_dict(snapshot(2))
    assert (state.status, state.stop_reason, state.step_count) == (AgentStatus.PAUSED, None, 6)
    assert [pending.id for pending in state.pending_calls] == ["pay_4"]
    assert [[said.verdict for said in run.approvals] for run in state.steps[-1].tool_calls] == [
        ["approved"],
        ["denied"],
        ["edited"],
        [],
    ]
    assert "denied by Grâce" in assert_readable(state)


def kept(before: object, after: object) -> bool:
    """True if everything that was there is still there; later versions may add fields."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(key in after and kept(value, after[key]) for key, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(kept, before, after))
    return before == after


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_nothing_of_a_snapshot_is_lost_when_it_is_written_back_in_the_newest_version(version: int) -> None:
    document = snapshot(version)
    assert kept({**document, "version": VERSION}, AgentState.from_dict(document).to_dict())


async def test_the_run_that_an_older_version_recorded_is_the_same_today() -> None:
    assert AgentState.from_dict(snapshot(1)) == await stopped_run(Recording())


async def test_the_same_run_gives_the_same_snapshot_today() -> None:
    state = await fixed_run()
    assert state.to_dict() == snapshot(VERSION)
    assert AgentState.from_dict(snapshot(VERSION)) == state
