"""An answer on the last step that is allowed completes the run; a truncated or interrupted one does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import RespondingModel, assert_readable, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentStatus,
    Budget,
    ErrorPolicy,
    FinishReasonCheck,
    ModelRequest,
    ModelResponse,
    StepsLimit,
    TextDelta,
    ToolCallPresenceCheck,
    tool,
)
from whyloop.events import ToolCallCompleted, ToolCallStarted
from whyloop.testing import FakeClock, assert_continued, assert_stopped, call, calls, capture_events, text
from whyloop.values.step import Interruption


@pytest.mark.parametrize("limit", [{"max_steps": 2}, {"max_tokens": 20}])
async def test_an_answer_on_the_last_allowed_step_completes_the_run(limit: dict[str, Any]) -> None:
    agent = scripted(call("echo", usage=10), text("done", usage=10), tools=[echo], **limit)
    state = await agent.run("go")
    assert_stopped(state, reason="completed", by=ToolCallPresenceCheck)
    assert state.status is AgentStatus.COMPLETED
    outcome = state.last_continuation_outcome
    assert outcome is not None
    assert [e.criterion for e in outcome.evaluations if e.exhausted]  # The trace says so all the same.
    assert_readable(state)


@pytest.mark.parametrize("limit", [{"timeout": 2}, {"cumulative_timeout": 2}])
async def test_an_answer_that_took_all_the_time_completes_the_run(limit: dict[str, Any]) -> None:
    clock = FakeClock()

    async def think(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        clock.advance(3)
        yield ModelResponse("done")

    state = await Agent(RespondingModel(think), clock=clock, **limit).run("go")
    assert_stopped(state, reason="completed", by=ToolCallPresenceCheck)


@pytest.mark.parametrize("limit", [{"max_steps": 1}, {"max_tokens": 10}])
async def test_work_that_is_pending_is_ended_by_the_limit(limit: dict[str, Any]) -> None:
    state = await scripted(call("echo", usage=10), tools=[echo], **limit).run("go")
    assert state.stop_reason in ("steps_limit", "token_limit")


async def test_a_guard_beside_an_exhausted_limit_ends_the_run() -> None:
    state = await scripted("done", max_steps=1, criteria=[lambda state: False]).run("go")
    assert_stopped(state, reason="steps_limit", by=StepsLimit)


async def test_the_last_allowed_step_completes_even_after_a_grant() -> None:
    agent = scripted(call("echo"), "done", tools=[echo], max_steps=1)
    state = await agent.resume(await agent.run("go"), grant=Budget(steps=1))
    assert_stopped(state, reason="completed")


# Truncated answers


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_the_calls_of_a_truncated_answer_are_not_run(reason: str) -> None:
    ran: list[str] = []

    @tool
    async def delete(name: str) -> str:
        ran.append(name)
        return "deleted"

    wanted = calls(
        call("delete", {"name": "a"}), call("delete", '{"name": "b'), text="I delete", finish_reason=reason
    )
    agent = scripted(wanted, tools=[delete])
    events = capture_events(agent)
    state = await agent.run("go")
    assert_stopped(state, reason="finish_reason", by=FinishReasonCheck)
    assert ran == []
    step = state.steps[0]
    assert (step.failures, step.interrupted) == ((), Interruption.TRUNCATED)
    expected = f"Not run: the answer was truncated ({reason})"
    assert [message.text for message in state.messages[2:]] == [expected] * 2
    assert state.messages[1].tool_calls[1].arguments == '{"name": "b'
    assert not events.of(ToolCallStarted)
    assert [event.success for event in events.of(ToolCallCompleted)] == [False, False]
    assert "truncated" in assert_readable(state).splitlines()[0]


async def test_a_truncated_answer_that_may_continue_tells_the_model_that_its_calls_were_not_run() -> None:
    agent = scripted(
        call("echo", {"value": "x"}, finish_reason="length"),
        call("echo", {"value": "x"}),
        "done",
        tools=[echo],
        finish_reasons=(),
    )
    state = await agent.run("go")
    assert_continued(state, step=1, by=ToolCallPresenceCheck)
    result = requests_of(agent)[1].messages[-1]
    assert result.text == "Not run: the answer was truncated (length)"
    assert state.messages[4].text == "x"
    assert_stopped(state, reason="completed")


async def test_an_outcome_names_a_truncated_answer_even_if_the_run_continues() -> None:
    state = await scripted(text("half", finish_reason="length"), finish_reasons=()).run("go")
    assert_stopped(state, reason="completed", by=ToolCallPresenceCheck)
    outcome = state.last_continuation_outcome
    assert outcome is not None
    assert "the answer was truncated" in outcome.reason


async def test_a_truncated_call_is_not_a_failure() -> None:
    state = await scripted(
        call("echo", "{broken", finish_reason="length"),
        tools=[echo],
        error_policy=ErrorPolicy.retry_all(),
    ).run("go")
    assert state.execution.failures.total == 0
    assert_stopped(state, reason="finish_reason")
