"""Error policies at work: what stop, retry and ignore do in a run."""

from __future__ import annotations

import msgspec
import pytest

from tests.loop.processes import LIVE_ONLY
from tests.support import MemoryJournal, assert_readable, broken, flaky, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    Backoff,
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    ErrorPolicy,
    ErrorPolicyCriterion,
    tool,
)
from whyloop.errors import (
    ConfigurationError,
    ModelError,
    RateLimitError,
    RequestTimeoutError,
    ResponseValidationError,
    ToolExecutionError,
    ToolTimeoutError,
)
from whyloop.events import AgentEvent
from whyloop.loop.executions import recover_run, resume_run, start_run
from whyloop.replay import judge
from whyloop.testing import FakeClock, ScriptedModel, assert_continued, assert_stopped, call, calls
from whyloop.values.failure import FailureTally
from whyloop.wire.view import read_back

STEADY = Backoff(base=1, factor=2, cap=60, jitter=0)


def said_by_policy(state: AgentState, step: int) -> ContinuationEvaluation:
    outcome = state.execution_steps[step - 1].outcome
    assert outcome is not None
    said = outcome.evaluation_for(ErrorPolicyCriterion)
    assert said is not None
    return said


async def test_the_model_gets_the_error_of_a_tool_and_the_run_recovers() -> None:
    tools = [flaky(RuntimeError("busy"), "found")]
    agent = scripted(
        call("flaky"), call("flaky"), "done", tools=tools, error_policy=ErrorPolicy.retry_tool_errors()
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert_stopped(state, reason="completed")
    assert_continued(state, step=1, by="ToolCallPresenceCheck")
    assert requests_of(agent)[1].messages[-1].text == "Error: RuntimeError: busy"
    assert said_by_policy(state, 1).decision is ContinuationDecision.ALLOW_CONTINUATION
    assert [said_by_policy(state, n).reason for n in (1, 2, 3)] == [
        "Tool error, retrying (1/3)",
        "No errors present",
        "No errors present",
    ]
    assert "retrying" not in assert_readable(state).splitlines()[0]


@pytest.mark.parametrize("retries", [1, 2, 3])
async def test_n_retries_are_made_and_the_next_failure_stops(retries: int) -> None:
    agent = scripted(
        *(call("broken") for _ in range(retries + 1)),
        tools=[broken],
        error_policy=ErrorPolicy.retry_tool_errors(retries),
    )
    state = await agent.run("go")
    assert_stopped(state, reason="retry_limit", by=ErrorPolicyCriterion)
    assert state.status is AgentStatus.FAILED
    assert state.step_count == retries + 1
    reasons = [said_by_policy(state, n).reason for n in range(1, retries + 2)]
    assert reasons[:-1] == [f"Tool error, retrying ({n}/{retries})" for n in range(1, retries + 1)]
    assert reasons[-1] == f"Tool error after {retries + 1} consecutive failures (max: {retries})"
    assert_readable(state)


async def test_a_success_in_between_starts_the_count_again() -> None:
    tools = [flaky(RuntimeError("a"), "ok", RuntimeError("b"), "ok")]
    agent = scripted(
        *(call("flaky") for _ in range(4)), "done", tools=tools, error_policy=ErrorPolicy.retry_tool_errors(1)
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert said_by_policy(state, 3).reason == "Tool error, retrying (1/1)"
    assert said_by_policy(state, 3).context["total_failures"] == 2


async def test_one_failed_call_of_two_counts_once() -> None:
    agent = scripted(
        calls(call("broken"), call("broken")),
        "done",
        tools=[broken],
        error_policy=ErrorPolicy.retry_tool_errors(1),
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert said_by_policy(state, 1).context["consecutive_failures"] == 1


async def test_ignored_failures_do_not_count_towards_later_retries() -> None:
    agent = scripted(
        *(call("broken") for _ in range(5)),
        RateLimitError(),
        "done",
        tools=[broken],
        error_policy=ErrorPolicy.ignore_tool_errors(),
        backoff=STEADY,
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert said_by_policy(state, 5).reason == "Tool error ignored by policy"
    assert said_by_policy(state, 6).reason == "Rate limit error, retrying (1/3)"


async def test_an_ignored_failure_of_the_model_call_is_not_taken_for_an_answer() -> None:
    state = await scripted(RuntimeError("odd"), error_policy=ErrorPolicy.ignore_tool_errors()).run("go")
    assert said_by_policy(state, 1).reason == "Unknown error ignored by policy"
    assert state.status is not AgentStatus.COMPLETED
    assert state.last_response == ""
    assert_readable(state)


@pytest.mark.parametrize(
    "error",
    [RateLimitError(), RequestTimeoutError(), ResponseValidationError(), ModelError(), RuntimeError("?")],
)
async def test_a_failed_model_call_is_made_again_with_the_same_request(error: Exception) -> None:
    clock = FakeClock()
    agent = scripted(error, error, "done", error_policy=ErrorPolicy.retry_all(), backoff=STEADY, clock=clock)
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    first, second, third = requests_of(agent)
    assert list(first.messages) == list(second.messages) == list(third.messages)
    assert [m.role.value for m in state.messages] == ["user", "assistant"]
    assert_continued(state, step=1, by=ErrorPolicyCriterion)
    assert said_by_policy(state, 1).decision is ContinuationDecision.REQUEST_CONTINUATION
    assert clock.sleeps == [1, 2]
    assert_readable(state)


async def test_the_waits_grow_and_a_success_makes_them_short_again() -> None:
    clock = FakeClock()
    busy = RateLimitError()
    agent = scripted(
        busy,
        busy,
        busy,
        call("ok"),
        busy,
        "done",
        tools=[flaky("fine", name="ok")],
        error_policy=ErrorPolicy.retry_all(),
        backoff=STEADY,
        clock=clock,
    )
    state = await agent.run("go")
    assert clock.sleeps == [1, 2, 4, 1]
    assert state.execution.backoff_seconds == 8


async def test_jitter_keeps_the_waits_between_its_bounds() -> None:
    clock = FakeClock()
    agent = scripted(
        *([RateLimitError()] * 5),
        "done",
        error_policy=ErrorPolicy.retry_all(),
        backoff=Backoff(base=1, factor=2, cap=60, jitter=0.5),
        clock=clock,
    )
    await agent.run("go")
    assert len(clock.sleeps) == 5
    for slept, full in zip(clock.sleeps, (1, 2, 4, 8, 16), strict=True):
        assert full / 2 <= slept <= full


@pytest.mark.parametrize(("wish", "slept"), [(7.5, 7.5), (0.0, 0.0), (3600, 60), (None, 1)])
async def test_retry_after_is_honoured_up_to_the_cap(wish: float | None, slept: float) -> None:
    clock = FakeClock()
    agent = scripted(
        RateLimitError(retry_after=wish),
        "done",
        error_policy=ErrorPolicy.retry_all(),
        backoff=STEADY,
        clock=clock,
    )
    state = await agent.run("go")
    assert clock.sleeps == ([slept] if slept else [])
    assert state.execution.backoff_seconds == slept


async def test_a_retry_after_a_failed_tool_does_not_wait() -> None:
    clock = FakeClock()
    agent = scripted(
        call("broken"), "done", tools=[broken], error_policy=ErrorPolicy.retry_all(), clock=clock
    )
    await agent.run("go")
    assert clock.sleeps == []


async def test_the_time_of_backing_off_is_in_no_active_clock() -> None:
    clock = FakeClock()
    agent = scripted(
        RateLimitError(retry_after=30),
        "done",
        error_policy=ErrorPolicy.retry_all(),
        cumulative_timeout=5,
        clock=clock,
    )
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    assert state.execution.active_seconds == 0
    assert state.execution.backoff_seconds == 30
    assert state.execution.wall_seconds == 30
    assert state.state_info.cumulative_execution_seconds == 0


async def test_model_retries_run_out_with_retry_limit() -> None:
    agent = scripted(
        *([RateLimitError("slow down")] * 3), error_policy=ErrorPolicy.retry_all(2), backoff=STEADY
    )
    state = await agent.run("go")
    assert_stopped(state, reason="retry_limit", by=ErrorPolicyCriterion)
    assert said_by_policy(state, 3).reason == "Rate limit error after 3 consecutive failures (max: 2)"


async def test_retries_are_steps_so_the_steps_limit_ends_them_too() -> None:
    agent = scripted(
        *([RateLimitError()] * 2), error_policy=ErrorPolicy.retry_all(9), backoff=STEADY, max_steps=2
    )
    assert_stopped(await agent.run("go"), reason="steps_limit", by="StepsLimit")


async def test_a_run_that_stopped_on_an_error_can_be_resumed_under_another_policy() -> None:
    strict = scripted(call("broken", {"value": "x"}), tools=[broken])
    failed = await strict.run("go")
    assert_stopped(failed, reason="error", by=ErrorPolicyCriterion)
    assert failed.status is AgentStatus.FAILED
    assert [m.role.value for m in failed.messages] == ["user", "assistant", "tool"]
    restored = AgentState.from_dict(failed.to_dict())
    lenient = scripted("I worked around it", tools=[broken], error_policy=ErrorPolicy.ignore_tool_errors())
    done = await lenient.resume(restored)
    assert done.status is AgentStatus.COMPLETED
    assert requests_of(lenient)[0].messages[-1].text == "Error: RuntimeError: broken x"
    assert done.execution.id == failed.execution.id


async def test_a_failed_model_call_can_be_resumed_without_waiting() -> None:
    failed = await scripted(ModelError("down")).run("go")
    clock = FakeClock()
    agent = scripted("done", error_policy=ErrorPolicy.retry_all(), clock=clock)
    done = await agent.resume(failed)
    assert done.status is AgentStatus.COMPLETED
    assert clock.sleeps == []
    assert [m.role.value for m in requests_of(agent)[0].messages] == ["user"]


async def test_a_new_query_after_a_failed_one_starts_with_no_failures() -> None:
    failed = await scripted(ModelError("down")).run("go")
    agent = scripted(RateLimitError(), "done", error_policy=ErrorPolicy.retry_all(1), backoff=STEADY)
    done = await agent.run("third", state=failed)
    assert done.status is AgentStatus.COMPLETED
    assert said_by_policy(done, 1).context["total_failures"] == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 501])
async def test_a_request_that_cannot_succeed_is_made_once(status: int) -> None:
    denied = ModelError(f"HTTP {status}: no", status=status)
    agent = scripted(denied, error_policy=ErrorPolicy.retry_all())
    state = await agent.run("go")
    assert len(requests_of(agent)) == 1
    assert_stopped(state, reason="error", by=ErrorPolicyCriterion)
    assert said_by_policy(state, 1).reason == f"Model error, not retried: HTTP {status}: no"


async def test_a_refusal_and_an_exhausted_quota_are_not_retried() -> None:
    for error in (
        ModelError("the model refused: no", retryable=False),
        RateLimitError("You exceeded your current quota, please check your plan"),
        ConfigurationError("the chat completions API takes no files by URL"),
    ):
        agent = scripted(error, error_policy=ErrorPolicy.retry_all())
        state = await agent.run("go")
        assert len(requests_of(agent)) == 1
        assert "not retried" in said_by_policy(state, 1).reason


@pytest.mark.parametrize("error", [ToolExecutionError, ToolTimeoutError])
async def test_a_tool_can_say_that_another_attempt_is_useless(error: type[ToolExecutionError]) -> None:
    for retryable in (True, False):
        tools = [flaky(error("the account is closed", retryable=retryable))]
        agent = scripted(call("flaky"), "done", tools=tools, error_policy=ErrorPolicy.retry_all())
        state = await agent.run("go")
        assert len(requests_of(agent)) == (2 if retryable else 1)
        assert said_by_policy(state, 1).reason.endswith(
            "retrying (1/5)" if retryable else "not retried: the account is closed"
        )


async def test_a_failure_that_is_not_retryable_can_be_ignored() -> None:
    tools = [flaky(ToolExecutionError("the account is closed", retryable=False))]
    policy = ErrorPolicy.ignore_tool_errors()
    state = await scripted(call("flaky"), "done", tools=tools, error_policy=policy).run("go")
    assert state.status is AgentStatus.COMPLETED


async def test_the_first_line_keeps_the_message_of_the_provider_when_retries_run_out() -> None:
    busy = RateLimitError("HTTP 429: your plan allows 3 requests a minute")
    state = await scripted(busy, busy, error_policy=ErrorPolicy.retry_all(1)).run("go")
    first = state.explain().splitlines()[0]
    assert "after 2 consecutive failures (max: 1): HTTP 429: your plan allows 3 requests a minute" in first


class WholeSeconds(FakeClock):
    """A clock whose stopwatch counts in whole numbers."""

    def monotonic(self) -> int:
        return int(super().monotonic())


async def test_numbers_are_the_same_in_the_run_and_in_its_journal() -> None:
    journal, sent, clock = MemoryJournal(), list[AgentEvent](), WholeSeconds()

    @tool
    def work() -> str:
        clock.advance(2)
        return "done"

    failures = [RateLimitError("busy", retry_after=5), ModelError("down")]
    agent = Agent(
        ScriptedModel([*failures, call("work"), call("work"), "done"]),
        [work],
        clock=clock,
        max_steps=2,
        timeout=300,
        error_policy=ErrorPolicy.retry_all(3),
        backoff=Backoff(base=2, factor=2, cap=60, jitter=0),
        event_handler=sent.append,
    )
    start = journal.create(agent)
    before = len(journal.entries)
    state = await start_run(agent, "go", start, journal=journal).finish()
    assert state.stop_reason == "steps_limit"
    state = await resume_run(agent, state, grant=Budget(steps=5, seconds=5), journal=journal).finish()
    assert msgspec.json.encode(state.to_dict()) == msgspec.json.encode(journal.state.to_dict())
    recorded = read_back(start, journal.transitions[before:])
    live = [event for event in sent if not isinstance(event, LIVE_ONLY)]
    assert msgspec.json.encode(live) == msgspec.json.encode(list(recorded))


async def test_a_resume_counts_consecutive_failures_anew() -> None:
    policy = ErrorPolicy.retry_all(max_retries=1)
    journal, clock = MemoryJournal(), FakeClock()
    broken_four_times = [ModelError("dead")] * 4
    agent = scripted(*broken_four_times, error_policy=policy, backoff=STEADY, clock=clock)
    run = start_run(agent, "go", journal.create(agent), journal=journal)
    state = await run.finish()
    assert_stopped(state, reason="retry_limit")
    state = await resume_run(agent, state, journal=journal).finish()
    assert [said_by_policy(state, step).reason for step in (3, 4)] == [
        "Model error, retrying (1/1)",
        "Model error after 2 consecutive failures (max: 1)",
    ]
    assert state.execution.failures == FailureTally(2, 4)
    assert clock.sleeps == [1, 1]  # The backoff begins anew too.
    assert journal.state == state
    assert_readable(state)
    assert judge(state, policy).stop_reason == judge(journal.state, policy).stop_reason == "retry_limit"


async def test_a_recovery_counts_consecutive_failures_on() -> None:
    policy = ErrorPolicy.retry_all(max_retries=1)
    journal, clock = MemoryJournal(), FakeClock()
    agent = scripted(ModelError("dead"), ModelError("dead"), error_policy=policy, clock=clock)
    run = start_run(agent, "go", journal.create(agent), journal=journal)
    await run.begin()
    await run.next_step()
    await run.end()
    state = await recover_run(agent, journal.state, journal).finish()
    assert_stopped(state, reason="retry_limit")
