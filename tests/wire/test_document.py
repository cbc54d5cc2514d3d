"""A session as plain data for programs."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from msgspec.structs import replace

from tests.golden.fixed_run import fixed_run
from tests.support import examples, session
from tests.wire.random_runs import SESSION, Said, Scenario, crashing_scenarios
from whyloop import ErrorPolicy, FinishReason, ToolCall, Usage
from whyloop.values.log import Log
from whyloop.values.step import Interruption
from whyloop.wire.document import document, step_document
from whyloop.wire.journal import decode_head, encode_head


@examples(100)
@given(crashing_scenarios)
def test_every_state_is_plain_data(scenario: Scenario) -> None:
    for state in scenario.play().journal.states:
        json.dumps(document(state), allow_nan=False)


async def test_a_paused_session_names_its_questions() -> None:
    state = await fixed_run()
    shown = document(state)
    (pending,) = state.pending_calls
    assert shown["pending_calls"] == [
        {
            "id": pending.id,
            "tool": "pay",
            "tool_call_id": "pay_4",
            "arguments": {"amount": 101, "to": "Again Ltd"},
            "question": "pay waits for approval",
        }
    ]
    assert (shown["resolved_by"], shown["reason"]) == ("ApprovalRequired", "pay waits for approval")


async def test_a_step_has_the_start_of_each_call_and_the_record_of_its_request() -> None:
    state = await fixed_run()
    step = step_document(state, 2)
    assert [call["started_at"] for call in step["tool_calls"]] == ["2026-01-16T10:00:02+00:00"] * 2
    hashes = {part.hash: part.text for part in state.request_parts}
    assert hashes[step["request"]["instructions"]] == "Answer briefly."
    assert "search" in hashes[step["request"]["tools"]]
    denied = step_document(state, len(state.steps))["tool_calls"][1]
    assert (denied["started_at"], denied["approvals"][0]["verdict"]) == (None, "denied")


async def test_changes_by_hooks_are_shown() -> None:
    calls = [ToolCall("c1", "work", {"value": "change me"}), ToolCall("c2", "work", {"value": "block me"})]
    script = [Said([], calls, True, False, FinishReason.TOOL_CALLS)]
    state = (await Scenario(script, ErrorPolicy(), 20, []).scene()).state
    changed, blocked = step_document(state, 1)["tool_calls"]
    assert changed["arguments"] == {"value": "changed"}
    assert changed["changes"] == [{"by": "Changer", "before": {"value": "change me"}, "name": None}]
    assert changed["result_changed_by"] == blocked["result_changed_by"] == ["Changer"]
    assert blocked["changes"] == []


def test_an_interruption_is_its_value_and_a_cost_is_text() -> None:
    state = session(steps=1)
    step = replace(state.steps[0], interrupted=Interruption.OUT_OF_TIME, usage=Usage(1, cost=Decimal("0.25")))
    shown: dict[str, Any] = step_document(replace(state, steps=Log([step])), 1)
    assert shown["interrupted"] == "out_of_time"
    used = {"input": 1, "output": 0, "total": 1, "cost": "0.25", "reported": True}
    assert shown["usage"] == used


async def test_a_session_that_is_read_from_a_checkpoint_has_the_steps_that_follow() -> None:
    scene = await Scenario([], ErrorPolicy(), 20, []).scene()
    assert document(decode_head(SESSION, encode_head(scene.state)))["steps"] == []
