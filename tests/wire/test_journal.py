"""A journal leads to the state that was there live, from any entry on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from tests.golden.fixed_run import AGENT_ID, Recording, fixed_run, journal, snapshot
from tests.support import examples, transitions_of
from tests.wire.random_runs import SESSION, Said, Scenario, Scene, crashing_scenarios
from whyloop import AgentState, AgentStatus, ErrorPolicy, FinishReason, Message, ToolCall
from whyloop.errors import SnapshotError, StoreError
from whyloop.values.snapshot import head_of
from whyloop.values.transitions import Created, Queried, Restored
from whyloop.wire.journal import (
    decode_entries,
    decode_head,
    encode_entry,
    encode_head,
    fold,
    state_of,
)


def check_folding(scene: Scene) -> None:
    """Every state follows from the entries before it, and the last one from any state on."""
    recorded = scene.journal
    entries = decode_entries(recorded.entries)
    for index, state in enumerate(recorded.states, 1):
        assert fold(SESSION, entries[:index]) == state
        assert fold(SESSION, entries[index:], state, index) == recorded.states[-1]


def check_restoring(scene: Scene) -> None:
    """Any state can begin a journal of its own."""
    for state in scene.journal.states:
        restored = Restored(state.state_info.updated_at, identity=state.identity, state=state.to_dict())
        empty = AgentState(agent_id=SESSION)
        assert state_of(SESSION, [encode_entry([restored], empty)]) == state


@examples(250)
@given(crashing_scenarios)
def test_any_run_can_be_read_from_any_entry_on(scenario: Scenario) -> None:
    scene = scenario.play()
    check_folding(scene)
    check_restoring(scene)
    assert scene.journal.states[-1] == scene.state


def asks(*names: str, value: str = "x") -> Said:
    calls = [ToolCall(f"c{number}", name, {"value": value}) for number, name in enumerate(names)]
    return Said(["I see."], calls, True, False, FinishReason.TOOL_CALLS)


ANSWER = Said(["fine"], [], True, False, FinishReason.STOP)
BROKEN = Said([], [], False, True, FinishReason.STOP)
CUT_OFF = Said(["half an"], [], True, False, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("script", "happening", "kinds"),
    [
        ([asks("guarded")], [("decide", 0), ("resume", 0)], "Decided Reopened"),
        ([asks("work", "guarded")], [("decide", 1), ("resume", 0)], "Decided"),
        ([asks("guarded", "guarded")], [("decide", 2), ("decide", 2), ("resume", 0)], "Left Reopened"),
        ([asks("guarded", "work")], [("query", 1)], "StopRequested CallFinished Closed"),
        ([ANSWER, asks("work", "again")], [("crash", 4), ("query", 1), ("recover", 0)], "Recovered Reopened"),
        ([BROKEN, BROKEN], [], "ModelFailed RetryPlanned Waited"),
        ([CUT_OFF], [("resume", 5)], "Resumed"),
        ([asks("work", value="change me"), asks("work", value="block me")], [], "CallFinished"),
        ([], [], "Created Queried Begun Noted Answered Closed Judged"),
        ([ANSWER, asks("work")], [("stop", 4), ("query", 1)], "StopRequested"),
    ],
)
async def test_the_random_runs_contain_these(
    script: list[Said], happening: list[tuple[str, int]], kinds: str
) -> None:
    scene = await Scenario(script, ErrorPolicy.retry_all(3), 20, happening).scene()
    check_folding(scene)
    check_restoring(scene)
    assert set(kinds.split()) <= {type(t).__name__ for t in scene.journal.transitions}


async def test_a_call_that_was_running_when_its_process_died_is_asked_about() -> None:
    scene = Scene([asks("work")], ErrorPolicy(), 20)
    await scene.happens("crash", 4)  # The append that has the result is lost.
    await scene.happens("query", 0)
    assert scene.state.open_step is not None
    await scene.happens("recover", 0)
    assert "It is unknown whether" in scene.state.pending_calls[0].question
    await scene.happens("decide", 0)
    await scene.happens("resume", 0)
    assert scene.state.status is AgentStatus.COMPLETED
    check_folding(scene)
    check_restoring(scene)


async def test_arguments_and_results_are_written_once() -> None:
    calls = [ToolCall(f"c{n}", "work", {"value": f"unique {n}"}) for n in range(3)]
    script = [Said(["unique text"], calls, True, False, FinishReason.TOOL_CALLS), asks("guarded")]
    scene = await Scenario(script, ErrorPolicy(), 20, [("decide", 0), ("resume", 0)]).scene()
    written = "".join(scene.journal.entries)
    assert written.count("unique text") == 1
    for number in range(3):
        assert written.count(f"unique {number}") == 2  # As the argument, and as the result.


async def test_a_checkpoint_is_the_state_without_its_history() -> None:
    scene = await Scenario([asks("work")], ErrorPolicy(), 20, []).scene()
    state = scene.state
    head = decode_head(SESSION, encode_head(state))
    assert head_of(head) == head_of(state)
    assert (len(head.messages), len(head.steps)) == (len(state.messages), len(state.steps))
    with pytest.raises(LookupError, match="left out"):
        head.messages[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"identity": 5}', "\ud800", "[" * 100_000])
def test_a_checkpoint_that_cannot_be_read_is_a_snapshot_error(text: str) -> None:
    with pytest.raises(SnapshotError, match="checkpoint"):
        decode_head(SESSION, text)


# Entries


def test_an_entry_has_the_number_of_its_first_envelope() -> None:
    for entry, before in zip(decode_entries(journal())[1:], states_of(journal()), strict=False):
        assert entry.seq == before.execution.last_seq + 1


def states_of(entries: list[str]) -> list[AgentState]:
    return [state_of(AGENT_ID, entries[: index + 1]) for index in range(len(entries))]


def test_the_numbers_of_transitions_add_up_to_the_last_one() -> None:
    state = AgentState(agent_id=AGENT_ID)
    for transition in transitions_of(AGENT_ID, journal()):
        after = transition.apply_to(state)
        if after.execution.id == state.execution.id:
            assert after.execution.last_seq == state.execution.last_seq + transition.envelope_count()
        state = after


def test_an_entry_that_starts_at_another_number_is_refused() -> None:
    lines = journal()
    entry = json.loads(lines[3])
    lines[3] = json.dumps({**entry, "seq": entry["seq"] + 1})
    with pytest.raises(SnapshotError, match=f"starts at envelope {entry['seq'] + 1}, not at") as caught:
        state_of(AGENT_ID, lines)
    assert caught.value.path == "$[3].seq"


def test_text_that_no_encoder_takes_is_replaced() -> None:
    created = Created(AgentState().state_info.started_at, identity="i", metadata={"\ud800": "\ud800"})
    state = state_of("a", [encode_entry([created], AgentState(agent_id="a"))])
    assert state.metadata == {"\ufffd": "\ufffd"}


def test_a_value_that_is_nested_too_deep_is_named() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    now = AgentState().state_info.started_at
    message = Message.assistant("", [ToolCall("c", "work", {"value": deep})])
    with pytest.raises(StoreError, match="nested too deep"):
        encode_entry([Queried(now, execution_id="e", message=message)], AgentState())


# Golden


def test_the_golden_journal_can_be_read() -> None:
    assert state_of(AGENT_ID, journal()) == AgentState.from_dict(snapshot())


async def test_the_same_run_gives_the_same_journal_today() -> None:
    recording = Recording()
    await fixed_run(recording)
    assert recording.entries == journal()
