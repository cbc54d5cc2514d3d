"""A field that is added to a value gets its place in the slim snapshot, or this fails."""

from __future__ import annotations

import json
from decimal import Decimal
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
    ErrorHandlingDecision,
    ErrorType,
    Execution,
    Failure,
    FinishReason,
    Message,
    ModelAttempt,
    ModelSource,
    OutputMode,
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
from whyloop.values.approval import Question
from whyloop.values.failure import Correction, FailureTally
from whyloop.values.log import Log
from whyloop.values.messages import CallChange, ToolResult
from whyloop.values.model import DecodedOutput
from whyloop.values.step import Interruption, OpenCall, OpenStep, RequestPart, RequestRecord


def make_state() -> tuple[AgentState, list[Any]]:
    """Return a state in which every field has a value, and all values that it is made of."""
    evaluation = ContinuationEvaluation(
        "Guard",
        ContinuationDecision.ALLOW_STOP,
        "why",
        {"n": 1},
        StopReason.COMPLETED,
        ErrorHandlingDecision.IGNORE,
        "more",
        exhausted=True,
        pauses=True,
    )
    outcome = ContinuationOutcome(
        ContinuationDecision.ALLOW_STOP, "Guard", StopReason.COMPLETED, (evaluation,), partial=True
    )
    usage = Usage(1, 2, 3, 4, Decimal("0.5"), reported=False, cache_writes=5, known_cost=Decimal("0.4"))
    approval = Approval(Verdict.EDITED, "ada", at(2), "May it?", "because", {"a": 2}, "q1")
    question = Question("q2", "May it?", uncertain=True)
    execution = Execution(
        id="e",
        started_at=at(1),
        updated_at=at(2),
        leg_started_at=at(1),
        step_count=1,
        usage=usage,
        failures=FailureTally(1, 2),
        active_seconds=3,
        waiting_seconds=4,
        backoff_seconds=5,
        resumes=6,
        resumed_from=AgentStatus.PAUSED,
        granted=Budget(1, 2, 3, 4),
        stop_request="stop",
        last_seq=7,
        wait_until=at(3),
        recoveries=8,
        question=question,
        approvals=(approval,),
        last_response="x",
        has_tool_results=True,
        untimed=True,
        wrap_up="StepsLimit",
        wrap_ups=1,
    )
    correction = Correction("x is not a number", 1, 2)
    failure = Failure(ErrorType.TOOL, "no", "echo", "c", 5, {"x": 1}, False, True, correction, "E: no")
    request = RequestRecord("h1", "h2", ((0, 1), "h3"), ("Cap",), "h4", "none", 9)
    step = Step(
        number=1,
        execution_id="e",
        started_at=at(1),
        completed_at=at(2),
        first_message=1,
        message_count=2,
        tool_calls=(ToolRun("c", "echo", False, "no", 2, (approval,), at(1), ("Cap",), polling=True),),
        finish_reason=FinishReason.OTHER,
        usage=usage,
        duration_ms=7,
        failures=(failure,),
        interrupted=Interruption.STOPPED,
        source=ModelSource("m", "r", "w", ("n",), OutputMode.TOOL, (ModelAttempt("429", 1, 2),)),
        outcome=outcome,
        request=request,
        response_changed_by=("Cap",),
        answered_at=at(2),
        output="[1]",
        leg_started_at=at(1),
        granted=Budget(1),
        untimed=True,
        wrap_up="StepsLimit",
        resumes=2,
        judged_after=3,
    )
    change = CallChange("Cap", {"a": 0}, "shout")
    asked = ToolCall("c", "echo", {"a": 1}, (change,))
    said = replace(Message.assistant("x", [asked]), extras={"p": {"q": 1}}, reasoning="hm", incomplete=True)
    result = replace(Message.result("[x]\nno", tool_call_id="c", tool="echo"), shown="no")
    feedback = replace(Message.developer("again"), source=("Guard",))
    # One call is done; the other waits. Neither could be both, so each field is in one of them.
    done = OpenCall(
        True,
        None,
        True,
        (approval,),
        {"a": 2},
        ToolResult("x", "no", failure, ("Cap",), "[n]", polling=True),
        7,
        at(2),
    )
    open_step = OpenStep(
        number=2,
        started_at=at(2),
        message=replace(
            Message.assistant("y", [ToolCall("d", "echo", {"a": 1}), ToolCall("e", "echo", "{oops")]),
            extras={"p": {"q": 1}},
        ),
        calls=(done, OpenCall(question=question)),
        finish_reason=FinishReason.TOOL_CALLS,
        usage=usage,
        source=step.source,
        seconds=8,
        failure=failure,
        interrupted=Interruption.TRUNCATED,
        request=request,
        response_changed_by=("Cap",),
        answered_at=at(2),
        output="[1]",
    )
    state = AgentState(
        agent_id="a",
        identity="i",
        parent_agent_id="p",
        agent="cashier",
        status=AgentStatus.PAUSED,
        messages=Log([Message.user("go"), said, result, feedback]),
        steps=Log([step]),
        usage=usage,
        metadata={"x": 1},
        state_info=StateInfo(at(0), at(2), 9),
        execution=execution,
        last_continuation_outcome=replace(
            outcome, decision=ContinuationDecision.FORBID_CONTINUATION, stop_reason=None
        ),
        execution_started_at=at(1),
        open_step=open_step,
        request_parts=Log([RequestPart("h1", "Be brief."), RequestPart("h2", "[]")]),
        decoded_output=DecodedOutput([1]),
        wrap_ups=1,
    )
    whole = replace(feedback, tool_calls=(asked,), tool_call_id="c", tool="echo")
    whole = replace(whole, extras={"p": 1}, reasoning="hm", incomplete=True, shown="s")
    values: list[Any] = [execution, step, step.tool_calls[0], failure, step.source, usage, outcome, state]
    values += [evaluation, approval, question, request, change, asked, whole, open_step, done.result]
    return state, [*values, replace(done, question=question)]


def test_no_field_of_a_value_is_forgotten() -> None:
    state, values = make_state()
    for value in values:
        # A field that is added to one of these gets a value here, and a place in the slim snapshot.
        defaults = zip(reversed(value.__struct_fields__), reversed(value.__struct_defaults__), strict=False)
        assert not [name for name, default in defaults if getattr(value, name) == default], value
    document = SlimAgentStateSerializer(SlimSerializationConfig.full()).serialize(state)
    assert read(document) == state


def without_raised(data: Any) -> Any:
    """Return plain data without the messages of tools' own exceptions, also in the texts for models."""
    if isinstance(data, list):
        return [without_raised(each) for each in data]
    if not isinstance(data, dict):
        return data
    shown = {key: without_raised(value) for key, value in data.items() if key != "raised"}
    if "raised" in (data.get("failure") or {}) and "content" in data:
        shown["content"] = f"Error: {data['failure']['message']}"
    return shown


def test_the_texts_of_requests_are_left_out_with_the_steps() -> None:
    state, _ = make_state()
    # The current step has its own outcome and not that of the pause.
    expected = replace(AgentState.from_dict(without_raised(state.to_dict())), request_parts=Log())
    # The message of the call that failed with the tool's own exception.
    failed = replace(expected.messages[2], content="Error: no", shown=None)
    messages = [failed if index == 2 else each for index, each in enumerate(expected.messages)]
    expected = replace(expected, messages=Log(messages))
    assert read(SlimAgentStateSerializer().serialize(state)) == expected


def test_the_full_snapshot_forgets_no_field_either() -> None:
    state, _ = make_state()
    assert AgentState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
