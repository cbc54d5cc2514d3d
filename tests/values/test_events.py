"""Events as values: frozen, one literal tag each, one readable line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support import START, broken, scripted
from whyloop import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    ErrorPolicy,
    StopReason,
    events,
)
from whyloop.events import AgentEvent, ContinuationEvaluated
from whyloop.testing import call, capture_events

WHOSE: dict[str, Any] = {
    "agent_id": "1a2b3c4d5e6f",
    "parent_agent_id": None,
    "execution_id": "execution-1",
    "step_number": 3,
    "time": START,
}


@pytest.mark.parametrize(
    ("decision", "resolved_by", "reason", "line"),
    [
        ("forbid", "StepsLimit", "steps_limit", "STOP (steps_limit) by StepsLimit"),
        ("forbid", "ApprovalRequired", None, "PAUSE by ApprovalRequired"),
        ("stop", "ToolCallPresenceCheck", "completed", "STOP (completed) by ToolCallPresenceCheck"),
        ("request", "ToolCallPresenceCheck", None, "CONTINUE (requested by ToolCallPresenceCheck)"),
        ("allow", "StepsLimit", None, "CONTINUE (allowed by StepsLimit)"),
    ],
)
def test_a_continuation_reads_as_one_line(
    decision: str, resolved_by: str, reason: str | None, line: str
) -> None:
    decided, stop_reason = ContinuationDecision(decision), StopReason(reason) if reason else None
    bare = ContinuationOutcome(decided, resolved_by, stop_reason)
    assert str(ContinuationEvaluated(**WHOSE, outcome=bare)) == f"Agent [1a2b3c4d] step 3: {line}"
    said = (
        ContinuationEvaluation("Other", decided, "no"),
        ContinuationEvaluation(resolved_by, decided, "so"),
    )
    outcome = ContinuationOutcome(decided, resolved_by, stop_reason, said)
    assert str(ContinuationEvaluated(**WHOSE, outcome=outcome)) == f"Agent [1a2b3c4d] step 3: {line}: so"


def test_every_event_has_its_session_and_its_time() -> None:
    for name in events.__all__:
        kind = getattr(events, name)
        assert issubclass(kind, AgentEvent)
        assert {*WHOSE, "seq"} <= set(kind.__struct_fields__)


def test_an_event_is_made_with_named_fields() -> None:
    for name in events.__all__:
        with pytest.raises(TypeError):
            getattr(events, name)("1a2b3c4d5e6f")


def test_an_event_cannot_be_changed() -> None:
    outcome = ContinuationOutcome(ContinuationDecision.ALLOW_STOP, "A", None)
    event = ContinuationEvaluated(**WHOSE, outcome=outcome)
    with pytest.raises(AttributeError):
        event.step_number = 4  # type: ignore[misc]


async def test_every_event_of_a_run_can_be_written_as_json_with_its_tag() -> None:
    agent = scripted(
        call("broken", usage=3), call("broken"), tools=[broken], error_policy=ErrorPolicy.retry_all(1)
    )
    captured = capture_events(agent)
    await agent.run("go")
    written = msgspec.json.decode(msgspec.json.encode(list(captured)))
    assert [entry["event"] for entry in written] == captured.kinds()
    assert {entry["agent_id"] for entry in written} == {captured[0].agent_id}
