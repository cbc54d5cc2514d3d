"""A field that is added to a value gets its place in the slim snapshot, or this fails."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.support import at
from tests.wire.support import read
from whyloop import (
    AgentState,
    AgentStatus,
    Approval,
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    ErrorType,
    Execution,
    Failure,
    FinishReason,
    Message,
    ModelSource,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    StateInfo,
    Step,
    StopReason,
    ToolCall,
    ToolRun,
    Usage,
    Verdict,
)
from whyloop.values.failure import FailureTally
from whyloop.values.log import Log
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.tool_result import ToolResult


def test_no_field_of_a_value_is_forgotten() -> None:
    outcome = ContinuationOutcome(
        ContinuationDecision.ALLOW_STOP,
        "Guard",
        StopReason.COMPLETED,
        (
            ContinuationEvaluation(
                "Guard", ContinuationDecision.ALLOW_STOP, "why", {"n": 1}, StopReason.COMPLETED
            ),
        ),
    )
    usage = Usage(1, 2, 3, 4)
    execution = Execution(
        id="e",
        started_at=at(1),
        updated_at=at(2),
        step_count=1,
        usage=usage,
        failures=FailureTally(1, 2),
        active_seconds=3,
        waiting_seconds=4,
        backoff_seconds=5,
        resumes=6,
        granted=Budget(1, 2, 3),
        stop_request="stop",
    )
    approval = Approval(Verdict.EDITED, "ada", at(2), "May it?", "because", {"a": 2})
    failure = Failure(ErrorType.TOOL, "no", "echo", "c", 5, {"x": 1})
    step = Step(
        number=1,
        execution_id="e",
        started_at=at(1),
        completed_at=at(2),
        first_message=1,
        message_count=2,
        tool_calls=(ToolRun("c", "echo", False, "no", 2, (approval,)),),
        finish_reason=FinishReason.OTHER,
        usage=usage,
        duration_ms=7,
        failures=(failure,),
        interrupted="cut off",
        source=ModelSource("m", "r", "w", ("n",)),
        outcome=outcome,
    )
    said = replace(Message.assistant("x", [ToolCall("c", "echo", {"a": 1})]), extras={"p": {"q": 1}})
    result = Message.tool("no", tool_call_id="c", tool_name="echo")
    # One call is done; the other waits. Neither could be both, so each field is in one of them.
    done = OpenCall(True, None, (approval,), {"a": 2}, ToolResult("x", "no", failure), 7, True)
    open_step = OpenStep(
        number=2,
        started_at=at(2),
        message=replace(
            Message.assistant("y", [ToolCall("d", "echo", {"a": 1}), ToolCall("e", "echo", "{oops")]),
            extras={"p": {"q": 1}},
        ),
        calls=(done, OpenCall(question="May it?")),
        finish_reason=FinishReason.TOOL_CALLS,
        usage=usage,
        source=step.source,
        seconds=8,
        counted=7,
    )
    pause = replace(outcome, decision=ContinuationDecision.FORBID_CONTINUATION, stop_reason=None)
    state = AgentState(
        agent_id="a",
        parent_agent_id="p",
        status=AgentStatus.PAUSED,
        messages=Log([Message.user("go"), said, result]),
        steps=Log([step]),
        current_step=step,
        usage=usage,
        metadata={"x": 1},
        state_info=StateInfo(at(0), at(2), 9),
        execution=execution,
        last_continuation_outcome=pause,
        execution_started_at=at(1),
        open_step=open_step,
    )
    values: list[Any] = [execution, step, step.tool_calls[0], failure, step.source, usage, outcome, state]
    values += [approval, open_step, replace(done, question="May it?"), done.result]
    for value in values:
        # Whoever adds a field to one of these gives it a value here, and a place in the slim snapshot.
        defaults = zip(reversed(value.__struct_fields__), reversed(value.__struct_defaults__), strict=False)
        assert not [name for name, default in defaults if getattr(value, name) == default]
    document = SlimAgentStateSerializer(SlimSerializationConfig.full()).serialize(state)
    assert read(document) == state
    # Where the steps are left out, the current one has its own outcome and not that of the pause.
    assert read(SlimAgentStateSerializer().serialize(state)) == state
