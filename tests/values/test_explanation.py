"""An explanation as a value: what it says of a run, what would let the run continue, how it is rendered."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from tests.support import START, broken, echo, scripted, session
from whyloop import (
    Agent,
    AgentState,
    Approval,
    Backoff,
    Budget,
    CallExplanation,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    ErrorPolicy,
    Explanation,
    Hook,
    NextAction,
    StepExplanation,
    StopReason,
    Tool,
    Verdict,
    tool,
)
from whyloop.errors import ConfigurationError, ModelError, ResponseValidationError
from whyloop.testing import FakeClock, call, calls, text
from whyloop.values.approval import Question
from whyloop.values.call_explanation import CallStatus
from whyloop.values.explanation import explanation_of, explanation_of_step
from whyloop.values.explanation_text import MOST_STEPS
from whyloop.values.next_action import ActionKind
from whyloop.values.step import Interruption
from whyloop.values.transitions import Begun, Recovered

ALLOW = ContinuationDecision.ALLOW_CONTINUATION
FORBID = ContinuationDecision.FORBID_CONTINUATION
REQUEST = ContinuationDecision.REQUEST_CONTINUATION

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x00\u202e`**<b>|x|</b>\n# [a](http://b) ![c](d) \ud800"
AWAITS = "The results of 1 tool call await the model"
ANSWERED = "The model answered and asked for no tools"


def paying(**options: Any) -> Tool:
    """A tool that needs approval."""

    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    return tool(needs_approval=True, **options)(pay)


@tool
def slow() -> str:
    """Run out of time."""
    raise TimeoutError("too late")


def judged(state: AgentState, *evaluations: ContinuationEvaluation) -> AgentState:
    """A state that these evaluations stopped."""
    first = next(e for e in evaluations if e.decision is FORBID)
    stop_reason = first.stop_reason or StopReason.GUARD_FORBADE
    return state.with_continuation_outcome(
        ContinuationOutcome(FORBID, first.criterion, stop_reason, evaluations)
    )


def kinds(state: AgentState) -> list[str]:
    return [action.kind.value for action in state.explanation.next_actions]


def lines(state: AgentState) -> list[str]:
    return [str(action) for action in state.explanation.next_actions]


# The headline


@pytest.mark.parametrize(
    ("agent", "headline"),
    [
        (scripted("hi"), f"Completed after 1 step. ToolCallPresenceCheck decided: {ANSWERED}."),
        (
            scripted(call("echo"), tools=[echo], max_steps=1),
            "Stopped after 1 step (steps_limit). StepsLimit decided: Limit reached: 1 of 1 steps used.",
        ),
        (
            scripted(call("broken"), tools=[broken]),
            "Failed after 1 step (error). ErrorPolicyCriterion decided: "
            "Tool error, stopped by policy: RuntimeError in broken.",
        ),
        (
            scripted(call("pay", {"amount": 5}), tools=[paying()]),
            "Paused in step 1. ApprovalRequired decided: pay waits for approval.",
        ),
    ],
)
async def test_the_headline_names_status_step_stop_reason_rule_and_reason(
    agent: Agent, headline: str
) -> None:
    state = await agent.run("go")
    assert state.explanation.headline == headline
    assert state.explain().splitlines()[0] == headline


def test_the_headline_of_a_run_that_has_not_ended() -> None:
    assert AgentState().explanation.headline == "Pending after 0 steps. Nothing has been decided yet."
    request = ContinuationEvaluation("ToolCallPresenceCheck", REQUEST, AWAITS)
    state = session(steps=1, tool_calls=1)
    going_on = state.with_continuation_outcome(
        ContinuationOutcome(REQUEST, "ToolCallPresenceCheck", None, (request,))
    )
    expected = f"In progress, after 1 step. ToolCallPresenceCheck decided: {AWAITS}."
    assert going_on.explanation.headline == expected


async def test_the_headline_of_a_pause_says_when_every_question_is_decided() -> None:
    paused = await scripted(call("pay", {"amount": 5}), tools=[paying()]).run("go")
    decided = paused.approve(paused.pending_calls[0].id)
    assert decided.explanation.headline == (
        "Paused in step 1. Every question is decided, so the run can be resumed."
    )


async def test_a_pause_is_explained_with_the_questions_that_are_still_open() -> None:
    asked = calls(call("pay", {"amount": 5}), call("pay", {"amount": 6}))
    paused = await scripted(asked, tools=[paying()]).run("go")
    assert "What each rule decided in the middle of step 1\n" in paused.explain()
    one_left = paused.approve(paused.pending_calls[0].id)
    expected = "Paused in step 1. ApprovalRequired decided: pay waits for approval."
    assert one_left.explanation.headline == expected
    for state in (one_left, one_left.deny(one_left.pending_calls[0].id), paused_and_denied(paused)):
        assert "What each rule decided in the middle of step 1, before people decided\n" in state.explain()


def paused_and_denied(state: AgentState) -> AgentState:
    for pending in state.pending_calls:
        state = state.deny(pending.id)
    return state


def test_an_outcome_without_evaluations_still_has_a_headline() -> None:
    state = session(steps=1).with_continuation_outcome(
        ContinuationOutcome(FORBID, "StepsLimit", StopReason.STEPS_LIMIT_REACHED)
    )
    explanation = state.explanation
    assert explanation.headline == "Stopped after 1 step (steps_limit). StepsLimit decided."
    assert explanation.deciding is None
    assert lines(state) == ["grant more steps: resume(state, grant=Budget(steps=10))"]


# The steps


async def test_a_step_has_its_work_and_the_decision_after_it() -> None:
    agent = scripted(
        calls(call("echo"), call("broken"), usage=1200),
        text("done", usage=30),
        tools=[echo, broken],
        error_policy=ErrorPolicy.retry_tool_errors(),
    )
    first, second = (await agent.run("go")).explanation.steps
    assert (first.number, first.summary) == (1, "echo ok; broken failed: RuntimeError in broken")
    assert [(c.tool_call_id, c.tool, c.status, c.error) for c in first.calls] == [
        ("call_1", "echo", CallStatus.SUCCEEDED, None),
        ("call_2", "broken", CallStatus.FAILED, "RuntimeError in broken"),
    ]
    assert (first.tokens, first.decision, first.resolved_by) == (1200, REQUEST, "ToolCallPresenceCheck")
    assert (first.verdict, first.policy) == ("continue", "Tool error, retrying (1/3)")
    assert (second.summary, second.verdict, second.policy) == ("answered", "stop (completed)", None)


async def test_a_model_call_that_failed_is_the_error_of_its_step() -> None:
    (step,) = (await scripted(ModelError("the line is dead")).run("go")).explanation.steps
    assert (step.error, step.calls) == ("the line is dead", ())
    assert step.summary == "the model call failed: the line is dead"


async def test_an_empty_answer_is_named() -> None:
    agent = scripted(call("echo"), "", tools=[echo])
    assert (await agent.run("go")).explanation.steps[-1].summary == "gave an empty answer"


def test_a_step_that_was_cut_off_says_why() -> None:
    state = session(steps=1)
    cut = replace(state.steps[0], interrupted=Interruption.OUT_OF_TIME)
    (step,) = replace(state, steps=state.steps.with_last(cut)).explanation.steps
    text = "cut off: the time for this execution was up"
    assert (step.interrupted, step.summary) == (text, text)


async def test_an_open_step_shows_how_far_each_call_has_come() -> None:
    asked = calls(*(call("pay", {"amount": amount}) for amount in (1, 2, 3)), call("echo"))
    paused = await scripted(asked, tools=[paying(), echo]).run("go")
    first, second, _ = (question.id for question in paused.pending_calls)
    (step,) = paused.approve(first, by="ada").deny(second, "too much", by="bob").explanation.steps
    assert step.is_open
    assert step.verdict is None
    assert [c.status for c in step.calls] == ["not_started", "not_completed", "waiting", "succeeded"]
    assert step.summary == "pay approved by ada; pay denied by bob: too much; pay waits for a person; echo ok"


@pytest.mark.parametrize(
    ("explained", "line"),
    [
        (CallExplanation(tool_call_id="1", tool="pay", status=CallStatus.STARTED), "pay started"),
        (CallExplanation(tool_call_id="1", tool="pay", status=CallStatus.NOT_STARTED), "pay not started"),
        (
            CallExplanation(tool_call_id="1", tool="pay", status=CallStatus.FAILED),
            "pay failed: no reason given",
        ),
        (CallExplanation(tool_call_id="1", tool="pay", status=CallStatus.NOT_COMPLETED), "pay not completed"),
        (
            CallExplanation(
                tool_call_id="1",
                tool="pay",
                status=CallStatus.SUCCEEDED,
                approvals=(Approval(Verdict.EDITED, "ada", START, "Pay?"),),
                changed_by=("round_up", "convert"),
            ),
            "pay ok, edited by ada, changed by round_up, changed by convert",
        ),
    ],
)
def test_a_call_on_one_line(explained: CallExplanation, line: str) -> None:
    assert explained.text == line


async def test_only_the_current_execution_is_explained() -> None:
    agent = scripted(call("echo"), "one", "two", tools=[echo])
    state = await agent.run("second", state=await agent.run("first"))
    assert [(step.number, step.summary) for step in state.explanation.steps] == [(1, "answered")]


async def test_one_step_of_the_session_is_explained_by_its_number() -> None:
    agent = scripted(call("echo"), "one", "two", tools=[echo])
    state = await agent.run("second", state=await agent.run("first"))
    first, third = explanation_of_step(state, 1), explanation_of_step(state, 3)
    assert first.headline == f"Continued, decided by ToolCallPresenceCheck: {AWAITS}."
    assert (first.status, [step.number for step in first.steps]) == ("in_progress", [1])
    assert third.headline == f"Stopped (completed), decided by ToolCallPresenceCheck: {ANSWERED}."
    assert (third.status, [step.number for step in third.steps]) == ("completed", [3])
    assert third.evaluations == state.steps[2].outcome.evaluations  # type: ignore[union-attr]
    assert "What each rule decided after step 3" in str(third)


@pytest.mark.parametrize("number", [0, -1, 2])
def test_a_step_that_does_not_exist_is_refused(number: int) -> None:
    with pytest.raises(ConfigurationError, match=f"invalid step {number}: the session has 1 step"):
        explanation_of_step(session(steps=1), number)


def test_a_step_without_an_outcome_is_explained_too() -> None:
    assert explanation_of_step(session(steps=1), 1).headline == "Nothing was decided after step 1."


# The evaluations


async def test_every_forbid_is_named() -> None:
    def closed(state: AgentState) -> bool:
        return False

    agent = scripted(call("broken", usage=9), tools=[broken], max_steps=1, max_tokens=5, criteria=[closed])
    explanation = (await agent.run("go")).explanation
    forbidding = [e.criterion for e in explanation.evaluations if e.decision is FORBID]
    assert forbidding == ["ErrorPolicyCriterion", "StepsLimit", "TokenUsageLimit", "closed"]
    shown = [line.split()[1] for line in str(explanation).splitlines() if line.startswith("  forbid")]
    assert shown == forbidding
    assert explanation.deciding is explanation.evaluations[0]


def test_the_deciding_one_of_two_rules_with_one_name_is_marked() -> None:
    allowed = ContinuationEvaluation("StepsLimit", ALLOW, "5 of 20 steps used")
    forbade = ContinuationEvaluation("StepsLimit", FORBID, "50 of 50", {}, StopReason.STEPS_LIMIT_REACHED)
    assert judged(session(steps=1), allowed, forbade).explanation.deciding is forbade


async def test_a_resumed_run_shows_the_earlier_decisions_of_its_rules() -> None:
    agent = scripted(call("echo"), tools=[echo], max_steps=1)
    stopped = await agent.run("go")
    pending = agent.restart(stopped)
    explanation = pending.explanation
    assert (explanation.status, explanation.stop_reason) == ("pending", None)
    assert explanation.evaluations == stopped.explanation.evaluations


# What would let the run continue


@pytest.mark.parametrize(
    ("options", "expected", "grant"),
    [
        ({"max_steps": 1}, "grant more steps: resume(state, grant=Budget(steps=10))", Budget(steps=10)),
        (
            {"max_tokens": 5},
            "grant more tokens: resume(state, grant=Budget(tokens=10000))",
            Budget(tokens=10_000),
        ),
        (
            {"cumulative_timeout": 5},
            "grant more time: resume(state, grant=Budget(seconds=300))",
            Budget(seconds=300),
        ),
        (
            {"max_steps": 1, "max_tokens": 5},
            "grant more steps and tokens: resume(state, grant=Budget(steps=10, tokens=10000))",
            Budget(steps=10, tokens=10_000),
        ),
    ],
)
async def test_a_limit_asks_for_a_grant_and_the_grant_is_enough(
    options: dict[str, Any], expected: str, grant: Budget
) -> None:
    clock = FakeClock()

    @tool
    async def work() -> str:
        """Work."""
        clock.advance(6)
        return "done"

    agent = scripted(call("work", usage=9), "done", tools=[work], clock=clock, **options)
    state = await agent.run("go")
    (action,) = state.explanation.next_actions
    assert (action.kind, str(action), action.grant) == (ActionKind.GRANT, expected, grant)
    resumed = await eval(action.code or "", {"resume": agent.resume, "state": state, "Budget": Budget})
    assert resumed.status == "completed"


@pytest.mark.parametrize(
    ("failure", "options", "expected"),
    [
        (call("broken"), {}, "let the model correct itself: error_policy=ErrorPolicy.retry_tool_errors()"),
        (call("nothing"), {}, "let the model correct itself: error_policy=ErrorPolicy.retry_tool_errors()"),
        (ModelError("dead"), {}, "retry the model call: error_policy=ErrorPolicy.retry_all()"),
        (
            call("broken"),
            {"error_policy": ErrorPolicy.retry_tool_errors(1)},
            "allow more retries: error_policy=ErrorPolicy.retry_tool_errors(max_retries=10)",
        ),
        (
            ModelError("dead"),
            {"error_policy": ErrorPolicy.retry_all(1)},
            "allow more retries: error_policy=ErrorPolicy.retry_all(max_retries=10)",
        ),
        (
            call("slow"),
            {},
            "let the model try again: error_policy=ErrorPolicy.retry_tool_errors()",
        ),
        (
            text('{"name": "broken", "arguments": {}}'),
            {},
            "let the model correct itself: error_policy=ErrorPolicy.retry_tool_errors()",
        ),
        (
            ResponseValidationError("rubbish"),
            {},
            "retry the model call: error_policy=ErrorPolicy.retry_tool_errors()",
        ),
        (
            KeyError("choices"),
            {},
            "repair the code that raised, or retry the model call: error_policy=ErrorPolicy.retry_all()",
        ),
    ],
)
async def test_an_error_asks_for_another_policy_and_the_policy_is_enough(
    failure: Any, options: dict[str, Any], expected: str
) -> None:
    state = await scripted(failure, failure, tools=[broken, slow], **options).run("go")
    change, then = state.explanation.next_actions
    assert (change.kind, str(change)) == (ActionKind.CHANGE_POLICY, expected)
    assert str(then) == "then resume the run: resume(state)"
    patient = eval(
        f"scripted(failure, 'done', tools=[broken, slow], {change.code})", {**globals(), **locals()}
    )
    assert (await eval(then.code or "", {"resume": patient.resume, "state": state})).status == "completed"


@pytest.mark.parametrize("policy", [ErrorPolicy(), ErrorPolicy.retry_all(1)], ids=["stop", "retries ran out"])
@pytest.mark.parametrize("method", ["before_tool", "around_tool"])
async def test_a_bug_in_a_hook_asks_to_repair_the_hook(method: str, policy: ErrorPolicy) -> None:
    class Broken(Hook):
        pass

    async def fail(self: Hook, *given: Any) -> Any:
        raise KeyError("price")

    setattr(Broken, method, fail)
    asked = [call("echo"), call("echo")]
    state = await scripted(*asked, tools=[echo], hooks=[Broken()], error_policy=policy).run("go")
    assert state.status == "failed"
    assert lines(state) == ["repair the hook around echo", "then resume the run: resume(state)"]
    assert (await scripted("done", tools=[echo]).resume(state)).status == "completed"


@pytest.mark.parametrize(
    ("validator", "expected"),
    [
        (lambda value: dict[str, int]()["price"], "repair the code that raised, or retry the model call: "),
        (lambda value: None, "repair the code or the option that failed"),
    ],
    ids=["raises", "returns nothing"],
)
async def test_a_bug_in_a_validator_asks_to_repair_it(validator: Any, expected: str) -> None:
    agent = scripted("3", output_type=int, output_validators=[validator])
    action, then = lines(await agent.run("go"))
    assert action.startswith(expected)
    assert then == "then resume the run: resume(state)"


async def test_more_retries_are_more_than_there_were() -> None:
    failures = [ModelError("dead")] * 26
    options: dict[str, Any] = {"error_policy": ErrorPolicy.retry_all(25), "backoff": Backoff(base=1, cap=1)}
    state = await scripted(*failures, max_steps=30, **options).run("go")
    assert lines(state)[0] == "allow more retries: error_policy=ErrorPolicy.retry_all(max_retries=52)"


async def test_a_pending_call_asks_for_a_decision_and_the_decision_is_enough() -> None:
    agent = scripted(call("pay", {"amount": 5}), "done", tools=[paying()])
    state = await agent.run("go")
    decide, then = state.explanation.next_actions
    question = state.pending_calls[0].id
    assert (decide.kind, decide.question_id) == (ActionKind.DECIDE, question)
    assert str(decide) == f"approve or deny question {question} of pay: state.approve('{question}')"
    approved = eval(decide.code or "", {"state": state})
    assert lines(approved) == ["resume the run: resume(state)"]
    assert (await eval(then.code or "", {"resume": agent.resume, "state": approved})).status == "completed"


async def test_a_stop_request_asks_for_nothing_but_a_resume() -> None:
    @tool
    async def stop() -> str:
        """Stop."""
        agent.request_stop("enough")
        return "stopping"

    agent = scripted(call("stop"), "done", tools=[stop])
    state = await agent.run("go")
    assert lines(state) == ["resume the run: resume(state)"]
    assert (await agent.resume(state)).status == "completed"


@pytest.mark.parametrize(
    ("finish_reason", "expected"),
    [
        ("length", "raise the model's output limit, or accept such answers: finish_reasons=()"),
        ("content_filter", "accept such answers: finish_reasons=()"),
    ],
)
async def test_a_terminal_finish_reason_asks_for_other_rules(finish_reason: Any, expected: str) -> None:
    state = await scripted(text("cut", finish_reason=finish_reason)).run("go")
    assert kinds(state) == ["change_rule", "resume"]
    assert lines(state)[0] == expected
    lenient = eval(
        f"scripted(text('cut', finish_reason=finish_reason), {state.explanation.next_actions[0].code})",
        {**globals(), "finish_reason": finish_reason},
    )
    assert (await lenient.resume(state)).status == "completed"


async def test_a_guard_and_a_rule_that_raised_are_named() -> None:
    def closed(state: AgentState) -> bool:
        return False

    def wrong(state: AgentState) -> bool:
        raise KeyError("price")

    state = await scripted("hi", criteria=[closed, wrong], max_steps=1).run("go")
    assert lines(state) == [
        "satisfy or change closed",
        "repair or satisfy wrong",
        "grant more steps: resume(state, grant=Budget(steps=10))",
    ]


async def test_an_ignored_model_failure_asks_to_retry_it() -> None:
    policy = ErrorPolicy(on_model_error="ignore")  # type: ignore[arg-type]
    state = await scripted(ModelError("dead"), error_policy=policy).run("go")
    assert (state.status, state.last_continuation_outcome.resolved_by) == (  # type: ignore[union-attr]
        "failed",
        "ToolCallPresenceCheck",
    )
    assert lines(state)[0] == "retry the model call: error_policy=ErrorPolicy.retry_all()"


async def test_a_run_that_was_stopped_while_a_call_waits_asks_for_the_decision_too() -> None:
    paused = await scripted(call("pay", {"amount": 5}), tools=[paying()]).run("go")
    assert paused.last_continuation_outcome is not None
    waits = paused.last_continuation_outcome.evaluations[-1]
    stop = ContinuationEvaluation("StopRequestedCheck", FORBID, "enough", {}, StopReason.USER_REQUESTED)
    stopped = judged(paused, stop, waits)
    assert (stopped.status, kinds(stopped)) == ("stopped", ["decide", "resume"])


def test_before_a_run_the_next_action_is_to_begin() -> None:
    assert lines(AgentState()) == ['ask a question: run("…", state=state)']
    pending = scripted().start("go")
    assert lines(pending) == ["start the run: resume(state)"]
    begun = Begun(START).apply_to(pending)
    assert lines(begun) == ["resume the run, if its process has ended: resume(state)"]


async def test_a_completed_run_needs_nothing() -> None:
    state = await scripted("hi").run("go")
    assert state.explanation.next_actions == ()
    assert "To continue" not in state.explain()
    assert "To continue" not in state.explanation.to_markdown()


async def test_no_content_of_a_context_changes_the_next_actions() -> None:
    agent = scripted(call("broken"), tools=[broken], max_steps=1)
    state = await agent.run("go")
    outcome = state.last_continuation_outcome
    assert outcome is not None
    others = tuple(
        replace(e, context={"pending": [], "used": "?"}) if e.criterion != "ErrorPolicyCriterion" else e
        for e in outcome.evaluations
    )
    changed = replace(state, last_continuation_outcome=replace(outcome, evaluations=others))
    assert changed.explanation.next_actions == state.explanation.next_actions


# Text


async def test_the_text_is_that_of_the_explanation() -> None:
    agent = scripted(call("echo", usage=1200), call("broken"), tools=[echo, broken])
    state = await agent.run("go")
    assert state.explain() == str(state.explanation)
    assert state.explain() == (
        "Failed after 2 steps (error). ErrorPolicyCriterion decided: "
        "Tool error, stopped by policy: RuntimeError in broken.\n"
        "\n"
        "Steps\n"
        "    1  echo ok  [1,200 tokens, 0 ms]  → continue, ToolCallPresenceCheck\n"
        "    2  broken failed: RuntimeError in broken  [0 ms]  → stop (error), ErrorPolicyCriterion\n"
        "\n"
        "What each rule decided after step 2\n"
        "  forbid  ErrorPolicyCriterion   Tool error, stopped by policy: RuntimeError in broken\n"
        "  allow   StopRequestedCheck     No stop was requested\n"
        "  allow   StepsLimit             2 of 20 steps used\n"
        "  allow   ExecutionTimeLimit     0.0 of 300 s used\n"
        '  allow   FinishReasonCheck      The model finished with "tool_calls"\n'
        "  allow   ApprovalRequired       No tool call waits for a person\n"
        f"  request ToolCallPresenceCheck  {AWAITS}\n"
        "\n"
        "To continue\n"
        "  let the model correct itself: error_policy=ErrorPolicy.retry_tool_errors()\n"
        "  then resume the run: resume(state)"
    )


@pytest.mark.parametrize(("steps", "hidden"), [(MOST_STEPS, 0), (MOST_STEPS + 1, 1), (1_000, 940)])
def test_the_middle_of_a_long_run_is_left_out_of_the_text_only(steps: int, hidden: int) -> None:
    state = session(steps=steps, tool_calls=1)
    explanation = state.explanation
    assert [step.number for step in explanation.steps] == list(range(1, steps + 1))
    assert len(explanation_of(state, most_steps=MOST_STEPS).steps) == min(steps, MOST_STEPS)
    assert str(explanation) == state.explain()
    left_out = [line for line in state.explain().splitlines() if "left out here" in line]
    noun = "step" if hidden == 1 else "steps"
    assert [line.strip() for line in left_out] == (
        [f"…  {hidden} {noun} more, left out here"] if hidden else []
    )
    numbered = [line for line in state.explain().splitlines() if "echo ok" in line]
    assert {line.index("echo") for line in numbered} == {7 if steps < 1_000 else 8}
    assert numbered[-1].split()[0] == str(steps)
    assert explanation.to_markdown().count("| echo ok |") == min(steps, MOST_STEPS)


# Markdown


async def test_markdown_has_a_paragraph_two_tables_and_a_list() -> None:
    def is_open(state: AgentState) -> bool:
        return True

    agent = scripted(call("echo", usage=1200), tools=[echo], max_steps=1, criteria=[is_open])
    assert (await agent.run("go")).explanation.to_markdown() == (
        r"**Stopped after 1 step (steps\_limit). StepsLimit decided: Limit reached: 1 of 1 steps used.**"
        "\n\n"
        "| step | what it did | tokens | time | then | decided by |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| 1 | echo ok | 1,200 | 0 ms | stop (steps\\_limit) | StepsLimit |\n"
        "\n"
        "| decision | rule | reason, after step 1 |\n"
        "| --- | --- | --- |\n"
        "| allow | ErrorPolicyCriterion | No errors present |\n"
        "| allow | StopRequestedCheck | No stop was requested |\n"
        "| forbid | StepsLimit | Limit reached: 1 of 1 steps used |\n"
        "| allow | ExecutionTimeLimit | 0.0 of 300 s used |\n"
        '| allow | FinishReasonCheck | The model finished with "tool\\_calls" |\n'
        "| allow | is\\_open | is\\_open permits continuation |\n"
        "| allow | ApprovalRequired | No tool call waits for a person |\n"
        f"| request | ToolCallPresenceCheck | {AWAITS} |\n"
        "\n"
        "To continue:\n"
        "\n"
        "- grant more steps: `resume(state, grant=Budget(steps=10))`"
    )


@pytest.mark.parametrize("code", ["a", "a`b", "``a```b`", "`"])
def test_no_backtick_ends_the_code_of_an_action(code: str) -> None:
    action = NextAction(kind=ActionKind.DECIDE, text="decide", code=code)
    shown = Explanation(headline="So.", status=AgentState().status, next_actions=(action,)).to_markdown()
    last = shown.splitlines()[-1].removeprefix("- decide: ")
    fence = re.match("`+", last)
    assert fence is not None
    inner = last[len(fence[0]) : -len(fence[0])]
    assert last.endswith(fence[0])
    assert inner.strip(" ") == code.strip(" ")
    assert all(len(run) < len(fence[0]) for run in re.findall("`+", inner))


# Untrusted text


def hostile() -> AgentState:
    """A run in which every text that comes from outside is hostile."""

    async def fail(value: str = "") -> str:
        """Fail."""
        raise RuntimeError(EVIL)

    def guard(state: AgentState) -> ContinuationEvaluation:
        return ContinuationEvaluation(EVIL, FORBID, EVIL * 40)

    asked = calls(call("fail", {"value": EVIL}, id=EVIL), call(EVIL), text=EVIL)
    agent = scripted(asked, tools=[tool(name="fail")(fail)], criteria=[guard])
    return asyncio.run(agent.run(EVIL))


def hostile_pause() -> AgentState:
    """A pause in which a call with a hostile id waits, and another was denied with a hostile reason."""
    asked = calls(call("pay", {"amount": 1}, id=EVIL), call("pay", {"amount": 2}))
    paused = asyncio.run(scripted(asked, tools=[paying()]).run("go"))
    return paused.deny(paused.pending_calls[1].id, EVIL, by=EVIL)


@pytest.mark.parametrize("state", [hostile(), hostile_pause()], ids=["stopped", "paused"])
def test_hostile_text_steers_no_terminal_and_breaks_no_line(state: AgentState) -> None:
    explanation = state.explanation
    shown = [
        state.explain(),
        explanation.to_markdown(),
        explanation.headline,
        *(step.summary for step in explanation.steps),
        *(
            text
            for step in explanation.steps
            for call in step.calls
            for text in (call.tool_call_id, call.tool)
        ),
        *(call.error or "" for step in explanation.steps for call in step.calls),
        *map(str, explanation.next_actions),
    ]
    assert [char for text in shown for char in text if not char.isprintable() and char != "\n"] == []
    evaluations, actions = len(explanation.evaluations), len(explanation.next_actions)
    assert len(state.explain().splitlines()) == 1 + 3 + 2 + evaluations + 2 + actions
    json.dumps(explanation.to_dict())


@pytest.mark.parametrize("state", [hostile(), hostile_pause()], ids=["stopped", "paused"])
def test_hostile_text_is_escaped_in_markdown(state: AgentState) -> None:
    for line in state.explanation.to_markdown().splitlines():
        unescaped = re.sub(r"\\.", "", re.sub(r"(`+) .*? \1", "", line))
        if line.startswith("|"):
            assert unescaped.count("|") in (4, 7)
        assert not re.search(r"[<>\[\]#!~]", unescaped)
        assert "**" not in unescaped.removeprefix("**").removesuffix("**")


@given(st.text(max_size=200), st.text(max_size=80))
def test_any_reason_of_any_rule_can_be_shown(reason: str, name: str) -> None:
    evaluation = ContinuationEvaluation(name, FORBID, reason)
    state = judged(session(steps=1), evaluation)
    shown = state.explain().splitlines()
    assert len(shown) == 11
    assert all(char.isprintable() or char in "\u200c\u200d" for line in shown for char in line)
    assert state.explanation.to_markdown().count("\n") == 13
    assert state.explanation.deciding is evaluation


# Plain data


async def test_as_plain_data_it_has_every_field() -> None:
    state = await scripted(call("echo", usage=7), tools=[echo], max_steps=1).run("go")
    document = json.loads(json.dumps(state.explanation.to_dict()))
    assert {key: document[key] for key in ("status", "stop_reason", "decision", "resolved_by")} == {
        "status": "stopped",
        "stop_reason": "steps_limit",
        "decision": "forbid",
        "resolved_by": "StepsLimit",
    }
    assert document["headline"] == state.explanation.headline
    (step,) = document["steps"]
    assert set(step) == set(StepExplanation.__struct_fields__)
    assert (step["number"], step["summary"], step["tokens"]) == (1, "echo ok", 7)
    assert step["calls"] == [
        {
            "tool_call_id": "call_1",
            "tool": "echo",
            "status": "succeeded",
            "error": None,
            "approvals": [],
            "changed_by": [],
        }
    ]
    assert document["evaluations"][2]["criterion"] == "StepsLimit"
    assert document["next_actions"] == [
        {
            "kind": "grant",
            "text": "grant more steps",
            "code": "resume(state, grant=Budget(steps=10))",
            "question_id": None,
            "grant": {"steps": 10},
        }
    ]


async def test_a_stored_state_is_explained_the_same() -> None:
    state = await scripted(call("pay", {"amount": 5}), tools=[paying()]).run("go")
    assert AgentState.from_dict(state.to_dict()).explanation == state.explanation


async def test_calls_that_repeat_are_counted_with_their_arguments_in_short() -> None:
    script = [call("echo", {"value": "a"}), call("echo", {"value": "b"}), call("echo", {"value": "a"})]
    state = await scripted(*script, tools=[echo], max_steps=3).run("go")
    (repeated,) = state.explanation.repeated_calls
    assert (repeated.tool, repeated.args_summary, repeated.count) == ("echo", "value: 'a'", 2)
    assert "echo(value: 'a') 2 times" in state.explain()
    assert "echo(value: 'a') 2 times" in state.explanation.to_markdown()


async def test_the_summary_of_repeated_calls_has_no_secret() -> None:
    script = [call("echo", {"value": "sk-live-abcdefghijklmnopqrstuvwxyz"})] * 2
    state = await scripted(*script, tools=[echo], max_steps=2).run("go")
    assert "sk-live" not in state.explain()


async def test_the_headline_names_every_rule_that_forbade() -> None:
    def never(state: AgentState) -> bool:
        return False

    state = await scripted(call("echo"), tools=[echo], max_steps=1, criteria=never).run("go")
    headline = state.explanation.headline
    assert headline.startswith("Stopped after 1 step (steps_limit). StepsLimit decided: ")
    assert headline.endswith(" Also forbidden by never (never forbade continuation).")


async def test_decisions_about_the_run_itself_are_in_the_explanation() -> None:
    state = await scripted(call("echo"), tools=[echo], max_steps=1).run("go")
    at = state.state_info.updated_at
    state = (
        Recovered(at, question=Question("q1", "Continue?")).apply_to(state).approve("q1", by="ada", now=at)
    )
    (approval,) = state.explanation.approvals
    assert (approval.by, approval.question) == ("ada", "Continue?")
