"""Tool calls that wait for a person."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import assert_readable, requests_of, scripted
from whyloop import AgentState, ApprovalRequired, Tool, Verdict, tool
from whyloop.errors import ApprovalError, ConfigurationError, ToolDefinitionError
from whyloop.events import (
    AgentExecutionFinished,
    AgentStatusChanged,
    AgentStepCompleted,
    ApprovalDecided,
    ApprovalRequested,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.loop.executions import refuse_edit
from whyloop.testing import FakeClock, Reply, assert_stopped, call, calls, capture_events
from whyloop.values.decisions import decide
from whyloop.values.step import RequestPart
from whyloop.values.text import short_id
from whyloop.wire.view import read_back


class Bank:
    """A tool with a memory: which payments were made."""

    def __init__(self, needs_approval: Any = True, clock: FakeClock | None = None, **options: Any) -> None:
        self.paid: list[int] = []

        @tool(needs_approval=needs_approval, **options)
        async def pay(amount: int, to: str = "Bob") -> str:
            if clock:
                clock.advance(1)
            self.paid.append(amount)
            return f"paid {amount} to {to}"

        self.pay = pay

    @property
    def tools(self) -> list[Tool]:
        return [self.pay, look]


@tool
async def look(what: str = "it") -> str:
    return f"found {what}"


def pay(amount: int = 500) -> Reply:
    return call("pay", {"amount": amount})


def question(state: AgentState, call_id: str = "call_1") -> str:
    """The id of the question about a call."""
    (found,) = [pending.id for pending in state.pending_calls if pending.tool_call_id == call_id]
    return found


async def test_a_call_that_needs_approval_pauses_the_execution() -> None:
    bank = Bank()
    state = await scripted(pay(), "done", tools=bank.tools).run("go")
    assert (state.status, state.stop_reason, bank.paid) == ("paused", None, [])
    outcome = state.last_continuation_outcome
    assert outcome is not None
    assert (outcome.resolved_by, outcome.should_continue, outcome.pauses) == ("ApprovalRequired", False, True)
    said = outcome.evaluation_for(ApprovalRequired)
    assert said is not None
    assert said.pauses
    assert said.reason == "pay waits for approval"
    assert said.context["pending"] == [
        {"id": question(state), "call_id": "call_1", "name": "pay", "question": said.reason}
    ]
    (pending,) = state.pending_calls
    assert (pending.tool_call_id, pending.tool, pending.arguments) == ("call_1", "pay", {"amount": 500})
    assert pending.id != pending.tool_call_id
    assert "pay waits for approval" in assert_readable(state).splitlines()[0]
    assert not [message for message in state.messages if message.is_assistant]


async def test_an_approved_call_runs_once_the_execution_is_resumed() -> None:
    bank = Bank()
    agent = scripted(pay(), "done", tools=bank.tools)
    paused = await agent.run("go")
    approved = paused.approve(question(paused), by="ada")
    assert (approved.status, bank.paid, approved.pending_calls) == ("paused", [], ())
    state = await agent.resume(approved)
    assert (state.status, bank.paid) == ("completed", [500])
    assert [message.text for message in state.messages] == ["go", "", "paid 500 to Bob", "done"]
    decision = state.steps[0].tool_calls[0].approvals[0]
    assert (decision.verdict, decision.by) == (Verdict.APPROVED, "ada")
    assert "pay ok, approved by ada" in assert_readable(state)


async def test_a_denied_call_never_runs_and_the_model_gets_the_reason() -> None:
    bank = Bank()
    agent = scripted(pay(), "Too bad", tools=bank.tools)
    paused = await agent.run("go")
    state = await agent.resume(paused.deny(question(paused), "too much", by="ada"))
    assert (state.status, bank.paid) == ("completed", [])
    assert state.messages[2].text == "Denied by ada: too much"
    run = state.steps[0].tool_calls[0]
    assert (run.success, run.error, run.approvals[0].reason) == (
        False,
        "denied by ada: too much",
        "too much",
    )
    assert state.steps[0].failures == ()
    assert "denied by ada" in assert_readable(state)


async def test_an_edited_call_runs_with_the_new_arguments_and_its_result_names_them() -> None:
    bank = Bank()
    agent = scripted(pay(), "done", tools=bank.tools)
    paused = await agent.run("go")
    state = await agent.resume(paused.edit(question(paused), {"amount": 50}, by="ada"))
    assert bank.paid == [50]
    assert state.messages[1].tool_calls[0].arguments == {"amount": 500}
    assert state.messages[2].model_text == '[ada changed the arguments to {"amount":50}]\npaid 50 to Bob'
    assert state.steps[0].tool_calls[0].approvals[0].arguments == {"amount": 50}


async def test_edited_arguments_are_checked_like_any_others() -> None:
    bank = Bank()
    agent = scripted(pay(), "done", tools=bank.tools)
    paused = await agent.run("go")
    state = await agent.resume(paused.edit(question(paused), {"amount": "lots"}))
    assert bank.paid == []
    assert (state.status, state.stop_reason) == ("failed", "error")
    assert "invalid arguments for pay" in state.messages[2].text


async def test_a_recorded_schema_accepts_numbers_for_decimals() -> None:
    @tool(needs_approval=True)
    def give(amounts: list[Decimal]) -> str:
        return f"gave {sum(amounts)}"

    paused = await scripted(call("give", {"amounts": ["5"]}), tools=[give]).run("go")
    for amounts in (["40"], [40], [1.5]):
        refuse_edit(None, paused, question(paused), {"amounts": amounts})
    with pytest.raises(ConfigurationError, match="invalid arguments for give"):
        refuse_edit(None, paused, question(paused), {"amounts": [True]})


async def test_an_invalid_recorded_schema_leaves_the_check_to_the_call() -> None:
    paused = await scripted(pay(), tools=Bank().tools).run("go")
    broken = replace(paused, request_parts=tuple(map(_with_a_broken_pattern, paused.request_parts)))
    assert broken != paused
    refuse_edit(None, broken, question(broken), {"amount": 5, "to": "Eve"})


def _with_a_broken_pattern(part: RequestPart) -> RequestPart:
    return replace(part, text=part.text.replace('"type":"string"', '"type":"string","pattern":"("'))


async def test_each_question_is_decided_once() -> None:
    agent = scripted(pay(), "done", tools=Bank().tools)
    paused = await agent.run("go")
    asked = question(paused)
    approved = paused.approve(asked, by="ada")
    assert approved.approve(asked, by="bob") == approved  # A client that repeats itself changes nothing.
    with pytest.raises(ApprovalError, match=r"was already approved by ada, at .*: no question is open"):
        approved.deny(asked, "no")
    with pytest.raises(ApprovalError, match="was already approved by ada"):
        approved.edit(asked, {"amount": 1})
    done = await agent.resume(approved)
    assert done.approve(asked) == done  # Also after the call has run.
    with pytest.raises(ApprovalError, match="was already approved by ada"):
        done.deny(asked)


async def test_a_decision_names_a_question_that_is_open() -> None:
    paused = await scripted(calls(call("look"), pay()), tools=Bank().tools).run("go")
    for wrong in ("call_2", "no such question", ""):
        with pytest.raises(ApprovalError, match="no tool call waits for an answer to question") as caught:
            paused.approve(wrong)
        assert caught.value.pending == paused.pending_calls
    with pytest.raises(ApprovalError, match="no question is open"):
        AgentState().approve("call_1")


async def test_a_provider_that_reuses_a_call_id_does_not_make_a_late_decision_reach_another_call() -> None:
    bank = Bank()
    agent = scripted(
        call("pay", {"amount": 10}, id="call_1"),
        call("pay", {"amount": 10_000}, id="call_1"),
        tools=bank.tools,
    )
    first = await agent.run("go")
    second = await agent.resume(first.approve(question(first), by="ada"))
    assert bank.paid == [10]
    assert question(second) != question(first)
    # The same decision again is a repetition: it does not approve the second payment.
    again = await agent.resume(second.approve(question(first), by="ada"))
    assert (again.status, bank.paid, again.pending_calls) == ("paused", [10], second.pending_calls)


async def test_calls_that_need_no_approval_run_before_the_pause_and_only_once() -> None:
    bank = Bank(needs_approval=lambda arguments: arguments["amount"] > 100)
    agent = scripted(calls(pay(5), pay(500), call("look"), pay(7)), "done", tools=bank.tools)
    paused = await agent.run("go")
    assert sorted(bank.paid) == [5, 7]
    assert [c.arguments for c in paused.pending_calls] == [{"amount": 500}]
    state = await agent.resume(paused.approve(question(paused, "call_2")))
    assert sorted(bank.paid) == [5, 7, 500]
    results = [message.text for message in state.messages if message.is_tool]
    assert results == ["paid 5 to Bob", "paid 500 to Bob", "found it", "paid 7 to Bob"]


async def test_resuming_with_some_decided_runs_those_and_waits_for_the_rest() -> None:
    bank = Bank()
    agent = scripted(calls(pay(1), pay(2), pay(3)), "done", tools=bank.tools)
    paused = await agent.run("go")
    outcome = paused.last_continuation_outcome
    assert outcome is not None
    assert outcome.explain().startswith(
        "Paused, decided by ApprovalRequired: 3 tool calls wait for a person: pay, pay, pay."
    )
    again = await agent.resume(paused.approve(question(paused, "call_2")))
    assert (again.status, bank.paid, [c.tool_call_id for c in again.pending_calls]) == (
        "paused",
        [2],
        ["call_1", "call_3"],
    )
    state = await agent.resume(again.approve(question(again)).deny(question(again, "call_3")))
    assert (state.status, bank.paid) == ("completed", [2, 1])
    assert state.step_count == 2


async def test_resuming_with_nothing_decided_pauses_again() -> None:
    bank = Bank()
    agent = scripted(pay(), "done", tools=bank.tools)
    paused = await agent.run("go")
    again = await agent.resume(paused)
    assert (again.status, bank.paid, again.pending_calls) == ("paused", [], paused.pending_calls)


async def test_waiting_for_a_person_costs_no_active_time() -> None:
    clock = FakeClock()
    bank = Bank(clock=clock)

    @tool
    async def slow() -> str:
        clock.advance(5)
        return "slow"

    agent = scripted(
        calls(call("slow"), pay()), "done", tools=[bank.pay, slow], clock=clock, cumulative_timeout=10
    )
    paused = await agent.run("go")
    assert paused.execution.active_seconds == 5
    assert paused.state_info.cumulative_execution_seconds == 5
    clock.advance(3 * 24 * 3600)
    stored = AgentState.from_dict(paused.approve(question(paused, "call_2"), now=clock.now()).to_dict())
    state = await agent.resume(stored)
    assert (state.status, bank.paid) == ("completed", [500])
    assert state.execution.active_seconds == 6
    assert state.state_info.cumulative_execution_seconds == 6
    assert state.execution.waiting_seconds == 3 * 24 * 3600
    assert state.steps[0].duration_ms == 6000


async def test_a_paused_state_survives_a_snapshot() -> None:
    bank = Bank()
    agent = scripted(calls(call("look"), pay()), "done", tools=bank.tools)
    paused = await agent.run("go")
    restored = AgentState.from_dict(paused.to_dict())
    assert restored == paused
    state = await agent.resume(restored.approve(question(restored, "call_2")))
    assert (state.status, bank.paid) == ("completed", [500])


async def test_a_rule_that_raises_means_asking(caplog: pytest.LogCaptureFixture) -> None:
    def broken(arguments: Mapping[str, Any]) -> bool:
        raise KeyError("limit")

    state = await scripted(pay(), tools=Bank(needs_approval=broken).tools).run("go")
    assert state.status == "paused"
    assert state.pending_calls[0].question == "pay waits for approval: its approval rule failed with KeyError"
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    where, what = f"Agent [{short_id(state.agent_id)}] step 1", "the approval rule of tool pay failed"
    assert record.getMessage().splitlines()[0] == f"{where}: {what}, so a person is asked"


async def test_a_call_that_cannot_run_does_not_ask_a_person() -> None:
    bank = Bank(needs_approval=lambda arguments: arguments["amount"] > 1)
    state = await scripted(call("pay", {"amount": "lots"}), tools=bank.tools).run("go")
    assert (state.status, state.stop_reason) == ("failed", "error")
    state = await scripted(call("nobody"), tools=bank.tools).run("go")
    assert "there is no tool named 'nobody'" in state.messages[2].text


async def test_another_query_ends_a_waiting_call() -> None:
    bank = Bank()
    agent = scripted(calls(call("look"), pay()), "Never mind then", tools=bank.tools)
    paused = await agent.run("go")
    state = await agent.run("forget it", state=paused)
    assert (state.status, bank.paid) == ("completed", [])
    texts = [message.text for message in state.messages]
    assert texts[:3] == ["go", "", "found it"]
    assert texts[3] == "Not run: another query arrived first"
    assert texts[4:] == ["forget it", "Never mind then"]
    first = state.steps[0]
    assert first.outcome is not None
    assert (first.outcome.stop_reason, first.outcome.resolved_by) == ("user_requested", "StopRequestedCheck")
    assert requests_of(agent)[1].messages[3].tool_call_id == "call_2"


async def test_a_stop_request_wins_over_the_pause() -> None:
    bank = Bank()
    agent = scripted(pay(), "done", tools=bank.tools)
    paused = await agent.run("go")

    @agent.subscribe
    def ask(event: object) -> None:
        agent.request_stop("no more")

    state = await agent.resume(paused)
    assert_stopped(state, reason="user_requested")
    assert state.pending_calls == paused.pending_calls


async def test_the_step_limit_counts_a_paused_step_once() -> None:
    bank = Bank()
    agent = scripted(pay(), pay(6), "never", tools=bank.tools, max_steps=2)
    state = await agent.run("go")
    state = await agent.resume(state.approve(question(state)))
    state = await agent.resume(state.approve(state.pending_calls[0].id))
    assert (state.stop_reason, bank.paid, state.step_count) == ("steps_limit", [500, 6], 2)


async def test_a_failure_beside_a_waiting_call_is_judged_when_the_step_ends() -> None:
    @tool
    async def broken() -> str:
        raise RuntimeError("boom")

    agent = scripted(calls(call("broken"), pay()), tools=[broken, Bank().pay])
    paused = await agent.run("go")
    assert paused.status == "paused"
    state = await agent.resume(paused.deny(question(paused, "call_2")))
    assert (state.status, state.stop_reason) == ("failed", "error")


async def test_the_events_of_a_pause_and_its_resume() -> None:
    agent = scripted(calls(call("look"), pay()), "done", tools=Bank().tools)
    with capture_events(agent) as events:
        paused = await agent.run("go")
    assert not events.of(AgentExecutionFinished)
    assert not events.of(AgentStepCompleted)
    assert [event.tool for event in events.of(ToolCallStarted)] == ["look"]
    (asked,) = events.of(ApprovalRequested)
    assert (asked.question_id, asked.tool, asked.tool_call_id) == (
        question(paused, "call_2"),
        "pay",
        "call_2",
    )
    assert asked.question == "pay waits for approval"
    changes = [(e.previous_status, e.status) for e in events.of(AgentStatusChanged)]
    assert changes == [("pending", "in_progress"), ("in_progress", "paused")]
    with capture_events(agent) as events:
        await agent.resume(paused.approve(question(paused, "call_2")))
    assert [event.tool for event in events.of(ToolCallStarted)] == ["pay"]
    assert [event.step_number for event in events.of(AgentStepCompleted)] == [1, 2]
    changes = [(e.previous_status, e.status) for e in events.of(AgentStatusChanged)]
    assert changes == [("paused", "in_progress"), ("in_progress", "completed")]


async def in_time(arguments: Mapping[str, Any]) -> bool:
    return True


def without_parameters() -> bool:
    return True


def of_fields(*, amount: int) -> bool:
    return amount > 5


@pytest.mark.parametrize("rule", ["yes", 1, None, in_time, without_parameters, of_fields])
def test_a_rule_for_approvals_is_a_bool_or_a_plain_function(rule: Any) -> None:
    with pytest.raises(
        ToolDefinitionError, match=r"invalid needs_approval .*: use True, False or a function"
    ):
        Tool(in_time, needs_approval=rule)


def test_idempotent_is_a_bool() -> None:
    with pytest.raises(ToolDefinitionError, match=r"invalid idempotent .*: use True or False"):
        Tool(in_time, idempotent="yes")  # type: ignore[arg-type]


async def test_a_rule_sees_the_arguments_that_the_model_left_to_the_tool() -> None:
    bank = Bank(needs_approval=lambda arguments: arguments["to"] == "Bob")
    state = await scripted(pay(), tools=bank.tools).run("go")
    assert state.status == "paused"
    assert state.pending_calls[0].question == "pay waits for approval"


async def test_an_explanation_shows_how_far_the_step_has_come() -> None:
    agent = scripted(calls(call("look"), pay(1), pay(2), pay(3)), tools=Bank().tools)
    paused = await agent.run("go")
    decided = paused.approve(question(paused, "call_2"), by="ada").deny(question(paused, "call_3"), by="bob")
    assert "look ok; pay approved by ada; pay denied by bob; pay waits for a person" in decided.explain()


async def test_a_decision_with_values_of_other_types_is_refused() -> None:
    paused = await scripted(pay(), tools=Bank().tools).run("go")
    with pytest.raises(ConfigurationError, match="must be text"):
        paused.approve(question(paused), by=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be text"):
        paused.deny(question(paused), 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="pass a dict of arguments"):
        paused.edit(question(paused), "amount=5")  # type: ignore[arg-type]


async def test_calls_with_one_id_get_different_ids() -> None:
    bank = Bank()
    twins = calls(call("pay", {"amount": 1000}, id="c"), call("pay", {"amount": 1}, id="c"))
    agent = scripted(twins, "done", tools=bank.tools)
    paused = await agent.run("go")
    assert [(c.tool_call_id, c.arguments) for c in paused.pending_calls] == [
        ("c", {"amount": 1000}),
        ("c-2", {"amount": 1}),
    ]
    state = await agent.resume(paused.approve(question(paused, "c-2")).deny(question(paused, "c")))
    assert bank.paid == [1]
    assert [m.tool_call_id for m in state.messages if m.is_tool] == ["c", "c-2"]


async def test_an_approval_rule_cannot_change_its_call() -> None:
    def meddle(arguments: Mapping[str, Any]) -> bool:
        arguments["items"].append("meddled")
        return False

    seen: list[Any] = []

    @tool(needs_approval=meddle)
    async def buy(items: list[str]) -> str:
        seen.append(items)
        return "bought"

    state = await scripted(call("buy", {"items": ["a"]}), "done", tools=[buy]).run("go")
    assert seen == [["a"]]
    assert state.messages[1].tool_calls[0].arguments == {"items": ["a"]}


async def test_arguments_that_do_not_fit_never_ask_a_person() -> None:
    state = await scripted(call("pay", {"amount": "lots"}), tools=Bank(needs_approval=True).tools).run("go")
    assert (state.status, state.stop_reason) == ("failed", "error")


@pytest.mark.parametrize("kind", [str, Any])
async def test_arguments_that_no_json_can_hold_end_in_no_crash(kind: Any) -> None:
    async def say(words: Any) -> str:
        return "said"

    say.__annotations__["words"] = kind
    agent = scripted(call("say", {"words": "half \ud800"}), tools=[Tool(say, needs_approval=True)])
    state = await agent.run("go")
    assert state.status in ("paused", "failed")
    assert_readable(state)


async def test_a_denied_call_has_its_result_at_once_and_the_events_of_the_decision_are_read_back() -> None:
    agent = scripted(calls(pay(1), pay(2)), "done", tools=Bank().tools)
    paused = await agent.run("go")
    decision = decide(paused, question(paused), Verdict.DENIED, "ada", paused.state_info.updated_at, "no")
    decided, finished = read_back(paused, decision)
    assert isinstance(decided, ApprovalDecided)
    assert (decided.verdict, decided.by, decided.reason) == ("denied", "ada", "no")
    assert isinstance(finished, ToolCallCompleted)
    assert (finished.tool_call_id, finished.success, finished.error) == ("call_1", False, "denied by ada: no")
    again = paused.deny(question(paused), "no", by="ada")
    with capture_events(agent) as events:
        again = await agent.resume(again)
        assert events.of(ToolCallCompleted) == []
        await agent.resume(again.approve(question(again, "call_2")))
    assert [(e.tool_call_id, e.success) for e in events.of(ToolCallCompleted)] == [("call_2", True)]
