"""Another runner continues an execution whose runner died: no resume, and a person after too many crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import MemoryJournal, echo, scripted
from whyloop import Agent, AgentState, AgentStatus, ErrorPolicy, ExecutionTimeLimit, Verdict, tool
from whyloop.errors import ApprovalError, ConfigurationError, RateLimitError
from whyloop.events import AgentExecutionStarted, AgentStatusChanged, ApprovalRequested
from whyloop.loop.executions import recover_run, resume_run, start_run
from whyloop.loop.run import MAX_RECOVERIES
from whyloop.testing import FakeClock, assert_stopped, call, capture_events
from whyloop.values.step_transitions import AnyTransition
from whyloop.values.transitions import Begun, Waited


class DeadError(Exception):
    """The runner died."""


class FragileJournal(MemoryJournal):
    """A journal whose runner dies after so many appends."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self.lives = lives

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        self.write(transitions, before)
        self.lives -= 1
        if not self.lives:
            raise DeadError
        return None


async def died(agent: Agent, lives: int) -> FragileJournal:
    """The journal of a run that died after so many appends."""
    journal = FragileJournal(lives)
    with pytest.raises(DeadError):
        await start_run(agent, "go", journal.create(agent), journal=journal).finish()
    return journal


async def test_a_recovery_continues_the_leg_and_its_clock() -> None:
    clock = FakeClock()
    journal = await died(scripted(call("echo"), tools=[echo], clock=clock), 3)
    before = journal.state
    assert before.status is AgentStatus.IN_PROGRESS
    clock.advance(200)
    agent = scripted("done", tools=[echo], clock=clock)
    events = capture_events(agent)
    state = await recover_run(agent, before, journal).finish()
    assert_stopped(state, reason="completed")
    execution = state.execution
    assert (execution.resumes, execution.waiting_seconds) == (0, 0)
    assert execution.leg_started_at == before.execution.leg_started_at
    assert ExecutionTimeLimit(300).used(state) == 200
    assert journal.state == state
    # It was in progress all the time: the run does not begin again.
    assert not events.of(AgentExecutionStarted)
    assert [event.status for event in events.of(AgentStatusChanged)] == [AgentStatus.COMPLETED]
    assert sum(isinstance(t, Begun) for t in journal.transitions) == 1


async def test_a_limit_that_passed_before_a_recovery_ends_the_run_without_a_model_call() -> None:
    clock = FakeClock()
    journal = await died(scripted(call("echo"), tools=[echo], clock=clock, timeout=60), 3)
    clock.advance(61)
    agent = scripted(tools=[echo], clock=clock, timeout=60)
    state = await recover_run(agent, journal.state, journal).finish()
    assert_stopped(state, reason="time_limit")
    assert state.step_count == 1


async def test_a_new_runner_waits_only_for_the_rest_of_a_planned_wait() -> None:
    clock = FakeClock()
    policy = ErrorPolicy.retry_all()
    journal = await died(scripted(RateLimitError(retry_after=30), clock=clock, error_policy=policy), 2)
    clock.advance(20)
    agent = scripted("done", clock=clock, error_policy=policy)
    state = await recover_run(agent, journal.state, journal).finish()
    assert_stopped(state, reason="completed")
    assert clock.sleeps == [10]
    assert [t.seconds for t in journal.transitions if isinstance(t, Waited)] == [10]


async def crashed_too_often() -> tuple[FragileJournal, AgentState]:
    """A run that was recovered three times without finishing a step, and asks a person now."""
    journal = await died(scripted(tools=[echo]), 1)
    for _ in range(MAX_RECOVERIES):
        agent, journal.lives = scripted(tools=[echo]), 1
        with pytest.raises(DeadError):
            await recover_run(agent, journal.state, journal).finish()
    assert journal.state.execution.recoveries == MAX_RECOVERIES
    agent = scripted(tools=[echo])
    events = capture_events(agent)
    state = await recover_run(agent, journal.state, journal).finish()
    (asked,) = events.of(ApprovalRequested)
    assert (asked.tool, asked.question_id) == ("recovery", state.pending_calls[0].id)
    return journal, state


async def test_after_three_recoveries_without_a_finished_step_a_person_is_asked() -> None:
    journal, state = await crashed_too_often()
    assert state.status is AgentStatus.PAUSED
    assert state.pending_calls[0].question.startswith("The run was recovered 3 times")
    assert journal.state == state


async def test_a_run_that_may_continue_after_too_many_crashes_does() -> None:
    journal, state = await crashed_too_often()
    asked, now = state.pending_calls[0].id, state.state_info.updated_at
    decided = journal.decide(asked, Verdict.APPROVED, "ada", now)
    assert journal.decide(asked, Verdict.APPROVED, "ada", now) == decided  # To repeat it changes nothing.
    with pytest.raises(ApprovalError, match="already approved by ada"):
        decided.deny(asked)
    agent = scripted(call("echo"), "done", tools=[echo])
    state = await resume_run(agent, decided, journal=journal).finish()
    assert_stopped(state, reason="completed")
    assert state.execution.recoveries == 0


async def test_a_question_about_the_run_takes_no_arguments() -> None:
    _, state = await crashed_too_often()
    asked = state.pending_calls[0].id
    with pytest.raises(ConfigurationError, match="approve it without arguments, or deny it"):
        state.edit(asked, {"value": "5"})
    assert state.approve(asked).pending_calls == ()


async def test_a_run_that_may_not_continue_after_too_many_crashes_ends() -> None:
    journal, state = await crashed_too_often()
    asked, now = state.pending_calls[0].id, state.state_info.updated_at
    decided = journal.decide(asked, Verdict.DENIED, "ada", now, "it does harm")
    agent = scripted(tools=[echo])  # Nobody asks the model.
    state = await resume_run(agent, decided, journal=journal).finish()
    assert_stopped(state, reason="user_requested", by="StopRequestedCheck")
    assert state.last_continuation_outcome is not None
    assert state.last_continuation_outcome.reason == "it does harm"


async def test_a_finished_step_starts_the_count_of_recoveries_again() -> None:
    journal = await died(scripted(tools=[echo]), 1)
    journal.lives = 3  # The recovery, the answer, and the step.
    agent = scripted(call("echo"), tools=[echo])
    with pytest.raises(DeadError):
        await recover_run(agent, journal.state, journal).finish()
    assert (journal.state.step_count, journal.state.execution.recoveries) == (1, 0)


# Appends that take time


class SlowJournal(MemoryJournal):
    """Suspends in the middle of every append; a cancellation is delivered when it has ended well."""

    async def append(self, *entry: Any) -> str | None:
        async def write() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            self.write(entry[0], entry[1])

        task, cancelled = asyncio.ensure_future(write()), None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        task.result()
        if cancelled is not None:
            raise cancelled
        return None


@pytest.mark.parametrize("moment", range(24))
@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_nothing_cuts_off_an_append(how: str, moment: int) -> None:
    ran: list[str] = []

    @tool
    async def pay() -> str:
        ran.append("paid")
        await asyncio.sleep(0)
        return "paid"

    journal, agent = SlowJournal(), scripted(call("pay"), "done", tools=[pay], stop_grace=0)
    events: list[Any] = []
    run = start_run(agent, "go", journal.create(agent), journal=journal, handlers=[events.append])
    task = asyncio.create_task(run.finish())
    for _ in range(moment):
        await asyncio.sleep(0)
    if how == "stop":
        agent.request_stop("enough")
    else:
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    recorded = journal.state
    if recorded.messages:  # A task that was cancelled before its first line ran has recorded nothing.
        assert recorded == run.state
        assert recorded.status.has_ended
        texts = [message.text for message in recorded.messages if message.is_tool]
        assert not (ran and any(text.startswith("Not run") for text in texts))
        changes = [event for event in events if isinstance(event, AgentStatusChanged)]
        assert (changes[-1].status, changes[-1].seq) == (recorded.status, recorded.execution.last_seq)
