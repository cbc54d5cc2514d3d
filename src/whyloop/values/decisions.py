"""The decisions of people, as the transitions that record them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from whyloop.errors import ApprovalError, ConfigurationError
from whyloop.values import encoding
from whyloop.values.approval import Approval, Question, Verdict
from whyloop.values.messages import ToolResult
from whyloop.values.state import UNNAMED_PERSON, AgentState
from whyloop.values.step import OpenCall
from whyloop.values.step_transitions import AnyTransition, CallFinished, Decided
from whyloop.values.text import clean, shortened
from whyloop.values.transitions import StopRequested


def decide(
    state: AgentState,
    question_id: str,
    verdict: Verdict,
    by: str,
    now: datetime,
    reason: str | None = None,
    arguments: Mapping[str, object] | None = None,
    key: str | None = None,
) -> list[AnyTransition]:
    """Return the transitions of a decision: none if it repeats an earlier one.

    Raise an `ApprovalError` with the open questions if the question is not open, or if it was decided
    differently.
    """
    by, reason, changed = _checked(verdict, by, reason, arguments)
    earlier = _decision_made(state, question_id)
    if earlier is not None:
        if (earlier.verdict, earlier.arguments) == (verdict, changed):
            return []
        raise ApprovalError(
            f"question {question_id!r} was already {earlier.verdict} by {earlier.by}, at "
            f"{earlier.at:%Y-%m-%d %H:%M:%S}",
            state.pending_calls,
        )
    decided = Decided(
        now, question_id=question_id, verdict=verdict, by=by, reason=reason, arguments=changed, key=key
    )
    question = state.execution.question
    if question is not None and question.id == question_id:
        if verdict is Verdict.EDITED:
            raise ConfigurationError(
                f"question {question_id!r} is about the run, not about a tool call, and has no arguments: "
                "approve it without arguments, or deny it"
            )
        if verdict is Verdict.DENIED:
            return [decided, StopRequested(now, reason=reason or f"{by} did not let it continue")]
        return [decided]
    try:
        if state.open_step is None:
            raise LookupError
        index, call = state.open_step.find_question(question_id)
    except LookupError:
        raise ApprovalError(
            f"no tool call waits for an answer to question {question_id!r}", state.pending_calls
        ) from None
    if verdict is Verdict.DENIED:
        return [decided, CallFinished(now, index=index, result=_denied(call, by, reason))]
    return [decided]


def uncertain_question(question_id: str, tool_name: str) -> Question:
    """Return the question about a call that may have run."""
    text = (
        f"It is unknown whether {shortened(tool_name, 64)} ran: it was interrupted before its result was "
        "recorded. Find out, then approve to run it again, or deny with the result that you found"
    )
    return Question(question_id, text, uncertain=True)


def fork_questions(state: AgentState, new_id: Callable[[], str]) -> dict[int, Question]:
    """Return the questions before a fork continues, by the index of each call.

    There is a question for every call without a result. No approval is inherited, and a call that may have
    run in the original is uncertain in the fork.
    """
    questions: dict[int, Question] = {}
    step = state.open_step
    if step is None:
        return questions
    for index, (asked, call) in enumerate(zip(step.tool_calls, step.calls, strict=True)):
        if call.is_done:
            continue
        if call.started:
            questions[index] = uncertain_question(new_id(), asked.name)
        else:
            questions[index] = Question(new_id(), f"{shortened(asked.name, 64)} waits for approval")
    return questions


def _denied(call: OpenCall, by: str, reason: str | None) -> ToolResult:
    """Return the result of a call that a person denied."""
    why = f": {reason}" if reason else ""
    if call.started:
        text = f"it was interrupted before its result was recorded, and {by} did not let it run again{why}"
        return ToolResult(f"Outcome unknown: {text}", f"outcome unknown: {text}")
    return ToolResult(f"Denied by {by}{why}", f"denied by {by}{why}")


def _decision_made(state: AgentState, question_id: str) -> Approval | None:
    """Return the decision on a question, in the open step or in a closed one."""
    open_calls = state.open_step.calls if state.open_step else ()
    for made in (state.execution.approvals, *[call.approvals for call in open_calls]):
        for approval in made:
            if approval.question_id == question_id:
                return approval
    for step in reversed(state.steps[state.steps.start :]):
        for run in step.tool_calls:
            for approval in run.approvals:
                if approval.question_id == question_id:
                    return approval
    return None


def _checked(
    verdict: Verdict, by: str, reason: str | None, arguments: Mapping[str, object] | None
) -> tuple[str, str | None, dict[str, Any] | None]:
    if not isinstance(by, str) or not isinstance(reason, str | None):
        raise ConfigurationError(f"invalid decision: `by` and `reason` must be text, not {by!r}, {reason!r}")
    changed = None
    if verdict is Verdict.EDITED:
        if not isinstance(arguments, Mapping):
            raise ConfigurationError(
                f"invalid arguments {shortened(repr(arguments), 80)}: pass a dict of arguments by name"
            )
        changed = encoding.jsonable(arguments)
    return clean(by).strip() or UNNAMED_PERSON, reason and clean(reason), changed
