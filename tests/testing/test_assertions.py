"""Assertions on decisions, whose messages show the trace, and the capture of events."""

from __future__ import annotations

import pytest

from tests.support import echo, scripted, session
from whyloop import AgentState, ErrorPolicy, StepsLimit, StopReason, ToolCallPresenceCheck
from whyloop.events import AgentEvent, AgentStepCompleted, AgentStepStarted
from whyloop.replay import judge
from whyloop.testing import assert_continued, assert_stopped, assert_would_stop, call, capture_events


@pytest.fixture
async def stopped() -> AgentState:
    """Three steps, then the limit."""
    return await scripted(*[call("echo")] * 3, tools=[echo], max_steps=3).run("go")


def assert_shows_trace(error: pytest.ExceptionInfo[AssertionError], state: AgentState, words: str) -> None:
    assert words in str(error.value)
    assert state.explain() in str(error.value)


def test_assert_stopped_takes_the_reason_and_the_rule(stopped: AgentState) -> None:
    assert_stopped(stopped)
    assert_stopped(stopped, reason="steps_limit")
    assert_stopped(stopped, reason=StopReason.STEPS_LIMIT_REACHED, by="StepsLimit")
    assert_stopped(stopped, by=StepsLimit)


def test_assert_stopped_fails_on_another_reason_and_shows_the_trace(stopped: AgentState) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_stopped(stopped, reason="completed")
    assert_shows_trace(caught, stopped, "steps_limit")
    assert "completed" in str(caught.value)


def test_assert_stopped_fails_on_another_criterion_and_shows_the_trace(stopped: AgentState) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_stopped(stopped, by=ToolCallPresenceCheck)
    assert_shows_trace(caught, stopped, "StepsLimit decided, not ToolCallPresenceCheck")


async def test_assert_stopped_fails_while_the_run_continues() -> None:
    agent = scripted(call("echo"), "done", tools=[echo])
    going_on = await agent.next_step(agent.start("go"))
    for state in (session(), going_on):
        with pytest.raises(AssertionError) as caught:
            assert_stopped(state)
        assert_shows_trace(caught, state, "has not stopped")


def test_assert_continued_takes_the_step_and_the_rule(stopped: AgentState) -> None:
    assert_continued(stopped)
    assert_continued(stopped, step=1)
    assert_continued(stopped, step=2, by="ToolCallPresenceCheck")
    assert_continued(stopped, by=ToolCallPresenceCheck)


def test_assert_continued_fails_on_the_step_that_ended_the_run(stopped: AgentState) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_continued(stopped, step=3)
    assert_shows_trace(caught, stopped, "did not continue after step 3")


def test_assert_continued_fails_on_another_criterion(stopped: AgentState) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_continued(stopped, step=1, by=StepsLimit)
    assert_shows_trace(caught, stopped, "ToolCallPresenceCheck decided, not StepsLimit")


@pytest.mark.parametrize("step", [0, 4, -1])
def test_assert_continued_fails_on_a_step_that_is_not_there(stopped: AgentState, step: int) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_continued(stopped, step=step)
    assert_shows_trace(caught, stopped, f"no step {step}")


async def test_assert_continued_fails_on_a_run_of_one_step() -> None:
    state = await scripted("done").run("go")
    with pytest.raises(AssertionError) as caught:
        assert_continued(state)
    assert_shows_trace(caught, state, "no step")


async def test_captured_events_can_be_asked_by_kind() -> None:
    agent = scripted(call("echo"), "done", tools=[echo])
    events = capture_events(agent)
    await agent.run("go")
    assert isinstance(events, list)
    assert all(isinstance(event, AgentEvent) for event in events)
    assert [e.step_number for e in events.of(AgentStepStarted)] == [1, 2]
    assert events.kinds()[0] == "AgentExecutionStarted"
    assert events.kinds()[-1] == "AgentExecutionFinished"
    assert len(events.kinds()) == len(events)


async def test_captured_events_end_when_they_are_stopped() -> None:
    agent = scripted("one", "two", "three")
    with capture_events(agent) as events:
        await agent.run("go")
    count = len(events)
    await agent.run("go")
    assert len(events) == count > 0
    again = capture_events(agent)
    again.stop()
    again.stop()
    await agent.run("go")
    assert again == []


async def test_two_captures_hear_the_same() -> None:
    agent = scripted("done")
    first, second = capture_events(agent), capture_events(agent)
    await agent.run("go")
    assert list(first) == list(second)
    assert len(first.of(AgentStepCompleted)) == 1


def test_assert_would_stop_judges_a_run_under_other_rules() -> None:
    state = scripted(
        call("missing", {}), call("missing", {}), "done", error_policy=ErrorPolicy.retry_all()
    ).run_sync("go")
    assert state.stop_reason == "completed"
    replay = assert_would_stop(state, under=StepsLimit(2), at=2, by=StepsLimit, reason="steps_limit")
    assert replay.saved.steps == 1
    assert_would_stop(state.to_dict(), under=[ErrorPolicy(), StepsLimit(2)], at=1, by="ErrorPolicyCriterion")
    with pytest.raises(AssertionError, match=r"would have been stopped at step 2 .* by StepsLimit, not 1"):
        assert_would_stop(state, under=StepsLimit(2), at=1)
    with pytest.raises(AssertionError, match="not TokenUsageLimit"):
        assert_would_stop(state, under=StepsLimit(2), by="TokenUsageLimit")
    with pytest.raises(AssertionError, match="not token_limit"):
        assert_would_stop(state, under=StepsLimit(2), reason="token_limit")
    stopped = judge(state, StepsLimit(2)).state
    with pytest.raises(AssertionError, match="would have continued past the recording"):
        assert_would_stop(stopped, under=StepsLimit(9))
