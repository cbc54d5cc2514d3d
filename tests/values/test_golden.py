"""The golden snapshot and journal: the formats have not changed."""

from __future__ import annotations

from tests.golden.fixed_run import AGENT_ID, METADATA, Recording, fixed_run, journal, snapshot
from tests.support import assert_readable
from whyloop import AgentState, AgentStatus
from whyloop.wire.journal import state_of


def test_the_golden_snapshot_can_be_read() -> None:
    state = AgentState.from_dict(snapshot())
    assert (state.status, state.stop_reason, state.step_count) == (AgentStatus.PAUSED, None, 6)
    assert state.messages[0].text == "Who are they?"
    assert state.steps[0].failures[0].retry_after == 2
    assert state.metadata == METADATA
    assert [pending.tool_call_id for pending in state.pending_calls] == ["pay_4"]
    assert [[said.verdict for said in run.approvals] for run in state.steps[-1].tool_calls] == [
        ["approved"],
        ["denied"],
        ["edited"],
        [],
    ]
    assert "denied by Grâce" in assert_readable(state)


def test_nothing_of_the_golden_snapshot_is_lost_when_it_is_written_back() -> None:
    assert AgentState.from_dict(snapshot()).to_dict() == {**snapshot(), "execution_started_at": None}


def test_the_golden_journal_leads_to_the_golden_snapshot() -> None:
    assert state_of(AGENT_ID, journal()) == AgentState.from_dict(snapshot())


async def test_the_same_run_gives_the_same_snapshot_and_the_same_journal_today() -> None:
    recording = Recording()
    state = await fixed_run(recording)
    assert state.to_dict() == snapshot()
    assert recording.entries == journal()
