"""Running an agent: a query, the next one, and going on with one that was stopped."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta

import pytest
from msgspec.structs import replace

from tests.support import assert_complete_history, assert_readable, echo, requests_of, scripted
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    FilePart,
    ImagePart,
    Message,
    ModelRequest,
    ModelResponse,
    StopReason,
    TextPart,
    ToolCallPresenceCheck,
)
from whyloop.errors import NotResumableError, ScriptError, StoreError
from whyloop.loop.executions import start_run
from whyloop.testing import FakeClock, assert_continued, assert_stopped, call, calls, text
from whyloop.values.step_transitions import AnyTransition


async def test_an_answer_without_tool_calls_is_a_natural_end() -> None:
    state = await scripted("Paris").run("What is the capital of France?")
    assert state.status is AgentStatus.COMPLETED
    assert state.stop_reason is StopReason.COMPLETED
    assert state.last_response == "Paris"
    assert [m.role.value for m in state.messages] == ["user", "assistant"]
    assert_stopped(state, reason="completed", by=ToolCallPresenceCheck)
    assert "ToolCallPresenceCheck" in assert_readable(state)


async def test_a_tool_call_is_run_and_its_result_goes_back_to_the_model() -> None:
    agent = scripted(call("echo", {"value": "pong"}), "it said pong", tools=[echo])
    state = await agent.run("ping")
    assert state.last_response == "it said pong"
    assert [m.role.value for m in state.messages] == ["user", "assistant", "tool", "assistant"]
    result = state.messages[2]
    assert (result.text, result.tool_call_id, result.tool) == ("pong", "call_1", "echo")
    assert_continued(state, step=1, by=ToolCallPresenceCheck)
    assert list(requests_of(agent)[1].messages) == list(state.messages[:3])


async def test_a_tool_call_with_empty_content_keeps_its_calls_and_has_no_text() -> None:
    state = await scripted(call("echo", {"value": "secret"}), "done", tools=[echo]).run("go")
    asked = state.messages[1]
    assert asked.text == ""
    assert [wanted.name for wanted in asked.tool_calls] == ["echo"]


async def test_a_tool_call_with_text_keeps_the_text_apart_from_the_arguments() -> None:
    state = await scripted(call("echo", {"value": "s3cret"}, text="Let me look."), "done", tools=[echo]).run(
        "go"
    )
    assert state.messages[1].text == "Let me look."
    assert "s3cret" not in state.messages[1].text
    assert state.messages[1].tool_calls[0].arguments == {"value": "s3cret"}


async def test_the_last_response_is_the_answer_to_this_query() -> None:
    agent = scripted("first", call("echo", text="looking"), text("", usage=1), tools=[echo])
    state = await agent.run("one")
    state = await agent.run("two", state=state)
    assert state.last_response == "looking"


async def test_a_second_query_is_a_new_execution_of_the_same_session() -> None:
    clock = FakeClock()
    agent = scripted(
        call("echo", usage=10), text("one", usage=5), text("two", usage=7), tools=[echo], clock=clock
    )
    first = await agent.run("first")
    clock.advance(60)
    second = await agent.run("second", state=first)
    assert second.agent_id == first.agent_id
    assert second.execution.id != first.execution.id
    assert second.execution.step_count == 1
    assert second.execution.usage.total == 7
    assert second.usage.total == 22
    assert second.step_count == 3
    assert [step.number for step in second.steps] == [1, 2, 1]
    assert [m.text for m in second.messages if m.is_user] == ["first", "second"]
    assert second.execution.started_at == first.execution.started_at + timedelta(seconds=60)
    assert_complete_history(second.messages)


async def test_every_step_keeps_its_outcome_and_the_last_one_holds_the_reason_it_all_ended() -> None:
    state = await scripted(call("echo"), call("echo"), "done", tools=[echo]).run("go")
    outcomes = [step.outcome for step in state.steps]
    assert [o.should_continue for o in outcomes if o] == [True, True, False]
    assert outcomes[-1] == state.last_continuation_outcome
    assert state.current_step is not None
    assert state.current_step.outcome == state.last_continuation_outcome
    names = [[said.criterion for said in o.evaluations] for o in outcomes if o]
    assert names[0] == names[1] == names[2]


async def test_earlier_states_are_not_changed_by_later_queries() -> None:
    agent = scripted("one", "two")
    first = await agent.run("first")
    before = first.to_dict()
    await agent.run("second", state=first)
    assert first.to_dict() == before


async def test_two_queries_may_branch_off_one_state() -> None:
    agent = scripted("one", "two", "three")
    first = await agent.run("first")
    left = await agent.run("left", state=first)
    right = await agent.run("right", state=first)
    assert [m.text for m in left.messages] == ["first", "one", "left", "two"]
    assert [m.text for m in right.messages] == ["first", "one", "right", "three"]


async def test_instructions_and_tools_go_with_every_request() -> None:
    agent = scripted(call("echo"), "done", tools=[echo], instructions="Be brief.")
    state = await agent.run("go")
    for request in requests_of(agent):
        assert request.instructions == "Be brief."
        assert [spec.name for spec in request.tools] == ["echo"]
    assert not any(m.is_system for m in state.messages)


async def test_a_request_never_changes_afterwards() -> None:
    agent = scripted(call("echo"), "done", tools=[echo])
    await agent.run("go")
    assert [len(request.messages) for request in requests_of(agent)] == [1, 3]


async def test_multimodal_input_survives() -> None:
    parts: list[TextPart | ImagePart | FilePart] = [
        TextPart("look"),
        ImagePart(url="https://example.com/a.png"),
        FilePart(data="QQ==", name="a.txt"),
    ]
    agent = scripted("seen")
    state = await agent.run(parts)
    assert requests_of(agent)[0].messages[0].content == tuple(parts)
    assert state.messages[0].text == "look"
    assert_readable(state)


async def test_a_query_may_be_a_message() -> None:
    state = await scripted("ok").run(Message.user("hello"))
    assert state.messages[0] == Message.user("hello")


async def test_resume_continues_the_same_execution_and_its_counters() -> None:
    replies = (call("echo", usage=4), call("echo", usage=4), text("done", usage=1))
    strict = scripted(*replies[:1], tools=[echo], max_steps=1)
    stopped = await strict.run("go")
    assert_stopped(stopped, reason="steps_limit", by="StepsLimit")
    assert stopped.status is AgentStatus.STOPPED
    done = await scripted(*replies[1:], tools=[echo]).resume(stopped)
    assert done.status is AgentStatus.COMPLETED
    assert done.execution.id == stopped.execution.id
    assert done.execution.step_count == 3
    assert done.execution.usage.total == 9
    assert [m.is_user for m in done.messages].count(True) == 1
    assert_readable(done)


async def test_a_paused_execution_can_be_resumed() -> None:
    agent = scripted(call("echo"), "done", tools=[echo])
    state = await agent.next_step(agent.start("go"))
    paused = replace(state, status=AgentStatus.PAUSED)
    assert not agent.has_next_step(paused)
    done = await agent.resume(paused)
    assert done.status is AgentStatus.COMPLETED


async def test_a_restored_state_can_be_resumed_by_another_agent() -> None:
    stopped = await scripted(call("echo"), tools=[echo], max_steps=1).run("go")
    restored = AgentState.from_dict(stopped.to_dict())
    done = await scripted("done", tools=[echo]).resume(restored)
    assert done.last_response == "done"


async def test_a_completed_execution_has_nothing_to_resume() -> None:
    agent = scripted("done")
    state = await agent.run("go")
    with pytest.raises(NotResumableError, match=r"completed.*run\("):
        await agent.resume(state)


async def test_a_session_without_a_query_has_nothing_to_resume() -> None:
    with pytest.raises(NotResumableError, match="no query"):
        await scripted().resume(AgentState())


async def test_a_session_that_was_made_by_hand_can_be_asked() -> None:
    empty = AgentState(agent_id="mine", metadata={"customer": 7})
    state = await scripted("hello").run("hi", state=empty)
    assert state.agent_id == "mine"
    assert state.metadata == {"customer": 7}


def test_run_sync_and_resume_sync_serve_scripts() -> None:
    agent = scripted(call("echo"), "done", tools=[echo])
    stopped = scripted(call("echo"), tools=[echo], max_steps=1).run_sync("go")
    assert agent.run_sync("again", state=stopped).last_response == "done"
    assert scripted("finished", tools=[echo]).resume_sync(stopped).last_response == "finished"


async def test_run_sync_inside_an_event_loop_is_refused_with_a_hint() -> None:
    agent = scripted("unused")
    with pytest.raises(RuntimeError, match=r"await agent\.run"):
        agent.run_sync("go")
    with pytest.raises(RuntimeError, match=r"await agent\.resume"):
        agent.resume_sync(AgentState())


def test_an_error_that_leaves_run_sync_has_no_other_error_before_it() -> None:
    with pytest.raises(ScriptError) as caught:
        scripted().run_sync("go")
    assert caught.value.__context__ is None
    with pytest.raises(NotResumableError) as refused:
        scripted().resume_sync(AgentState())
    assert refused.value.__context__ is None


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_cut_off_answer_is_not_a_completed_one(reason: str) -> None:
    state = await scripted(text("and then the", finish_reason=reason)).run("go")
    assert state.status is AgentStatus.STOPPED
    assert_stopped(state, reason="finish_reason", by="FinishReasonCheck")


async def test_a_limit_stops_the_run_with_a_tool_call_still_pending() -> None:
    agent = scripted(*(calls(call("echo"), call("echo")) for _ in range(2)), tools=[echo], max_steps=2)
    state = await agent.run("go")
    assert_stopped(state, reason="steps_limit", by="StepsLimit")
    assert state.status is AgentStatus.STOPPED
    outcome = state.last_continuation_outcome
    assert outcome is not None
    driver = outcome.evaluation_for(ToolCallPresenceCheck)
    assert driver is not None
    assert driver.decision == "request"
    assert_readable(state)


async def test_a_token_limit_stops_the_run() -> None:
    agent = scripted(*(call("echo", usage=50) for _ in range(2)), tools=[echo], max_tokens=100)
    state = await agent.run("go")
    assert_stopped(state, reason="token_limit", by="TokenUsageLimit")
    assert state.usage.total == 100


async def test_a_custom_guard_stops_the_run_with_guard() -> None:
    def never(state: AgentState) -> bool:
        return False

    state = await scripted(call("echo"), tools=[echo], criteria=never).run("go")
    assert_stopped(state, reason="guard", by="never")
    assert state.status is AgentStatus.STOPPED


async def test_a_finished_run_is_freed_at_once_and_not_by_the_garbage_collector() -> None:
    agent = scripted(call("echo", {"value": "a"}), "done", tools=[echo])
    run = start_run(agent, "go")
    await run.finish()
    freed = weakref.ref(run)
    gc.disable()
    try:
        del run
        assert freed() is None
    finally:
        gc.enable()


class BrokenJournal:
    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        raise StoreError("the disk is full")


class Waiting:
    """A model that never answers."""

    def __init__(self) -> None:
        self.was_asked = asyncio.Event()

    async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
        self.was_asked.set()
        await asyncio.Event().wait()
        yield ModelResponse("never")


@pytest.fixture
def without_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collections")
async def test_a_run_whose_task_failed_is_freed_at_once_too() -> None:
    run = start_run(scripted("done"), "go")
    run.journal = BrokenJournal()
    freed = weakref.ref(run)
    task = asyncio.create_task(run.finish())
    del run
    await asyncio.wait([task])
    assert isinstance(task.exception(), StoreError)
    del task
    assert freed() is None


@pytest.mark.usefixtures("without_collections")
async def test_a_run_whose_task_was_cancelled_is_freed_at_once_too() -> None:
    model = Waiting()
    run = start_run(Agent(model), "go")
    freed = weakref.ref(run)
    task = asyncio.create_task(run.finish())
    del run
    await model.was_asked.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    del task
    await asyncio.sleep(0)
    assert freed() is None


@pytest.mark.usefixtures("without_collections")
async def test_a_stream_and_its_run_are_freed_at_once_too() -> None:
    async with scripted("done").stream("go") as stream:
        assert [event async for event in stream]
    freed = weakref.ref(stream)
    del stream
    assert freed() is None
