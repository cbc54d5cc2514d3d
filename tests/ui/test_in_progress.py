"""The history of a session while a run is in progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support import START, MemoryJournal, echo, scripted
from tests.ui.runs import Transport
from tests.ui.support import JavaScript, assert_valid
from whyloop import AgentState, Backoff, ErrorPolicy, tool
from whyloop.broadcasting import AgentEventEnvelopeAdapter
from whyloop.errors import ModelError
from whyloop.loop.executions import recover_run, resume_run, start_run
from whyloop.testing import call, calls
from whyloop.values.step_transitions import AnyTransition
from whyloop.wire.ui import canonical_messages


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


class Journal(MemoryJournal):
    """Keeps every state that was recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[AgentState] = []

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        self.states.append(after)
        return await super().append(transitions, before, after)


async def recorded(*replies: Any, **options: Any) -> list[AgentState]:
    """Return what was recorded of a run, from its beginning to its end."""
    journal = Journal()
    agent = scripted(*replies, **options)
    await start_run(agent, "Go", journal.create(agent), journal=journal).finish()
    return journal.states


def is_running(state: AgentState) -> bool:
    """Return whether the history ends with the status of the execution."""
    return bool(canonical_messages(state)[-1]["id"] == f"{state.execution.id}:status")


def shown(state: AgentState) -> list[tuple[str, str]]:
    messages = canonical_messages(state)
    assert_valid(messages)
    return [(message["role"], message["content"]) for message in messages]


async def test_while_the_model_answers_the_history_shows_thinking() -> None:
    thinking = (await recorded("Done."))[0]
    assert shown(thinking) == [("user", "Go"), ("status", "Thinking…")]
    status = canonical_messages(thinking)[-1]
    assert status["id"] == f"{thinking.execution.id}:status"
    assert status["metadata"] == {
        "status_type": "thinking",
        "execution_id": thinking.execution.id,
        "agent_id": thinking.agent_id,
        "step_number": 1,
        "seq": 1,
    }


async def test_while_a_run_wraps_up_the_history_says_so() -> None:
    *_, wrapping_up, stopped = await recorded(call("echo"), "Known.", tools=[echo], max_steps=1, wrap_up=True)
    assert shown(wrapping_up)[-1] == ("status", "Wrapping up…")
    # It has not ended, whatever the rules have decided.
    assert not [m for m in canonical_messages(wrapping_up) if "continuation" in m.get("metadata", {})]
    assert shown(stopped)[-1] == ("assistant", "Known.")


async def test_while_a_tool_runs_the_history_shows_its_call_and_not_thinking() -> None:
    _, running, done, _ = await recorded(call("echo", {"value": "a"}), "Done.", tools=[echo])
    assert shown(running)[1:] == [("assistant", ""), ("status", "Running echo"), ("status", "")]
    assert shown(done)[1:] == [("assistant", ""), ("tool", "a"), ("status", "Thinking…")]
    assert is_running(running)
    assert canonical_messages(running)[-1]["metadata"]["step_number"] == 1


async def test_a_call_that_waits_while_another_runs_is_asked_about() -> None:
    both = calls(call("echo", {"value": "a"}), call("pay", {"amount": 7}))
    _, running, *_, paused = await recorded(both, tools=[echo, pay])
    texts = [content for _, content in shown(running)]
    assert texts[2:] == ["Running echo", "pay waits for approval", ""]
    assert not is_running(paused)


async def test_between_two_steps_the_history_is_in_the_next() -> None:
    states = await recorded(ModelError("once"), "Better.", error_policy=ErrorPolicy.retry_all())
    assert states[1].execution.step_count == 1
    assert shown(states[1]) == [("user", "Go"), ("status", "Retrying (1/5)")]
    assert canonical_messages(states[1])[-1]["metadata"]["step_number"] == 2


async def test_a_retry_that_waits_has_the_end_of_its_wait() -> None:
    backoff = Backoff(base=2.0, jitter=0)
    states = await recorded(
        ModelError("once"), "Better.", error_policy=ErrorPolicy.retry_all(), backoff=backoff
    )
    status = canonical_messages(states[1])[-1]
    assert status["metadata"]["status_type"] == "continuation"
    assert status["metadata"]["retry"] == {"attempt": 1, "max": 5, "until": "2026-01-01T00:00:02.000Z"}
    assert "retry" not in canonical_messages(states[-1])[-1]["metadata"]


async def test_a_run_that_has_not_begun_or_has_ended_is_not_in_progress() -> None:
    agent = scripted("Done.")
    begun = agent.start("Go")
    for state in (begun, await agent.final_step(begun)):
        assert not is_running(state)


async def test_times_do_not_decrease_while_a_run_is_in_progress() -> None:
    for state in await recorded(call("echo"), "Done.", tools=[echo]):
        times = [message["timestamp"] for message in canonical_messages(state)]
        assert times == sorted(times)


async def test_a_run_whose_process_died_is_over_when_the_next_question_arrives() -> None:
    (died, *_) = await recorded("Done.")
    asked = scripted("Next.").start("And?", state=died)
    assert shown(asked) == [("user", "Go"), ("user", "And?")]


async def test_a_call_that_was_running_when_its_process_died_is_asked_about_when_another_continues() -> None:
    _, died, *_ = await recorded(call("echo"), "Done.", tools=[echo])
    journal, agent = Journal(), scripted("Done.", tools=[echo])
    *_, paused = [await recover_run(agent, died, journal).finish(), *journal.states]
    assert shown(died)[2:] == [("status", "Running echo"), ("status", "")]
    ((_, question),) = shown(paused)[2:]
    assert question.startswith("It is unknown whether echo ran")
    assert canonical_messages(paused)[-1]["metadata"]["seq"] == died.execution.last_seq + 2


async def test_a_call_that_was_approved_runs_when_the_run_is_resumed() -> None:
    *_, paused = await recorded(call("pay", {"amount": 7}, id="c1"), tools=[pay])
    approved = paused.approve(paused.pending_calls[0].id, now=START)
    assert shown(approved)[2:] == [("status", "pay: approved by an unnamed person")]
    journal, agent = Journal(), scripted("Done.", tools=[pay])
    await resume_run(agent, approved, journal=journal).finish()
    assert shown(journal.states[0])[2:] == [("status", "Running pay"), ("status", "")]


async def test_an_approval_in_a_run_whose_process_died_is_shown_until_the_call_runs() -> None:
    both = calls(call("echo", {"value": "a"}), call("pay", {"amount": 7}))
    _, died, *_ = await recorded(both, tools=[echo, pay])
    approved = died.approve(died.pending_calls[0].id, by="ada", now=START)
    texts = [content for _, content in shown(approved)]
    assert texts[2:] == ["Running echo", "pay: approved by ada", ""]


async def test_a_resume_after_a_denial_is_shown_from_its_first_envelope(js: JavaScript) -> None:
    """Without a store nothing sends the decisions, and their numbers are missing."""
    sent: list[dict[str, Any]] = []
    agent = scripted(call("pay", {"amount": 5}), "Then not.", tools=[pay])
    agent.subscribe(AgentEventEnvelopeAdapter(Transport(sent)))
    paused = await agent.run("Pay")
    before = len(sent)
    denied = paused.deny(paused.pending_calls[0].id, "too much")
    await agent.resume(denied)
    screens = [view["messages"] for view in js.call("screens", [], sent)]
    waiting, resumed = screens[before - 1], screens[before]
    assert [message["content"] for message in waiting][-1] == "Waiting for a person"
    assert [message["content"] for message in resumed][-1] == "Thinking…"
    assert [message["content"] for message in screens[-1]] == ["", "Then not."]
