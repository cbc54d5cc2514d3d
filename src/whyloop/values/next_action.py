"""Actions that would let a run continue, derived from the fields of its state."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import reduce
from operator import add

from msgspec import Struct

from whyloop.values.approval import PendingCall
from whyloop.values.continuation import (
    Budget,
    ContinuationDecision,
    ContinuationEvaluation,
    StopReason,
)
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.model import FinishReason
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import shortened

NAME_LENGTH = 64

# The suggested increase of each limit: enough for some progress, but not for a runaway.
_GRANTS = {
    StopReason.STEPS_LIMIT_REACHED: ("steps", Budget(steps=10)),
    StopReason.TOKEN_LIMIT_REACHED: ("tokens", Budget(tokens=10_000)),
    StopReason.TIME_LIMIT_REACHED: ("time", Budget(seconds=300)),
}
# A limit on money has no stop reason of its own.
_COST_LIMIT = "CostLimit"
IMPORTED_RUN = "ImportedRun"
"""The name in the trace of an imported run, whose log, not a rule, says what happened."""
_MORE_MONEY = ("money", Budget(usd=1))
# `ErrorPolicy.retry_tool_errors` stops on these.
_NEEDS_RETRY_ALL = (ErrorType.MODEL, ErrorType.UNKNOWN)


class ActionKind(StrEnum):
    """The kinds of action that let a run continue."""

    ASK = "ask"
    DECIDE = "decide"
    CHANGE_POLICY = "change_policy"
    CHANGE_RULE = "change_rule"
    GRANT = "grant"
    RESUME = "resume"


class NextAction(Struct, frozen=True, kw_only=True):
    """One thing that would let a run continue."""

    kind: ActionKind
    """The instruction for a person."""
    text: str
    """The same as a short sentence, for people."""
    code: str | None = None
    """The Python expression, or the agent's option, that does it."""
    question_id: str | None = None
    """The question to decide."""
    grant: Budget | None = None
    """The budget to grant."""

    def __str__(self) -> str:
        """Return the sentence with its expression."""
        return f"{self.text}: {self.code}" if self.code else self.text


def next_actions_of(state: AgentState) -> tuple[NextAction, ...]:
    """Return the actions that let the run continue, in order; none if it is completed."""
    match state.status:
        case AgentStatus.COMPLETED:
            return ()
        case AgentStatus.PENDING if not state.messages:
            return (NextAction(kind=ActionKind.ASK, text="ask a question", code='run("…", state=state)'),)
        case AgentStatus.PENDING:
            return (_resume("start the run"),)
        case AgentStatus.IN_PROGRESS:
            return (_resume("resume the run, if its process has ended"),)
    decisions = tuple(_decide(call) for call in state.pending_calls)
    if state.status is AgentStatus.PAUSED:
        return (*decisions, _resume("then resume the run" if decisions else "resume the run"))
    return (*decisions, *_after_stop(state, after_others=bool(decisions)))


def _after_stop(state: AgentState, *, after_others: bool) -> Iterator[NextAction]:
    """Yield a change for each rule that forbids, then the call to resume the run."""
    in_the_way = _in_the_way(state)
    for evaluation in in_the_way:
        if change := _change(state, evaluation):
            after_others = True
            yield change
    reasons = dict.fromkeys([e.stop_reason for e in in_the_way] or [state.stop_reason])
    granted = [_GRANTS[reason] for reason in reasons if reason in _GRANTS]
    if any(map(_lacks_money, in_the_way)):
        granted.append(_MORE_MONEY)
    if granted:
        yield _grant([noun for noun, _ in granted], reduce(add, [budget for _, budget in granted]))
    else:
        yield _resume("then resume the run" if after_others else "resume the run")


def _in_the_way(state: AgentState) -> list[ContinuationEvaluation]:
    """Return the evaluations that forbid, except pauses, or the one that decided."""
    outcome = state.last_continuation_outcome
    if outcome is None:
        return []
    forbid = ContinuationDecision.FORBID_CONTINUATION
    forbidding = [e for e in outcome.evaluations if e.decision is forbid and not e.pauses]
    if state.wrap_up is not None:  # Other rules forbid only because of the wrap-up, which does not count.
        forbidding = [e for e in forbidding if e.exhausted]
    decided = outcome.resolving_evaluation
    return forbidding or ([decided] if decided else [])


def _change(state: AgentState, evaluation: ContinuationEvaluation) -> NextAction | None:
    """Return the change that this rule needs; None if a resume is enough."""
    if evaluation.criterion == IMPORTED_RUN:
        return None
    match evaluation.stop_reason:
        case StopReason.ERROR_FORBADE | StopReason.RETRY_LIMIT_REACHED as reason:
            forbids = evaluation.decision is ContinuationDecision.FORBID_CONTINUATION
            if evaluation.handling is not None or not forbids:
                failures = state.current_step.failures if state.current_step else ()
                return _change_after(failures[0], state, reason) if failures else None
            return _change_rule("repair or satisfy", evaluation)
        case StopReason.FINISH_REASON_RECEIVED:
            return _accept_finish_reason(state)
        case StopReason.GUARD_FORBADE if evaluation.criterion == _COST_LIMIT:
            return None if evaluation.exhausted else _ACCEPT_UNKNOWN
        case StopReason.GUARD_FORBADE | None:
            return _change_rule("satisfy or change", evaluation)
    return None


# Recorded usage without a price never gets one.
_ACCEPT_UNKNOWN = NextAction(
    kind=ActionKind.CHANGE_RULE,
    text="count known costs only, and pass prices=… for the next query",
    code='CostLimit(…, unknown="allow")',
)


def _lacks_money(evaluation: ContinuationEvaluation) -> bool:
    """Return whether a larger budget would satisfy the rule."""
    return evaluation.criterion == _COST_LIMIT and evaluation.exhausted


def _change_rule(verbs: str, evaluation: ContinuationEvaluation) -> NextAction:
    return NextAction(
        kind=ActionKind.CHANGE_RULE, text=f"{verbs} {shortened(evaluation.criterion, NAME_LENGTH)}"
    )


def _change_after(failure: Failure, state: AgentState, stop_reason: StopReason) -> NextAction | None:
    """Return the change after a failure, which depends on whose work failed."""
    is_bug = failure.type is ErrorType.UNKNOWN
    if is_bug and not failure.is_model_call:
        tool = shortened(failure.tool or "", NAME_LENGTH)
        return NextAction(kind=ActionKind.CHANGE_RULE, text=f"repair the hook around {tool}")
    if not failure.retryable:
        text = "repair the code or the option that failed"
        return NextAction(kind=ActionKind.CHANGE_RULE, text=text) if is_bug else None
    arguments = ""
    if stop_reason is StopReason.RETRY_LIMIT_REACHED:
        text = "allow more retries"
        arguments = f"max_retries={max(10, 2 * state.execution.failures.consecutive)}"
    elif is_bug:
        text = "repair the code that raised, or retry the model call"
    elif failure.is_model_call and not failure.readable:
        text = "retry the model call"
    else:
        text = (
            "let the model try again" if failure.type is ErrorType.TIMEOUT else "let the model correct itself"
        )
    preset = "retry_all" if failure.type in _NEEDS_RETRY_ALL else "retry_tool_errors"
    code = f"error_policy=ErrorPolicy.{preset}({arguments})"
    return NextAction(kind=ActionKind.CHANGE_POLICY, text=text, code=code)


def _accept_finish_reason(state: AgentState) -> NextAction:
    step = state.current_step
    cut_off = step is not None and step.finish_reason is FinishReason.LENGTH
    text = "raise the model's output limit, or accept such answers" if cut_off else "accept such answers"
    return NextAction(kind=ActionKind.CHANGE_RULE, text=text, code="finish_reasons=()")


def _decide(call: PendingCall) -> NextAction:
    question = shortened(call.id, NAME_LENGTH)
    return NextAction(
        kind=ActionKind.DECIDE,
        text=f"approve or deny question {question} of {shortened(call.tool, NAME_LENGTH)}",
        code=f"state.approve({question!r})",
        question_id=call.id,
    )


def _grant(nouns: list[str], budget: Budget) -> NextAction:
    return NextAction(
        kind=ActionKind.GRANT,
        text=f"grant more {' and '.join(nouns)}",
        code=f"resume(state, grant={budget})",
        grant=budget,
    )


def _resume(text: str) -> NextAction:
    return NextAction(kind=ActionKind.RESUME, text=text, code="resume(state)")
