"""Going on with a step whose process died while its tool calls were running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.support import MemoryJournal, RespondingModel, scripted
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
    Verdict,
    tool,
)
from whyloop.events import AgentStepStarted, StreamChunkReceived
from whyloop.loop.executions import resume_run, start_run
from whyloop.loop.run import Run
from whyloop.testing import FakeClock, Reply, call, calls, capture_events
from whyloop.values.step_transitions import AnyTransition
from whyloop.wire.journal import decode_entries
from whyloop.wire.view import read_back


class CrashError(Exception):
    """The process ended here."""


class DyingJournal(MemoryJournal):
    """A journal whose process dies right after an append."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    async def append(
        self, transitions: Sequence[AnyTransition], before: AgentState, after: AgentState
    ) -> str | None:
        await super().append(transitions, before, after)
        self.after -= 1
        if not self.after:
            raise CrashError
        return None


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

        @tool(idempotent=True)
        async def slow(paper: str) -> str:
            for _ in range(3):
                await asyncio.sleep(0)
            self.done.append(f"slowly filed {paper}")
            return "filed"

        @tool(needs_approval=True)
        async def shred(paper: str) -> str:
            self.done.append(f"shredded {paper}")
            return "gone"

        self.tools: list[Tool] = [send, file, slow, shred]

    def agent(self, *replies: Reply | str) -> Agent:
        return scripted(*replies, tools=self.tools)


async def cut_off(run: Run, agent: Agent, journal: DyingJournal) -> AgentState:
    """Return the record of a run that dies after an append."""
    with pytest.raises(CrashError):
        await run.finish()
    return journal.state


async def cut_off_call(office: Office, *replies: Reply | str, after: int = 2) -> AgentState:
    """Return the record of a run that dies while the calls of its first step run."""
    agent, journal = office.agent(*replies), DyingJournal(after)
    state = await cut_off(start_run(agent, "go", journal.create(agent), journal=journal), agent, journal)
    office.done.clear()
    return state


async def cut_off_approved(office: Office, arguments: dict[str, Any] | None = None) -> AgentState:
    """Return the record of a run that dies during a call that a person approved or edited."""
    agent = office.agent(call("shred", {"paper": "B"}), "ok")
    journal = DyingJournal(4)
    paused = await start_run(agent, "go", journal.create(agent), journal=journal).finish()
    asked, now = paused.pending_calls[0].id, paused.state_info.updated_at
    verdict = Verdict.APPROVED if arguments is None else Verdict.EDITED
    decided = journal.decide(asked, verdict, "ada", now, None, arguments)
    state = await cut_off(resume_run(agent, decided, journal=journal), agent, journal)
    office.done.clear()
    return state


async def test_a_person_decides_about_a_call_that_may_not_be_repeated() -> None:
    office = Office()
    state = await cut_off_call(office, call("send", {"to": "Bob"}), "done")
    agent = office.agent("ok")
    paused = await agent.resume(state)
    assert (paused.status, office.done) == ("paused", [])
    outcome = paused.last_continuation_outcome
    assert outcome is not None
    assert outcome.resolved_by == "ApprovalRequired"
    (asked,) = paused.pending_calls
    assert asked.question == (
        "It is unknown whether send ran: it was interrupted before its result was recorded. Find out, then "
        "approve to run it again, or deny with the result that you found"
    )
    state = await agent.resume(paused.approve(asked.id, by="ada"))
    assert (state.status, office.done) == ("completed", ["sent to Bob"])
    assert state.steps[0].tool_calls[0].approvals[0].question.startswith("It is unknown whether")


async def test_the_model_gets_the_outcome_of_a_call_that_is_not_run_again() -> None:
    office = Office()
    state = await cut_off_call(office, call("send", {"to": "Bob"}), "done")
    agent = office.agent("fine")
    paused = await agent.resume(state)
    state = await agent.resume(paused.deny(paused.pending_calls[0].id, "Bob has it", by="ada"))
    assert (state.status, office.done) == ("completed", [])
    assert state.messages[2].text.startswith(
        "Outcome unknown: it was interrupted before its result was recorded"
    )
    assert state.messages[2].text.endswith("and ada did not let it run again: Bob has it")


async def test_a_call_that_may_be_repeated_is_repeated_under_the_same_key() -> None:
    office = Office()
    before = await cut_off_call(office, call("file", {"paper": "A"}), "done")
    key = f"{before.execution.id}:1:0:call_1"
    state = await office.agent("ok").resume(before)
    assert (state.status, office.done) == ("completed", [f"filed A under {key}"])
    assert state.step_count == 2


async def test_finished_calls_keep_their_results_and_waiting_calls_still_wait() -> None:
    office = Office()
    several = calls(call("send", {"to": "A"}), call("shred", {"paper": "B"}), call("slow", {"paper": "C"}))
    state = await cut_off_call(office, several, after=3)
    # The first call is recorded as done, the third one is not yet.
    assert state.open_step is not None
    assert [c.is_done for c in state.open_step.calls] == [True, False, False]
    agent = office.agent("ok")
    paused = await agent.resume(state)
    assert office.done == ["slowly filed C"]
    assert [c.tool_call_id for c in paused.pending_calls] == ["call_2"]
    state = await agent.resume(paused.approve(paused.pending_calls[0].id))
    assert [m.text for m in state.messages if m.is_tool] == ["sent", "gone", "filed"]
    assert office.done[1:] == ["shredded B"]


async def test_an_interrupted_approved_call_gets_a_new_question() -> None:
    office = Office()
    started = await cut_off_approved(office)
    again = await office.agent("ok").resume(started)
    assert (again.status, office.done) == ("paused", [])
    (asked,) = again.pending_calls
    assert asked.question.startswith("It is unknown whether shred ran")
    state = await office.agent("ok").resume(again.approve(asked.id, by="bob"))
    decided = [(said.by, said.verdict) for said in state.steps[0].tool_calls[0].approvals]
    assert decided == [("ada", "approved"), ("bob", "approved")]
    assert office.done == ["shredded B"]


async def test_an_edited_call_that_is_cut_off_keeps_its_arguments_and_its_editor() -> None:
    office = Office()
    again = await office.agent("ok").resume(await cut_off_approved(office, {"paper": "X"}))
    (asked,) = again.pending_calls
    assert asked.arguments == {"paper": "X"}
    state = await office.agent("ok").resume(again.approve(asked.id, by="bob"))
    assert office.done == ["shredded X"]
    assert state.messages[2].model_text.startswith("[ada changed the arguments")


async def test_a_person_decides_about_a_call_whose_tool_is_gone() -> None:
    office = Office()
    state = await cut_off_call(office, call("send", {"to": "Bob"}), "done")
    agent = scripted("ok", tools=[])
    paused = await agent.resume(state)
    assert paused.status == "paused"
    resumed = await agent.resume(paused.deny(paused.pending_calls[0].id, "it was sent"))
    assert (resumed.status, office.done) == ("completed", [])


async def test_the_time_of_a_model_call_is_not_lost_with_the_process() -> None:
    office, clock, journal = Office(), FakeClock(), DyingJournal(2)

    async def slow(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        clock.advance(100)
        yield ModelResponse("", (ToolCall("c", "file", {"paper": "A"}),), FinishReason.TOOL_CALLS)

    agent = Agent(RespondingModel(slow), office.tools, clock=clock, max_steps=1)
    opened = await cut_off(start_run(agent, "go", journal.create(agent), journal=journal), agent, journal)
    assert opened.open_step is not None
    assert (opened.open_step.seconds, opened.execution.active_seconds) == (100, 100)
    resumed = await scripted("ok", tools=office.tools).resume(AgentState.from_dict(opened.to_dict()))
    assert resumed.steps[0].duration_ms == 100_000
    assert resumed.execution.active_seconds == 100


async def test_another_query_after_a_crash_tells_the_model_that_the_outcome_is_unknown() -> None:
    office = Office()
    state = await cut_off_call(office, call("send", {"to": "Bob"}), "done")
    state = await office.agent("I see").run("What now?", state=state)
    assert (state.status, office.done) == ("completed", [])
    assert state.messages[2].text == "Outcome unknown: another query arrived first"


async def test_another_query_instead_of_a_decision_about_an_uncertain_call_does_not_hide_it() -> None:
    office = Office()
    state = await cut_off_call(office, call("send", {"to": "Bob"}), "done")
    paused = await office.agent("ok").resume(state)
    assert paused.pending_calls
    state = await office.agent("I see").run("What now?", state=paused)
    assert state.messages[2].text == "Outcome unknown: another query arrived first"


async def test_a_stop_before_the_record_does_not_hide_an_uncertain_call() -> None:
    class StoppingJournal(MemoryJournal):
        async def append(self, *entry: Any) -> str | None:
            await super().append(*entry)
            return "stop it"

    office = Office()
    several = calls(call("file", {"paper": "A"}), call("shred", {"paper": "B"}))
    opened = await cut_off_call(office, several)
    journal = StoppingJournal()
    agent = office.agent()
    asked = opened.pending_calls[0].id
    run = resume_run(agent, opened.approve(asked), journal=journal)
    state = await run.finish()
    assert (state.stop_reason, office.done) == ("user_requested", [])
    results = [m.text for m in state.messages if m.is_tool]
    # The first was running when its process died; the second was never started by anybody.
    assert results == ["Outcome unknown: a stop was requested", "Not run: a stop was requested"]


async def test_the_time_that_a_crash_took_is_waiting_time() -> None:
    office = Office()
    state = await cut_off_call(office, call("file", {"paper": "A"}), "done")
    resumed = await office.agent("ok").resume(state)
    assert resumed.execution.resumes == 1
    assert resumed.execution.active_seconds == 0


async def test_nothing_is_recorded_twice_or_left_out() -> None:
    office, journal = Office(), MemoryJournal()
    agent = office.agent(
        call("send", {"to": "A"}), calls(call("send", {"to": "B"}), call("slow", {"paper": "C"})), "ok"
    )
    await start_run(agent, "go", journal.create(agent), journal=journal).finish()
    kinds = [[type(t).__name__ for t in entry.transitions] for entry in decode_entries(journal.entries)]
    assert kinds == [
        ["Created"],
        ["Queried", "Begun"],
        ["Noted", "Answered"],
        ["CallFinished", "Closed", "Judged"],
        ["Answered"],
        ["CallFinished"],
        ["CallFinished", "Closed", "JudgedAlike"],
        ["Answered", "Closed", "JudgedAlike"],
    ]


@pytest.mark.parametrize("fails_at", range(1, 8))
async def test_a_journal_that_fails_ends_the_run_with_its_error(fails_at: int) -> None:
    class Failing(MemoryJournal):
        async def append(self, *entry: Any) -> str | None:
            if len(self.entries) == fails_at:
                raise OSError("no space left")
            return await super().append(*entry)

    office, journal = Office(), Failing()
    agent = office.agent(
        call("send", {"to": "A"}), calls(call("send", {"to": "B"}), call("slow", {"paper": "C"})), "ok"
    )
    events = capture_events(agent)
    with pytest.raises(OSError, match="no space left"):
        await start_run(agent, "go", journal.create(agent), journal=journal).finish()
    assert len(journal.entries) == fails_at
    # Nothing is announced that is not recorded.
    seen = [event for event in events if not isinstance(event, AgentStepStarted | StreamChunkReceived)]
    assert seen == list(read_back(AgentState(agent_id=journal.agent_id), journal.transitions))
