"""Clients that read the journal later receive the same as live clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from msgspec.structs import replace

from tests.support import envelopes_of, examples
from tests.wire.random_runs import SESSION, Said, Scenario, Scene, crashing_scenarios, scenarios
from whyloop import AgentState, ErrorPolicy, FinishReason, ToolCall
from whyloop.broadcasting import AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.events import AgentStepStarted, StreamChunkReceived
from whyloop.values.log import Log
from whyloop.values.step_transitions import Answered, ModelFailed
from whyloop.values.transitions import Queried
from whyloop.wire.envelope import NUMBERED
from whyloop.wire.journal import JournalEntry, decode_entries, decode_head, encode_head

PRESETS = [BroadcastConfig.minimal(), BroadcastConfig.standard(), BroadcastConfig.debug()]
Envelopes = list[dict[str, Any]]


class Kept:
    """A transport that keeps the envelopes that it is given."""

    def __init__(self) -> None:
        self.envelopes: Envelopes = []

    def broadcast(self, event: Any) -> None:
        self.envelopes.append(event)

    def broadcast_batch(self, events: Any) -> None:
        self.envelopes += events


def sent_live(scene: Scene, config: BroadcastConfig) -> Envelopes:
    """Return what an adapter sent, without the envelopes that are never recorded."""
    adapter = AgentEventEnvelopeAdapter(kept := Kept(), config)
    for run in scene.runs:
        for event in run:
            if not isinstance(event, AgentStepStarted | StreamChunkReceived):
                adapter(event)
    return kept.envelopes


def read_later(scene: Scene, config: BroadcastConfig) -> Envelopes:
    return list(envelopes_of(AgentState(agent_id=SESSION), scene.journal.transitions, config))


@examples(150)
@given(scenarios)
def test_the_journal_yields_the_envelopes_that_were_sent_live(scenario: Scenario) -> None:
    scene = scenario.play()
    for config in PRESETS:
        assert read_later(scene, config) == sent_live(scene, config)


@examples(150)
@given(crashing_scenarios)
def test_after_crashes_no_two_envelopes_have_one_number(scenario: Scenario) -> None:
    scene = scenario.play()
    config = BroadcastConfig.standard()
    recorded = [each for each in read_later(scene, config) if each["event"] in NUMBERED]
    by_number = {(each["execution_id"], each["seq"]): each for each in recorded}
    assert len(by_number) == len(recorded)
    for each in sent_live(scene, config):
        if each["event"] in NUMBERED:
            assert by_number[each["execution_id"], each["seq"]] == each
    last: dict[str, int] = {}
    for each in recorded:
        assert each["seq"] == last.get(each["execution_id"], 0) + 1
        last[each["execution_id"]] = each["seq"]


@examples(100)
@given(crashing_scenarios)
def test_reading_can_start_at_any_entry(scenario: Scenario) -> None:
    scene = scenario.play()
    config = BroadcastConfig.debug()
    entries = decode_entries(scene.journal.entries)
    whole = read_later(scene, config)
    for index, state in enumerate(scene.journal.states[:-1], 1):
        rest = [t for entry in entries[index:] for t in entry.transitions]
        later = list(envelopes_of(state, rest, config))
        assert later == whole[len(whole) - len(later) :]
        if may_have_checkpoint(state, entries[index]):
            head = decode_head(SESSION, encode_head(state))
            assert list(envelopes_of(head, rest, config)) == later


FAILING = Said([], [ToolCall("c", "fail", {})], True, False, FinishReason.TOOL_CALLS)


@examples(200)
@given(crashing_scenarios)
@example(Scenario([FAILING] * 3, ErrorPolicy.ignore_tool_errors(), 20, []))
def test_a_session_that_is_read_from_a_checkpoint_is_the_same_but_for_its_history(scenario: Scenario) -> None:
    scene = scenario.play()
    entries = decode_entries(scene.journal.entries)
    for index, state in enumerate(scene.journal.states[:-1], 1):
        if may_have_checkpoint(state, entries[index]):
            partial = replace(decode_head(SESSION, encode_head(state)), metadata=state.metadata)
            for entry, whole in zip(entries[index:], scene.journal.states[index:], strict=True):
                for transition in entry.transitions:
                    partial = transition.apply_to(partial)
                assert without_history(partial) == without_history(whole)
                assert partial.messages[partial.messages.start :] == whole.messages[partial.messages.start :]
                assert partial.steps[partial.steps.start :] == whole.steps[partial.steps.start :]
                assert partial.current_step == whole.current_step


def without_history(state: AgentState) -> AgentState:
    return replace(state, messages=Log(), steps=Log(), request_parts=Log(), execution_started_at=None)


def may_have_checkpoint(before: AgentState, entry: JournalEntry) -> bool:
    """Return whether reading may start at an entry, without the history before it."""
    opens = any(isinstance(transition, Answered | ModelFailed) for transition in entry.transitions)
    return before.open_step is None and (opens or isinstance(entry.transitions[0], Queried))


@pytest.mark.parametrize("config", PRESETS)
async def test_a_session_may_have_another_name_for_clients(config: BroadcastConfig) -> None:
    scene = await Scenario([], ErrorPolicy(), 20, []).scene()
    read = list(envelopes_of(AgentState(agent_id=SESSION), scene.journal.transitions, config, "17"))
    assert {each["session_id"] for each in read} == {"17"}
