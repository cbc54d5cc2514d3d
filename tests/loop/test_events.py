"""The events of the loop, their order and their fields."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support import RespondingModel, broken, echo, empty_session, scripted
from whyloop import (
    Agent,
    AgentStatus,
    Backoff,
    ErrorPolicy,
    Message,
    ModelRequest,
    ModelResponse,
    ReasoningDelta,
    StopReason,
    TextDelta,
    ToolCall,
    Usage,
    tool,
)
from whyloop.errors import ConfigurationError, RateLimitError
from whyloop.events import (
    AgentEvent,
    AgentExecutionFailed,
    AgentExecutionFinished,
    AgentExecutionStarted,
    AgentStatusChanged,
    AgentStepCompleted,
    AgentStepStarted,
    ApprovalDecided,
    ApprovalRequested,
    ContinuationEvaluated,
    RetryScheduled,
    StreamChunkReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.testing import CapturedEvents, FakeClock, call, capture_events, text


async def captured(agent: Agent, query: str = "go") -> CapturedEvents:
    events = capture_events(agent)
    await agent.run(query)
    return events


async def test_a_run_with_one_tool_call_sends_exactly_these_events() -> None:
    agent = scripted(call("echo", {"value": "x"}, usage=10), text("done", usage=5), tools=[echo])
    events = await captured(agent)
    assert events.kinds() == [
        "AgentExecutionStarted",
        "AgentStatusChanged",
        "AgentStepStarted",
        "ToolCallStarted",
        "ToolCallCompleted",
        "TokenUsageReported",
        "ContinuationEvaluated",
        "AgentStepCompleted",
        "AgentStepStarted",
        "StreamChunkReceived",
        "StreamChunkReceived",
        "TokenUsageReported",
        "ContinuationEvaluated",
        "AgentStepCompleted",
        "AgentStatusChanged",
        "AgentExecutionFinished",
    ]


async def test_every_event_names_its_session_and_its_time() -> None:
    clock = FakeClock()

    @tool
    async def work() -> str:
        clock.advance(2)
        return "ok"

    agent = scripted(call("work"), "done", tools=[work], clock=clock)
    start = clock.now()
    events = capture_events(agent)
    state = await agent.run("go")
    for event in events:
        assert event.agent_id == state.agent_id
        assert event.parent_agent_id is None
        assert event.execution_id == state.execution.id
        assert event.time.utcoffset() == timedelta(0)
    assert events[0].time == start
    assert events[-1].time == start + timedelta(seconds=2)
    assert [e.step_number for e in events.of(AgentStepCompleted)] == [1, 2]
    assert [e.step_number for e in events.of(ContinuationEvaluated)] == [1, 2]
    assert [e.step_number for e in events.of(ToolCallCompleted)] == [1]


async def test_the_start_of_an_execution_has_the_query() -> None:
    events = await captured(scripted("done"), "what now?")
    (started,) = events.of(AgentExecutionStarted)
    assert started.query == Message.user("what now?")
    assert not started.resumed


async def test_the_start_of_a_resumed_execution_says_so() -> None:
    stopped = await scripted(call("echo"), tools=[echo], max_steps=1).run("go")
    agent = scripted("done", tools=[echo])
    events = capture_events(agent)
    await agent.resume(stopped)
    (started,) = events.of(AgentExecutionStarted)
    assert started.resumed


async def test_a_resume_before_the_first_step_is_an_event() -> None:
    agent = scripted("done", "unused")
    unsubscribe = agent.subscribe(lambda event: agent.request_stop("wait") and None)
    stopped = await agent.run("go")
    unsubscribe()
    assert stopped.step_count == 0
    events = capture_events(agent)
    await agent.resume(stopped)
    (started,) = events.of(AgentExecutionStarted)
    assert started.resumed


async def test_the_start_of_a_step_has_the_size_of_the_history_and_the_tools() -> None:
    events = await captured(scripted(call("echo"), "done", tools=[echo, broken]))
    first, second = events.of(AgentStepStarted)
    assert (first.message_count, first.available_tools) == (1, ("echo", "broken"))
    assert second.message_count == 3


async def test_the_events_of_a_tool_call_have_its_arguments_and_its_result() -> None:
    clock = FakeClock()

    @tool
    async def search(query: str) -> list[str]:
        clock.advance(0.25)
        return [query]

    events = await captured(scripted(call("search", {"query": "x"}), "done", tools=[search], clock=clock))
    (started,) = events.of(ToolCallStarted)
    assert (started.tool, started.tool_call_id, started.args) == ("search", "call_1", {"query": "x"})
    (completed,) = events.of(ToolCallCompleted)
    assert (completed.tool, completed.tool_call_id) == ("search", "call_1")
    assert completed.success
    assert completed.error is None
    assert completed.result == '["x"]'
    assert completed.duration_ms == pytest.approx(250)


async def test_the_event_of_a_failed_tool_call_has_its_error() -> None:
    events = await captured(scripted(call("broken"), tools=[broken]))
    (completed,) = events.of(ToolCallCompleted)
    assert not completed.success
    assert completed.error is not None
    assert completed.error == "RuntimeError in broken"
    assert completed.raised == "RuntimeError: broken"
    assert "RuntimeError: broken" not in repr(completed)
    (step,) = events.of(AgentStepCompleted)
    assert step.error_count == 1


async def test_the_event_of_a_completed_step_has_its_numbers_and_its_outcome() -> None:
    agent = scripted(call("echo", usage=Usage(input=8, output=2)), "done", tools=[echo])
    events = capture_events(agent)
    state = await agent.run("go")
    first, second = events.of(AgentStepCompleted)
    assert first.has_tool_calls
    assert not second.has_tool_calls
    assert first.usage == Usage(input=8, output=2)
    assert (first.finish_reason, second.finish_reason) == ("tool_calls", "stop")
    assert first.error_count == 0
    assert first.duration_ms == 0
    assert [first.outcome, second.outcome] == [step.outcome for step in state.steps]
    assert [e.outcome for e in events.of(ContinuationEvaluated)] == [first.outcome, second.outcome]


async def test_token_usage_is_reported_for_the_step_and_the_execution() -> None:
    events = await captured(scripted(call("echo", usage=10), text("done", usage=5), tools=[echo]))
    reported = [(e.usage.total, e.execution_usage.total) for e in events.of(TokenUsageReported)]
    assert reported == [(10, 10), (5, 15)]


async def test_every_change_of_the_status_is_an_event() -> None:
    events = await captured(scripted("done"))
    changes = [(e.previous_status, e.status) for e in events.of(AgentStatusChanged)]
    assert changes == [
        (AgentStatus.PENDING, AgentStatus.IN_PROGRESS),
        (AgentStatus.IN_PROGRESS, AgentStatus.COMPLETED),
    ]


async def test_the_event_of_the_end_has_its_status_and_reason() -> None:
    events = await captured(scripted(call("echo"), tools=[echo], max_steps=1))
    (finished,) = events.of(AgentExecutionFinished)
    assert finished.status is AgentStatus.STOPPED
    assert finished.stop_reason is StopReason.STEPS_LIMIT_REACHED
    assert not events.of(AgentExecutionFailed)


async def test_a_failed_execution_has_a_failed_and_a_finished_event() -> None:
    events = await captured(scripted(call("broken"), tools=[broken]))
    assert events.kinds()[-2:] == ["AgentExecutionFailed", "AgentExecutionFinished"]
    (failed,) = events.of(AgentExecutionFailed)
    assert failed.stop_reason is StopReason.ERROR_FORBADE
    assert "broken" in failed.error


async def test_an_answer_streams_in_pieces_and_its_end_is_marked() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        yield TextDelta("Hel")
        yield TextDelta("lo")
        yield ModelResponse("Hello", (ToolCall("c1", "echo", {"value": "s3cret"}),))

    agent = Agent(RespondingModel(respond), [echo], max_steps=1)
    events = await captured(agent)
    chunks = [(e.chunk, e.chunk_index, e.is_complete) for e in events.of(StreamChunkReceived)]
    assert chunks == [("Hel", 0, False), ("lo", 1, False), ("", 2, True)]


async def test_a_model_that_yields_only_its_response_still_sends_the_text_once() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield ModelResponse("Hello")

    events = await captured(Agent(RespondingModel(respond)))
    chunks = [(e.chunk, e.chunk_index, e.is_complete) for e in events.of(StreamChunkReceived)]
    assert chunks == [("Hello", 0, False), ("", 1, True)]


async def test_arguments_that_a_model_repeats_as_text_are_in_no_chunk() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield ModelResponse('{"value": "s3cret"}', (ToolCall("c1", "echo", {"value": "s3cret"}),))

    events = await captured(Agent(RespondingModel(respond), [echo], max_steps=1))
    assert [e.chunk for e in events.of(StreamChunkReceived)] == []


async def test_reasoning_streams_in_separate_chunks_and_is_kept_with_the_message() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[ReasoningDelta | TextDelta | ModelResponse]:
        yield ReasoningDelta("They greet")
        yield ReasoningDelta(" me.")
        yield TextDelta("Hello")
        yield ModelResponse("Hello", reasoning="They greet me.")

    agent = Agent(RespondingModel(respond))
    events: list[AgentEvent] = []
    agent.subscribe(events.append)
    state = await agent.run("Hi")
    chunks = [(e.kind, e.chunk, e.chunk_index) for e in events if isinstance(e, StreamChunkReceived)]
    assert chunks == [
        ("reasoning", "They greet", 0),
        ("reasoning", " me.", 1),
        ("text", "Hello", 2),
        ("text", "", 3),
    ]
    assert state.messages[-1].reasoning == "They greet me."


async def test_a_retried_model_call_is_a_separate_step() -> None:
    agent = scripted(
        RateLimitError(), "done", error_policy=ErrorPolicy.retry_all(), backoff=Backoff(jitter=0)
    )
    events = await captured(agent)
    assert [e.error_count for e in events.of(AgentStepCompleted)] == [1, 0]
    assert not events.of(AgentExecutionFailed)


async def test_a_continuation_is_one_readable_line() -> None:
    agent = scripted(call("echo"), call("echo"), call("echo"), tools=[echo], max_steps=3)
    events = capture_events(agent)
    await agent.run("go", state=empty_session())
    lines = [str(event) for event in events.of(ContinuationEvaluated)]
    assert lines == [
        "Agent [1a2b3c4d] step 1: CONTINUE (requested by ToolCallPresenceCheck): "
        "The results of 1 tool call await the model",
        "Agent [1a2b3c4d] step 2: CONTINUE (requested by ToolCallPresenceCheck): "
        "The results of 1 tool call await the model",
        "Agent [1a2b3c4d] step 3: STOP (steps_limit) by StepsLimit: Limit reached: 3 of 3 steps used",
    ]


async def test_every_line_about_the_end_of_a_run_has_the_rule_and_its_reason() -> None:
    agent = scripted(call("echo"), tools=[echo], max_steps=1)
    events = capture_events(agent)
    await agent.run("go", state=empty_session())
    why = "(steps_limit) by StepsLimit: Limit reached: 1 of 1 steps used"
    finished, changed = events.of(AgentExecutionFinished)[-1], events.of(AgentStatusChanged)[-1]
    assert str(finished) == f"Agent [1a2b3c4d] step 1: execution stopped {why}"
    assert str(changed) == f"Agent [1a2b3c4d] step 1: in_progress → stopped {why}"
    for event in (finished, changed):
        assert (event.resolved_by, event.reason) == ("StepsLimit", "Limit reached: 1 of 1 steps used")


async def test_the_event_of_a_retry_has_its_attempt_and_its_wait() -> None:
    agent = scripted(
        RateLimitError(retry_after=7),
        call("broken"),
        "done",
        tools=[broken],
        error_policy=ErrorPolicy.retry_all(3),
    )
    events = await captured(agent)
    retries = [(e.attempt, e.max_retries, e.wait_seconds, e.error_type) for e in events.of(RetryScheduled)]
    assert retries == [(1, 3, 7.0, "rate_limit"), (2, 3, 0.0, "tool")]
    assert str(events.of(RetryScheduled)[0]).endswith("Rate limit error, retrying (1/3) in 7.0 s")


NUMBERED = (
    AgentStatusChanged,
    AgentStepCompleted,
    ToolCallStarted,
    ToolCallCompleted,
    ApprovalRequested,
    ApprovalDecided,
    RetryScheduled,
)


async def test_numbers_increase_by_one_and_other_events_carry_the_last_one() -> None:
    agent = scripted(
        RateLimitError(),
        call("broken"),
        "done",
        tools=[broken],
        error_policy=ErrorPolicy.retry_all(3),
    )
    events = capture_events(agent)
    state = await agent.run("go")
    last = 0
    for event in events:
        last += isinstance(event, NUMBERED)
        # The two that follow the end of a run belong to the status that tells of it.
        assert event.seq == last
    assert last == state.execution.last_seq


async def test_every_event_is_one_line_with_the_agent_and_the_step() -> None:
    agent = scripted(call("broken", usage=3), "done", tools=[broken], error_policy=ErrorPolicy.retry_all())
    events = capture_events(agent)
    await agent.run("go", state=empty_session())
    for event in events:
        assert str(event).startswith(f"Agent [1a2b3c4d] step {event.step_number}: ")
        assert "\n" not in str(event)


async def test_a_listener_that_raises_is_reported_and_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[AgentEvent] = []

    def bad(event: AgentEvent) -> None:
        raise RuntimeError("the dashboard is down")

    agent = scripted("done", event_handler=[bad, heard.append])
    with caplog.at_level(logging.ERROR, logger="whyloop"):
        state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert len(caplog.records) == len(heard) > 0
    assert "the dashboard is down" in caplog.text


async def test_a_listener_can_be_taken_away_again() -> None:
    agent = scripted("one", "two")
    heard: list[AgentEvent] = []
    unsubscribe = agent.subscribe(heard.append)
    await agent.run("go")
    before = len(heard)
    unsubscribe()
    unsubscribe()
    await agent.run("go")
    assert len(heard) == before > 0


@pytest.mark.parametrize("handler", [42, "print", object()])
def test_a_handler_that_is_not_a_function_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigurationError, match="event handler"):
        scripted(event_handler=[handler])
    with pytest.raises(ConfigurationError, match="event handler"):
        scripted().subscribe(handler)


def test_an_async_handler_is_refused() -> None:
    async def listen(event: AgentEvent) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="async"):
        scripted(event_handler=listen)
