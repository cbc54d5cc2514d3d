"""A run is completed only if there is an answer: paused turns, calls written as text, unsupported output."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import RespondingModel, assert_readable, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    ErrorPolicy,
    ErrorPolicyCriterion,
    ErrorType,
    FinishReason,
    ModelRequest,
    ModelResponse,
    TextDelta,
    ToolCall,
    Usage,
)
from whyloop.errors import ModelError
from whyloop.events import AgentStatusChanged, StreamChunkReceived
from whyloop.testing import FakeClock, assert_continued, assert_stopped, call, capture_events, text
from whyloop.values.model import Delta, ReasoningDelta
from whyloop.wire.ui import canonical_messages

WRITTEN = [
    '```json\n{"name": "echo", "arguments": {"value": "x"}}\n```',
    '<tool_call>{"name": "echo", "arguments": {"value": "x"}}</tool_call>',
    '{"name": "echo", "arguments": {"value": "x"}}',
    'One moment.\n```json\n{"name": "echo", "arguments": {"value": "x"}}\n```',
]


def answering(*responses: ModelResponse, **options: object) -> tuple[Agent, list[ModelRequest]]:
    """An agent whose model gives these responses, and the requests that it gets."""
    left, requests = iter(responses), list[ModelRequest]()

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        requests.append(request)
        yield next(left)

    return Agent(RespondingModel(respond), [echo], clock=FakeClock(), **options), requests  # type: ignore[arg-type]


def reason_of(state: AgentState) -> str:
    outcome = state.last_continuation_outcome
    assert outcome is not None
    said = outcome.evaluation_for(ErrorPolicyCriterion)
    assert said is not None
    return said.reason


# A turn that the provider paused


@pytest.mark.parametrize("said", ["", "I am searching."])
async def test_a_turn_that_the_provider_paused_continues(said: str) -> None:
    paused = ModelResponse(said, finish_reason=FinishReason.PAUSE_TURN, extras={"anthropic": {"blocks": []}})
    agent, requests = answering(paused, ModelResponse("Found it."))
    state = await agent.run("go")
    assert (state.status, state.last_response) == (AgentStatus.COMPLETED, "Found it.")
    assert_continued(state, step=1, by="ToolCallPresenceCheck")
    assert "paused its turn" in str(state.steps[0].outcome)
    # The turn goes back as it was, and nothing is said in between.
    assert [message.role.value for message in requests[1].messages] == ["user", "assistant"]
    assert requests[1].messages[1].extras == paused.extras
    assert_readable(state)


async def test_a_provider_that_always_pauses_meets_the_steps_limit() -> None:
    paused = ModelResponse("", finish_reason=FinishReason.PAUSE_TURN)
    agent, _ = answering(*[paused] * 3, max_steps=3)
    assert_stopped(await agent.run("go"), reason="steps_limit")


# A call that the model wrote as text


@pytest.mark.parametrize("written", WRITTEN)
async def test_a_call_that_is_written_as_text_is_a_validation_failure(written: str) -> None:
    state = await scripted(written, tools=[echo]).run("go")
    assert state.status is AgentStatus.FAILED
    assert_stopped(state, reason="error", by=ErrorPolicyCriterion)
    (failure,) = state.steps[0].failures
    assert (failure.type, failure.readable) == (ErrorType.VALIDATION, True)
    first = state.explain().splitlines()[0]
    assert "a call of echo written as text" in first
    assert "arguments" not in first
    assert "the answer was wrong" in state.explanation.steps[0].summary
    assert_readable(state)


@pytest.mark.parametrize("written", WRITTEN)
async def test_the_model_is_asked_to_make_the_call_and_corrects_itself(written: str) -> None:
    clock = FakeClock()
    agent = scripted(
        written,
        call("echo", {"value": "x"}),
        "x it is.",
        tools=[echo],
        error_policy=ErrorPolicy.retry_tool_errors(),
        clock=clock,
    )
    state = await agent.run("go")
    assert (state.status, state.last_response) == (AgentStatus.COMPLETED, "x it is.")
    assert_continued(state, step=1, by="ErrorPolicyCriterion")
    wrong, feedback = requests_of(agent)[1].messages[-2:]
    assert (wrong.role, wrong.model_text) == ("assistant", written)
    assert (feedback.role, feedback.source) == ("developer", ("ErrorPolicyCriterion",))
    assert "call of echo written as text" in feedback.text
    assert "call the tool itself" in feedback.text
    assert clock.sleeps == []


async def test_a_wrong_answer_that_is_ignored_ends_the_run_as_an_error() -> None:
    agent = scripted(WRITTEN[0], tools=[echo], error_policy=ErrorPolicy.ignore_tool_errors())
    state = await agent.run("go")
    assert_stopped(state, reason="error", by=ErrorPolicyCriterion)


async def test_a_model_that_never_makes_the_call_runs_out_of_retries() -> None:
    agent = scripted(*[WRITTEN[0]] * 2, tools=[echo], error_policy=ErrorPolicy.retry_all(1))
    state = await agent.run("go")
    assert_stopped(state, reason="retry_limit", by=ErrorPolicyCriterion)


async def test_an_answer_that_mentions_a_call_is_an_answer() -> None:
    mention = 'With {"name": "echo", "arguments": {}} you hear it again.'
    assert (await scripted(mention, tools=[echo]).run("go")).status is AgentStatus.COMPLETED
    # Without tools nothing can be called.
    assert (await scripted(WRITTEN[0]).run("go")).status is AgentStatus.COMPLETED


async def test_a_truncated_answer_ends_the_run_by_its_finish_reason() -> None:
    state = await scripted(text(WRITTEN[0], finish_reason="length"), tools=[echo]).run("go")
    assert_stopped(state, reason="finish_reason")


async def test_an_answer_of_blanks_is_empty() -> None:
    state = await scripted(" \n ", tools=[echo]).run("go")
    assert_stopped(state, reason="error", by=ErrorPolicyCriterion)
    assert "the model's reply was empty" in reason_of(state)


@pytest.mark.parametrize("written", WRITTEN)
async def test_people_are_never_shown_a_call_that_is_written_as_text(written: str) -> None:
    agent, _ = answering(ModelResponse(written))
    events = capture_events(agent)
    state = await agent.run("go")
    before = "One moment." if written.startswith("One moment.") else ""
    assert "".join(event.chunk for event in events if isinstance(event, StreamChunkReceived)) == before
    assert [event.last_response for event in events if isinstance(event, AgentStatusChanged)][-1] is None
    assert not [message for message in canonical_messages(state) if '"echo"' in message["content"]]
    answer = state.messages[-1]
    assert (state.last_response, answer.text, answer.model_text) == ("", before, written)


# What arrives and is not supported


@pytest.mark.parametrize("said", ["", "Here it is."])
async def test_unsupported_output_is_reported_and_not_retried(said: str) -> None:
    made = ModelResponse(
        said,
        (ToolCall("c1", "echo", {"value": "x"}),),
        usage=Usage(5, 7),
        unsupported=("an image (image/png)", "a custom_tool_call (run_sql)"),
    )
    agent, requests = answering(made, error_policy=ErrorPolicy.retry_all())
    state = await agent.run("go")
    assert len(requests) == 1
    assert_stopped(state, reason="error", by=ErrorPolicyCriterion)
    assert reason_of(state) == (
        "Validation error, not retried: the model answered with an image (image/png), a custom_tool_call "
        "(run_sql), which whyloop does not support"
    )
    # Nothing of it runs, nothing of it is in the history, and it is paid for.
    assert [message.role.value for message in state.messages] == ["user"]
    assert state.usage.total == 12
    assert_readable(state)


# Reasoning


async def test_reasoning_that_streams_is_kept_apart_from_the_text() -> None:
    agent = scripted(text("Hello.", reasoning="They greet me."))
    events = capture_events(agent)
    state = await agent.run("Hi")
    chunks = [event.chunk for event in events if isinstance(event, StreamChunkReceived) and event.chunk]
    assert (state.last_response, state.messages[-1].reasoning) == ("Hello.", "They greet me.")
    assert "Hello." in chunks


async def test_a_driver_without_deltas_still_produces_a_chunk_of_each_kind() -> None:
    agent, _ = answering(ModelResponse("Hello.", reasoning="They greet me."))
    events = capture_events(agent)
    await agent.run("Hi")
    chunks = [(event.kind, event.chunk) for event in events if isinstance(event, StreamChunkReceived)]
    assert chunks == [("reasoning", "They greet me."), ("text", "Hello."), ("text", "")]


async def test_the_usage_of_a_call_that_failed_while_it_reasoned_is_unknown() -> None:
    async def respond(request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        yield ReasoningDelta("They greet")
        raise ModelError("the connection broke")

    state = await Agent(RespondingModel(respond), clock=FakeClock()).run("Hi")
    assert state.steps[0].usage.reported is False
