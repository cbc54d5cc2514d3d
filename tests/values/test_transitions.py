"""Every transition is plain data, and its effect is defined in one place."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.golden.fixed_run import Recording, fixed_run
from tests.support import START, after_step, assert_readable, at, empty_session, pay, scripted, session
from whyloop import AgentState, AgentStatus, Budget, Message, ToolCall, ToolContext, ToolResult, Usage, tool
from whyloop.errors import ApprovalError
from whyloop.events import ApprovalRequested
from whyloop.testing import call, calls
from whyloop.values.approval import Question, Verdict
from whyloop.values.decisions import decide, fork_questions
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.judgement import Judged
from whyloop.values.step import Interruption
from whyloop.values.step_transitions import (
    Answered,
    AnyTransition,
    CallFinished,
    Closed,
    Decided,
    Left,
    ModelFailed,
    Reopened,
)
from whyloop.values.transitions import (
    Begun,
    Created,
    Forked,
    Queried,
    Recovered,
    Restored,
    Resumed,
    RetryPlanned,
    StopRequested,
    Transition,
    Waited,
    apply,
)
from whyloop.wire.view import read_back


@tool
async def echo(value: str = "") -> str:
    return value


def ids() -> Callable[[], str]:
    numbers = iter(range(1, 100))
    return lambda: f"question-{next(numbers)}"


def answered(*calls: ToolCall, started: tuple[int, ...] = (), **more: object) -> Answered:
    message = Message.assistant("", calls)
    return Answered(at(1), started_at=START, message=message, started=started, **more)  # type: ignore[arg-type]


def test_every_transition_has_a_unique_tag_and_is_in_the_union() -> None:
    # Those of a replay are in no journal.
    concrete = [kind for kind in Transition.__subclasses__() if kind.__module__.startswith("whyloop.values.")]
    assert set(concrete) == set(AnyTransition.__args__)
    tags = [kind.__struct_config__.tag for kind in concrete]
    assert len(tags) == len(set(tags))


async def test_every_transition_of_a_run_is_read_back_as_it_was() -> None:
    recording = Recording()
    await fixed_run(recording)
    for transition in recording.transitions:
        text = msgspec.json.encode(transition)
        assert msgspec.json.decode(text, type=AnyTransition) == transition


def test_apply_does_the_same_as_the_transition() -> None:
    begun = Begun(at(1))
    assert apply(session(), begun) == begun.apply_to(session())


def test_a_state_is_never_changed_by_a_later_transition() -> None:
    before = session(steps=2, tool_calls=1)
    document = before.to_dict()
    after_step(before, [ToolCall("c", "echo", {})], text="more")
    after_step(before, [ToolCall("d", "echo", {})], text="something else")
    assert before.to_dict() == document


def test_a_session_is_created_with_its_name_only_taken_from_before() -> None:
    state = AgentState.before_creation("support-7")
    created = Created(at(5), identity="i", parent_agent_id="p", metadata={"a": 1}, agent="support")
    state = created.apply_to(state)
    assert (state.agent_id, state.identity, state.parent_agent_id, state.agent) == (
        "support-7",
        "i",
        "p",
        "support",
    )
    assert (state.metadata, state.state_info.started_at, state.status) == ({"a": 1}, at(5), "pending")
    assert_readable(state)


def test_a_restored_session_differs_only_in_name_and_identity() -> None:
    original = session(steps=2, tool_calls=1)
    restored = Restored(at(9), identity="new", state=original.to_dict()).apply_to(AgentState(agent_id="copy"))
    assert (restored.agent_id, restored.identity) == ("copy", "new")
    assert (restored.steps, restored.messages, restored.execution) == (
        original.steps,
        original.messages,
        original.execution,
    )


def test_a_resume_starts_a_leg_and_counts_the_wait() -> None:
    state = session(steps=1, seconds=5)
    resumed = Resumed(at(65), grant=Budget(steps=3)).apply_to(state)
    execution = resumed.execution
    assert (execution.resumes, execution.waiting_seconds, execution.leg_started_at) == (1, 60, at(65))
    assert (execution.granted, execution.step_count, execution.active_seconds) == (Budget(steps=3), 1, 5)
    assert (resumed.status, resumed.last_continuation_outcome) == ("pending", None)


def test_a_stop_request_that_arrived_during_a_pause_is_still_served_after_a_resume() -> None:
    stopped = StopRequested(at(1), reason="enough").apply_to(session())
    for status, kept in ((AgentStatus.PAUSED, "enough"), (AgentStatus.STOPPED, None)):
        state = Resumed(at(2)).apply_to(msgspec.structs.replace(stopped, status=status))
        assert state.execution.stop_request == kept


def test_time_tokens_and_numbers_are_counted_when_they_are_known() -> None:
    state = Begun(START).apply_to(session())
    opened = answered(
        ToolCall("a", "echo", {}), ToolCall("b", "pay", {}), started=(0,), seconds=2.0, usage=Usage(10, 5)
    )
    opened = msgspec.structs.replace(opened, questions={1: Question("q", "pay waits")})
    state = opened.apply_to(state)
    execution = state.execution
    assert (opened.envelope_count(), execution.last_seq) == (2, 3)
    assert (execution.active_seconds, execution.usage.total, state.usage.total) == (2, 15, 15)
    assert state.open_step is not None
    assert [(c.started, c.is_waiting, c.started_at) for c in state.open_step.calls] == [
        (True, False, at(1)),
        (False, True, None),
    ]
    state = CallFinished(at(4), index=0, result=ToolResult("x"), seconds=3.0).apply_to(state)
    state = Left(at(4), seconds=3.0).apply_to(state)
    assert (state.execution.active_seconds, state.open_step.seconds if state.open_step else 0) == (5, 5)
    state = Decided(at(9), question_id="q", verdict=Verdict.APPROVED, by="ada").apply_to(state)
    state = Reopened(at(10), started=(1,)).apply_to(state)
    state = CallFinished(at(11), index=1, result=ToolResult("y"), seconds=1.0).apply_to(state)
    state = Closed(at(11), seconds=1.0).apply_to(state)
    (step,) = state.steps
    assert (step.duration_ms, state.execution.active_seconds) == (6000, 6)
    assert [(run.started_at, run.duration_ms) for run in step.tool_calls] == [(at(1), 3000), (at(10), 1000)]
    assert state.execution.has_tool_results
    assert state.state_info.cumulative_execution_seconds == 6


def test_a_step_cannot_be_closed_while_a_call_has_no_result() -> None:
    state = answered(ToolCall("a", "echo", {}), started=(0,)).apply_to(session())
    with pytest.raises(ValueError, match="'a' has no result"):
        Closed(at(2)).apply_to(state)
    with pytest.raises(ValueError, match="no open step"):
        Closed(at(2)).apply_to(session())


def test_a_failed_model_call_leaves_no_message() -> None:
    failure = Failure(ErrorType.MODEL, "down")
    state = ModelFailed(at(1), started_at=START, failure=failure, seconds=1.0).apply_to(session())
    state = Closed(at(1), interrupted=None).apply_to(state)
    assert (state.steps[0].failures, state.steps[0].message_count) == ((failure,), 0)
    assert (state.execution.failures.consecutive, len(state.messages)) == (1, 1)


def test_an_interruption_is_kept_with_the_step() -> None:
    state = answered(interrupted=Interruption.STOPPED).apply_to(session())
    assert Closed(at(1)).apply_to(state).steps[0].interrupted is Interruption.STOPPED


def test_a_planned_wait_ends_when_it_was_waited_for() -> None:
    planned = RetryPlanned(at(1), seconds=7.5, attempt=1, max_retries=3, error_type=ErrorType.RATE_LIMIT)
    state = planned.apply_to(session())
    assert state.execution.wait_until == at(8.5)
    state = Waited(at(9), seconds=8.0).apply_to(state)
    assert (state.execution.wait_until, state.execution.backoff_seconds) == (None, 8)
    at_once = RetryPlanned(at(1), seconds=0.0, attempt=1, max_retries=3, error_type=ErrorType.TOOL)
    assert at_once.apply_to(session()).execution.wait_until is None


def test_a_recovery_does_not_count_as_a_resume() -> None:
    before = session(steps=1, seconds=5)
    state = Recovered(at(60)).apply_to(before)
    assert state.execution.leg_started_at == before.execution.leg_started_at
    assert (state.execution.recoveries, state.execution.resumes) == (1, 0)
    assert after_step(state, [ToolCall("c", "echo", {})]).execution.recoveries == 0


def test_judging_between_steps_changes_the_outcome_of_the_last_one() -> None:
    state = session(steps=1, tool_calls=1)
    agent = scripted()
    going_on = Judged(at(1), outcome=agent.criteria.evaluate(state), step=1).apply_to(state)
    assert (going_on.status, going_on.execution.last_seq - state.execution.last_seq) == ("in_progress", 1)
    asked = StopRequested(at(2), reason="enough").apply_to(going_on)
    stopped = Judged(at(2), outcome=agent.criteria.evaluate(asked)).apply_to(asked)
    assert (stopped.status, stopped.steps[-1].outcome) == ("stopped", stopped.last_continuation_outcome)
    assert going_on.steps[-1].outcome is not stopped.steps[-1].outcome


# Forks


async def cut_off() -> AgentState:
    """A step in which one call is done, one ran when its process died, one was approved, one waits."""
    agent = scripted(tools=[echo, pay])
    wanted = [
        ToolCall("a", "echo", {}),
        ToolCall("b", "echo", {}),
        ToolCall("c", "pay", {"amount": 1}),
        ToolCall("d", "pay", {"amount": 2}),
    ]
    opened = msgspec.structs.replace(
        answered(*wanted, started=(0, 1)), questions={2: Question("q2", "?"), 3: Question("q3", "?")}
    )
    state = opened.apply_to(Begun(START).apply_to(agent.start("go", state=empty_session())))
    state = CallFinished(at(2), index=0, result=ToolResult("done")).apply_to(state)
    return Decided(
        at(3), question_id="q2", verdict=Verdict.EDITED, by="ada", arguments={"amount": 9}
    ).apply_to(state)


async def test_a_fork_asks_about_every_call_without_a_result() -> None:
    original = await cut_off()
    questions = fork_questions(original, ids())
    assert [(index, question.uncertain) for index, question in questions.items()] == [
        (1, True),
        (2, False),
        (3, False),
    ]
    forked = Forked(
        at(9), identity="i2", execution_id="e2", from_agent_id=original.agent_id, step=1, questions=questions
    )
    state = forked.apply_to(original)
    assert (state.status, state.execution.id, state.execution.last_seq) == ("paused", "e2", 3)
    assert [pending.id for pending in state.pending_calls] == ["question-1", "question-2", "question-3"]
    assert state.pending_calls[1].arguments == {"amount": 1}  # No decision is inherited.
    assert state.metadata["forked_from"] == {"agent_id": original.agent_id, "step": 1}
    events = list(read_back(original, [forked]))
    assert [type(event) for event in events] == [ApprovalRequested] * 3
    assert [(event.execution_id, event.seq) for event in events] == [("e2", 1), ("e2", 2), ("e2", 3)]
    with pytest.raises(ApprovalError):
        state.approve("q3")  # A question of the original is not one of the fork.


async def test_a_fork_asks_about_the_arguments_with_which_a_call_may_have_run() -> None:
    original = Reopened(at(4), started=(2,)).apply_to(await cut_off())
    asked_again = Reopened(at(5), questions={2: Question("q5", "?")}).apply_to(original)
    edited_again = Decided(
        at(6), question_id="q5", verdict=Verdict.EDITED, by="ada", arguments={"amount": 0}
    ).apply_to(asked_again)
    for state in (original, asked_again, edited_again):
        forked = Forked(
            at(9),
            identity="i2",
            execution_id="e2",
            from_agent_id=state.agent_id,
            step=1,
            questions=fork_questions(state, ids()),
        )
        asked = [event for event in read_back(state, [forked]) if isinstance(event, ApprovalRequested)]
        fork = forked.apply_to(state)
        assert fork.pending_calls[1].arguments == asked[1].args == {"amount": 9}
        paused = fork.approve(fork.pending_calls[1].id)
        assert paused.open_step is not None
        assert paused.open_step.call_to_run(2).arguments == {"amount": 9}


async def test_a_fork_runs_an_interrupted_idempotent_call_only_if_a_person_lets_it() -> None:
    keys: list[str] = []

    @tool(name="echo", idempotent=True)
    async def book(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        return "booked"

    original = await cut_off()
    forked = Forked(
        at(9),
        identity="i2",
        execution_id="e2",
        from_agent_id=original.agent_id,
        step=1,
        questions=fork_questions(original, ids()),
    ).apply_to(original)
    paused = await scripted(tools=[book, pay]).resume(forked)
    assert (paused.status, keys) == ("paused", [])
    for pending in paused.pending_calls:
        paused = paused.deny(pending.id) if pending.tool == "pay" else paused.approve(pending.id)
    done = await scripted("ok", tools=[book, pay]).resume(paused)
    assert (done.status, keys) == ("completed", ["e2:1:1:b"])


def test_a_fork_without_an_open_step_is_pending_or_as_it_was() -> None:
    def fork(state: AgentState) -> AgentState:
        assert fork_questions(state, ids()) == {}
        forked = Forked(at(9), identity="i2", execution_id="e2", from_agent_id="a", step=1)
        return forked.apply_to(state)

    in_progress = Begun(at(1)).apply_to(session(steps=1, tool_calls=1))
    assert (fork(in_progress).status, fork(in_progress).execution.last_seq) == ("pending", 0)
    completed = msgspec.structs.replace(in_progress, status=AgentStatus.COMPLETED)
    assert fork(completed).status == "completed"


# Decisions


async def test_a_denial_of_an_uncertain_call_says_that_its_outcome_is_unknown() -> None:
    state = await cut_off()
    state = Reopened(at(5), questions={1: Question("q9", "?", uncertain=True)}).apply_to(state)
    decided, finished = decide(state, "q9", Verdict.DENIED, "ada", at(6), "no trace of it")
    assert isinstance(decided, Decided)
    assert isinstance(finished, CallFinished)
    assert finished.result.content.startswith("Outcome unknown")
    assert finished.result.content.endswith("no trace of it")


async def test_a_query_that_replaces_an_execution_starts_from_nothing() -> None:
    paused = await scripted(calls(call("pay", {"amount": 1})), tools=[pay]).run("go")
    state = Queried(at(99), execution_id="e9", message=Message.user("next")).apply_to(paused)
    assert (state.open_step, state.pending_calls, state.execution.last_seq) == (None, (), 0)
