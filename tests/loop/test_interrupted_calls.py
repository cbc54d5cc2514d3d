"""Going on with a step whose process died while its tool calls were running."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import RespondingModel, scripted
from whyloop import (
    Agent,
    AgentState,
    FinishReason,
    ModelRequest,
    ModelResponse,
    TextDelta,
    Tool,
    ToolCall,
    ToolContext,
    tool,
)
from whyloop.testing import FakeClock, Reply, call, calls


class Recorded:
    """A journal that keeps every state that was recorded."""

    def __init__(self) -> None:
        self.states: list[AgentState] = []

    async def record(self, state: AgentState) -> None:
        self.states.append(state)


class Office:
    """Two tools and what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

        @tool
        async def send(to: str) -> str:
            self.done.append(f"sent to {to}")
            return "sent"

        @tool(idempotent=True)
        async def file(paper: str, context: ToolContext) -> str:
            self.done.append(f"filed {paper} under {context.idempotency_key}")
            return "filed"

        @tool(needs_approval=True)
        async def shred(paper: str) -> str:
            self.done.append(f"shredded {paper}")
            return "gone"

        self.tools: list[Tool] = [send, file, shred]

    def agent(self, *replies: Reply | str) -> Agent:
        return scripted(*replies, tools=self.tools)


async def cut_off(office: Office, *replies: Reply | str) -> AgentState:
    """What is recorded of a run that dies while the calls of its first step are running."""
    journal = Recorded()
    agent = office.agent(*replies).journaled(journal)
    await agent.run("go")
    opened = next(state for state in journal.states if state.open_step is not None)
    office.done.clear()
    return AgentState.from_dict(opened.to_dict())


async def test_a_call_that_may_not_be_repeated_is_asked_about() -> None:
    office = Office()
    state = await cut_off(office, call("send", {"to": "Bob"}), "done")
    agent = office.agent("ok")
    paused = await agent.resume(state)
    assert (paused.status, office.done) == ("paused", [])
    outcome = paused.last_continuation_outcome
    assert outcome is not None
    assert outcome.resolved_by == "ApprovalRequired"
    assert paused.pending_calls[0].question == (
        'It is not known whether send(to="Bob") was carried out: it was cut off before it could tell. Find '
        "out, then approve to run it again, or deny and say what became of it, for the model to know"
    )
    state = await agent.resume(paused.approve("call_1", by="ada"))
    assert (state.status, office.done) == ("completed", ["sent to Bob"])
    assert state.steps[0].tool_calls[0].approvals[0].question.startswith("It is not known whether")


async def test_the_model_is_told_what_became_of_a_call_that_is_not_run_again() -> None:
    office = Office()
    state = await cut_off(office, call("send", {"to": "Bob"}), "done")
    agent = office.agent("fine")
    paused = await agent.resume(state)
    state = await agent.resume(paused.deny("call_1", "Bob has it", by="ada"))
    assert (state.status, office.done) == ("completed", [])
    assert state.messages[2].text == "It was cut off, and ada did not let it run again: Bob has it"


async def test_a_call_that_may_be_repeated_is_repeated_under_the_same_key() -> None:
    office = Office()
    before = await cut_off(office, call("file", {"paper": "A"}), "done")
    key = f"{before.execution.id}:1:0:call_1"
    state = await office.agent("ok").resume(before)
    assert (state.status, office.done) == ("completed", [f"filed A under {key}"])
    assert state.step_count == 2


async def test_what_was_done_stays_done_and_what_waited_still_waits() -> None:
    office = Office()
    journal = Recorded()
    several = calls(call("send", {"to": "A"}), call("shred", {"paper": "B"}), call("file", {"paper": "C"}))
    await office.agent(several).journaled(journal).run("go")
    # The state in which the first call is recorded as done, and the third one is not yet.
    state = journal.states[2]
    assert state.open_step is not None
    assert [c.is_done for c in state.open_step.calls] == [True, False, False]
    office.done.clear()
    agent = office.agent("ok")
    paused = await agent.resume(state)
    assert [what.split(" under ")[0] for what in office.done] == ["filed C"]
    assert [c.id for c in paused.pending_calls] == ["call_2"]
    state = await agent.resume(paused.approve("call_2"))
    assert [m.text for m in state.messages if m.is_tool] == ["sent", "gone", "filed"]
    assert office.done[1:] == ["shredded B"]


async def test_an_approved_call_that_is_cut_off_is_asked_about_anew() -> None:
    office = Office()
    paused = await office.agent(call("shred", {"paper": "B"})).run("go")
    journal = Recorded()
    agent = office.agent("ok").journaled(journal)
    await agent.resume(paused.approve("call_1", by="ada"))
    started = next(s for s in journal.states if s.open_step and s.open_step.calls[0].started)
    office.done.clear()
    again = await office.agent("ok").resume(started)
    assert (again.status, office.done) == ("paused", [])
    assert again.pending_calls[0].question.startswith('It is not known whether shred(paper="B")')
    state = await office.agent("ok").resume(again.approve("call_1", by="bob"))
    decided = [(said.by, said.verdict) for said in state.steps[0].tool_calls[0].approvals]
    assert decided == [("ada", "approved"), ("bob", "approved")]
    assert office.done == ["shredded B"]


async def test_an_edited_call_that_is_cut_off_keeps_its_arguments() -> None:
    office = Office()
    paused = await office.agent(call("shred", {"paper": "B"})).run("go")
    journal = Recorded()
    await office.agent("ok").journaled(journal).resume(paused.edit("call_1", {"paper": "X"}))
    started = next(s for s in journal.states if s.open_step and s.open_step.calls[0].started)
    office.done.clear()
    again = await office.agent("ok").resume(started)
    assert 'shred(paper="X")' in again.pending_calls[0].question
    await office.agent("ok").resume(again.approve("call_1"))
    assert office.done == ["shredded X"]


async def test_a_call_of_a_tool_that_is_gone_by_then_is_asked_about_too() -> None:
    office = Office()
    state = await cut_off(office, call("send", {"to": "Bob"}), "done")
    agent = scripted("ok", tools=[])
    paused = await agent.resume(state)
    assert paused.status == "paused"
    resumed = await agent.resume(paused.deny("call_1", "it was sent"))
    assert (resumed.status, office.done) == ("completed", [])


async def test_who_changed_the_arguments_is_told_whoever_let_it_run_again() -> None:
    office = Office()
    paused = await office.agent(call("shred", {"paper": "B"})).run("go")
    journal = Recorded()
    await office.agent("ok").journaled(journal).resume(paused.edit("call_1", {"paper": "X"}, by="cyd"))
    started = next(s for s in journal.states if s.open_step and s.open_step.calls[0].started)
    again = await office.agent("ok").resume(started)
    state = await office.agent("ok").resume(again.approve("call_1", by="ada"))
    assert state.messages[2].text.startswith("[cyd changed the arguments")


async def test_the_time_of_a_model_call_is_not_lost_with_the_process() -> None:
    office, clock, journal = Office(), FakeClock(), Recorded()

    async def slow(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        clock.advance(100)
        yield ModelResponse("", (ToolCall("c", "file", {"paper": "A"}),), FinishReason.TOOL_CALLS)

    await Agent(RespondingModel(slow), office.tools, clock=clock, max_steps=1).journaled(journal).run("go")
    opened = next(state for state in journal.states if state.open_step is not None)
    assert opened.open_step is not None
    assert (opened.open_step.seconds, opened.execution.active_seconds) == (100, 0)
    resumed = await scripted("ok", tools=office.tools).resume(AgentState.from_dict(opened.to_dict()))
    assert resumed.steps[0].duration_ms == 100_000
    assert resumed.execution.active_seconds == 100


async def test_another_question_after_a_crash_tells_the_model_that_nobody_knows() -> None:
    office = Office()
    state = await cut_off(office, call("send", {"to": "Bob"}), "done")
    state = await office.agent("I see").run("What now?", state=state)
    assert (state.status, office.done) == ("completed", [])
    assert state.messages[2].text.startswith("It is not known whether this was carried out")


async def test_the_time_that_a_crash_took_is_waiting_time() -> None:
    office = Office()
    state = await cut_off(office, call("file", {"paper": "A"}), "done")
    resumed = await office.agent("ok").resume(state)
    assert resumed.execution.resumes == 1
    assert resumed.execution.active_seconds == 0


async def test_nothing_is_recorded_twice_or_left_out() -> None:
    office, journal = Office(), Recorded()
    agent = office.agent(
        call("send", {"to": "A"}), calls(call("send", {"to": "B"}), call("file", {"paper": "C"})), "ok"
    )
    await agent.journaled(journal).run("go")
    shapes = [
        (state.step_count, [c.is_done for c in state.open_step.calls] if state.open_step else None)
        for state in journal.states
    ]
    assert shapes == [
        (0, None),
        (0, [False]),
        (1, None),
        (1, [False, False]),
        (1, [True, False]),
        (1, [True, True]),
        (2, None),
        (3, None),
    ]


@pytest.mark.parametrize("fails_at", range(8))
async def test_a_journal_that_fails_ends_the_run_with_its_error(fails_at: int) -> None:
    class Failing(Recorded):
        async def record(self, state: AgentState) -> None:
            if len(self.states) == fails_at:
                raise OSError("no space left")
            await super().record(state)

    office = Office()
    replies: list[Any] = [
        call("send", {"to": "A"}),
        calls(call("send", {"to": "B"}), call("file", {"paper": "C"})),
        "ok",
    ]
    with pytest.raises(OSError, match="no space left"):
        await office.agent(*replies).journaled(Failing()).run("go")
