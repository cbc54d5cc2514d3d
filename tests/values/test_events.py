"""Events as values: frozen, one literal tag each, one readable line."""

from __future__ import annotations

import msgspec
import pytest

from tests.support import START, broken, scripted
from whyloop import ContinuationDecision, ContinuationOutcome, ErrorPolicy, StopReason, events
from whyloop.events import AgentEvent, ContinuationEvaluated
from whyloop.testing import call, capture_events

WHOSE = ("1a2b3c4d5e6f", None, "execution-1", 3, START)


@pytest.mark.parametrize(
    ("decision", "resolved_by", "reason", "line"),
    [
        ("forbid", "StepsLimit", "steps_limit", "STOP (steps_limit)"),
        ("stop", "ToolCallPresenceCheck", "completed", "STOP (completed)"),
        ("request", "ToolCallPresenceCheck", None, "CONTINUE (requested by ToolCallPresenceCheck)"),
        ("allow", "StepsLimit", None, "CONTINUE (allowed by StepsLimit)"),
    ],
)
def test_a_continuation_reads_as_one_line(
    decision: str, resolved_by: str, reason: str | None, line: str
) -> None:
    outcome = ContinuationOutcome(
        ContinuationDecision(decision), resolved_by, StopReason(reason) if reason else None
    )
    assert str(ContinuationEvaluated(*WHOSE, outcome)) == f"Agent [1a2b3c4d] step 3: {line}"


def test_every_event_carries_whose_it_is_and_when() -> None:
    for name in events.__all__:
        kind = getattr(events, name)
        assert issubclass(kind, AgentEvent)
        assert kind.__struct_fields__[:5] == (
            "agent_id",
            "parent_agent_id",
            "execution_id",
            "step_number",
            "time",
        )


def test_an_event_cannot_be_changed() -> None:
    event = ContinuationEvaluated(*WHOSE, ContinuationOutcome(ContinuationDecision.ALLOW_STOP, "A", None))
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
