"""Snapshots that were written once are read for ever."""

from __future__ import annotations

import json

from tests.golden.fixed_run import GOLDEN, fixed_run
from tests.support import assert_readable
from whyloop import AgentState, AgentStatus

DOCUMENT = json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_a_snapshot_of_version_1_can_be_read() -> None:
    state = AgentState.from_dict(DOCUMENT)
    assert state.status is AgentStatus.STOPPED
    assert state.stop_reason == "user_requested"
    assert state.step_count == 5
    assert state.messages[0].text == "Who are they?"
    assert state.steps[0].failures[0].retry_after == 2
    assert state.metadata["customer"] == {"id": 7, "tags": ["a", "b"]}
    assert "closed for today" in assert_readable(state)


def kept(before: object, after: object) -> bool:
    """True if everything that was there is still there; later versions may add fields."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(key in after and kept(value, after[key]) for key, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(kept, before, after))
    return before == after


def test_nothing_of_a_snapshot_of_version_1_is_lost_when_it_is_written_back() -> None:
    assert kept(DOCUMENT, AgentState.from_dict(DOCUMENT).to_dict())


async def test_the_same_run_gives_the_same_snapshot_today() -> None:
    state = await fixed_run()
    assert state.to_dict() == DOCUMENT
    assert AgentState.from_dict(DOCUMENT) == state
