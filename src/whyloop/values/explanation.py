"""The reasons why a run continued or stopped, as a value that renderers show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.values import encoding
from whyloop.values.approval import Approval
from whyloop.values.call_explanation import (
    ERROR_LENGTH,
    CallExplanation,
    calls_of,
    failure_text,
    open_calls_of,
)
from whyloop.values.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)
from whyloop.values.failure import ErrorHandlingDecision, Failure
from whyloop.values.messages import ToolCall
from whyloop.values.model import ModelSource
from whyloop.values.next_action import NAME_LENGTH, NextAction, next_actions_of
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import OpenStep, Step, end_error
from whyloop.values.summaries import args_summary, attempts_summary, failed_attempts
from whyloop.values.text import counted, shortened

T = TypeVar("T")

NOTE_LENGTH = 200
REASON_LENGTH = 300

# The number of latest steps whose calls are compared, and of repeated calls to show.
MOST_COMPARED = 1000
MOST_REPEATED = 5


class StepExplanation(Struct, frozen=True, kw_only=True):
    """The explanation of one step and of the decision after it."""

    number: int
    """Its number in the execution; if only this step is explained, in the session."""
    summary: str
    """Its work on one line: "search ok; pay failed: no funds"."""
    calls: tuple[CallExplanation, ...] = ()
    """Its tool calls, in call order."""
    notes: tuple[str, ...] = ()
    """Notes about the model's answer, such as a fallback to another model, or requests that were repeated."""
    error: str | None = None
    """Why the model call failed, if it did."""
    interrupted: str | None = None
    """Why the step was cut off, if it was."""
    tokens: int = 0
    """The tokens that it used, read and written together."""
    cost: Decimal | None = None
    """Their cost in US dollars; None if it is unknown."""
    duration_ms: float = 0.0
    """How long it took."""
    unknown: tuple[str, ...] = ()
    """The amounts that were not fully recorded: "tokens", so that `tokens` is a lower bound, and "time"."""
    decision: ContinuationDecision | None = None
    """The decision after it; None while the step is open."""
    stop_reason: StopReason | None = None
    """Why the run ended with it; None if it did not."""
    resolved_by: str | None = None
    """The rule that decided."""
    policy: str | None = None
    """The decision of the error policy about a failure, if another rule decided the step."""
    feedback: tuple[str, ...] = ()
    """Why other rules gave feedback to the model after it, each with its name."""
    is_open: bool = False
    """True while its tool calls have not all ended."""
    wrap_up: str | None = None
    """The limit that ended the run, if the step is its wrap-up."""

    @property
    def verdict(self) -> str | None:
        """The consequence: "continue", "pause" or "stop (steps_limit)", if it is decided."""
        if self.decision is None:
            return None
        if self.decision.continues:
            return "continue"
        return f"stop ({self.stop_reason})" if self.stop_reason else "pause"


class RepeatedCall(Struct, frozen=True, kw_only=True):
    """A tool call that a run made repeatedly."""

    tool: str
    """The name of the tool."""
    args_summary: str
    """The first arguments, each cut short."""
    count: int
    """How often it was called."""

    @property
    def text(self) -> str:
        """The call on one line: "search(query: 'lamps') 3 times"."""
        return f"{self.tool}({self.args_summary}) {self.count} times"


class Explanation(Struct, frozen=True, kw_only=True):
    """The explanation of a run: its steps, its rules, and how to continue it.

    Its own texts are short and safe to print. Evaluations, approvals and the names of rules are shown as
    recorded, and may contain text of any length from models, tools and people.
    """

    headline: str
    """One line: the status, where, the stop reason, the rule that decided and its reason."""
    status: AgentStatus
    """The status of the run; if only one step is explained, the status after it."""
    stop_reason: StopReason | None = None
    """Why the run ended; None while it has not."""
    decision: ContinuationDecision | None = None
    """The latest decision."""
    resolved_by: str | None = None
    """The rule that made the latest decision."""
    steps: tuple[StepExplanation, ...] = ()
    """The steps of the execution in order; missing numbers were omitted."""
    cost: Decimal | None = None
    """The cost of all of them in US dollars; None if it is unknown."""
    known_cost: Decimal | None = None
    """The cost of the steps whose cost is known, a lower bound; None if there are none."""
    repeated_calls: tuple[RepeatedCall, ...] = ()
    """The tool calls that were made more than once with the same arguments, most often first."""
    evaluations: tuple[ContinuationEvaluation, ...] = ()
    """The last decision of every rule."""
    partial: bool = False
    """True if the last decision was recorded without the agent, so that the other rules were not asked."""
    approvals: tuple[Approval, ...] = ()
    """The decisions of people about the run itself, as recorded; those about a call are with the call."""
    next_actions: tuple[NextAction, ...] = ()
    """The actions that would let the run continue, in the order in which to do them."""

    @property
    def deciding(self) -> ContinuationEvaluation | None:
        """The evaluation that decided, or None where there was no rule to ask."""
        if self.resolved_by is None or self.decision is None:
            return None
        outcome = ContinuationOutcome(self.decision, self.resolved_by, self.stop_reason, self.evaluations)
        return outcome.resolving_evaluation

    def __str__(self) -> str:
        """Return the explanation as plain text."""
        from whyloop.values.explanation_text import text_of

        return text_of(self)

    def to_markdown(self) -> str:
        """Return the explanation as Markdown, with all texts escaped."""
        from whyloop.values.explanation_text import markdown_of

        return markdown_of(self)

    _repr_markdown_ = to_markdown

    def _repr_html_(self) -> str:
        from whyloop.values.explanation_text import html_of

        return html_of(self)

    def without_secrets(self, redaction: Redaction | None = DEFAULT_REDACTION) -> Explanation:
        """Return the explanation with secrets removed from its texts.

        Args:
            redaction: The rules for secrets; None removes nothing.
        """
        hidden: Explanation = self if redaction is None else _hidden(self, redaction)
        return hidden

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        document: dict[str, Any] = encoding.encode(self)
        return document


# A word at a cut may be the beginning of a secret, which does not look like one.
_LONG_WORD_AT_CUT = re.compile(r"[\w!#$%&*+./:;=?@^~-]{8,}+…", re.ASCII)


def _hidden(value: Any, redaction: Redaction) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return redaction.text(_LONG_WORD_AT_CUT.sub("…", value))
    if isinstance(value, Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        shown = {name: _hidden(field, redaction) for name, field in fields.items()}
        changed = {name: field for name, field in shown.items() if field is not fields[name]}
        return replace(value, **changed) if changed else value
    if isinstance(value, tuple):
        return tuple([_hidden(item, redaction) for item in value])
    return redaction.data(value) if isinstance(value, Mapping | list) and value else value


def explanation_of(state: AgentState, *, most_steps: int | None = None, debug: bool = False) -> Explanation:
    """Explain the current execution; `most_steps` leaves out the middle of it.

    With `debug`, the messages of tools' own exceptions are in it.
    """
    recorded = state.execution_steps
    steps = [_step(state, step, step.number, debug) for step in ends_of(recorded, most_steps)]
    if state.open_step is not None:
        steps.append(_open_step(state.open_step, debug))
    # A resumed run has no outcome yet: its rules were last evaluated after its last step.
    outcome = state.last_continuation_outcome or (recorded[-1].outcome if recorded else None)
    used = state.execution.usage
    return Explanation(
        headline=_headline(state),
        status=state.status,
        stop_reason=state.stop_reason,
        decision=outcome.decision if outcome else None,
        resolved_by=outcome.resolved_by if outcome else None,
        steps=tuple(steps),
        cost=used.cost,
        known_cost=used.known_cost if used.cost is None else used.cost,
        repeated_calls=_repeated_calls(state, recorded),
        evaluations=outcome.evaluations if outcome else (),
        partial=outcome is not None and outcome.partial,
        approvals=state.execution.approvals,
        next_actions=next_actions_of(state),
    )


def _repeated_calls(state: AgentState, steps: Sequence[Step]) -> tuple[RepeatedCall, ...]:
    """Return the calls that the latest steps repeated with the same arguments."""
    asked: dict[tuple[str, bytes], ToolCall] = {}
    counts: Counter[tuple[str, bytes]] = Counter()
    for step in steps[-MOST_COMPARED:]:
        for call in [call for message in state.messages_of(step)[:1] for call in message.tool_calls]:
            key = (call.name, encoding.comparable(call.arguments))
            counts[key] += 1
            asked[key] = call
    most = [(key, count) for key, count in counts.most_common(MOST_REPEATED) if count > 1]
    return tuple(_repeated(asked[key], count) for key, count in most)


def _repeated(call: ToolCall, count: int) -> RepeatedCall:
    summary = shortened(args_summary(call.arguments, redaction=DEFAULT_REDACTION), ERROR_LENGTH)
    return RepeatedCall(tool=shortened(call.name, NAME_LENGTH), args_summary=summary, count=count)


def explanation_of_step(state: AgentState, number: int) -> Explanation:
    """Explain one step of the session, counted from its first."""
    if not 1 <= number <= len(state.steps):
        has = counted(len(state.steps), "step")
        raise ConfigurationError(f"invalid step {number}: the session has {has}, counted from 1")
    step = state.steps[number - 1]
    shown, cost, outcome = (_step(state, step, number),), step.usage.cost, step.outcome
    if outcome is None:
        undecided = f"Nothing was decided after step {number}."
        status = AgentStatus.IN_PROGRESS
        return Explanation(headline=undecided, status=status, steps=shown, cost=cost, known_cost=cost)
    return Explanation(
        headline=f"{outcome_headline(outcome)}{_last_failure(outcome, step)}.",
        status=AgentStatus.after(outcome),
        stop_reason=outcome.stop_reason,
        decision=outcome.decision,
        resolved_by=outcome.resolved_by,
        steps=shown,
        cost=cost,
        known_cost=cost,
        evaluations=outcome.evaluations,
        partial=outcome.partial,
    )


def outcome_headline(outcome: ContinuationOutcome) -> str:
    """Return one line: continue, pause or stop, the rule that decided, its reason."""
    rule, reason = shortened(outcome.resolved_by, NAME_LENGTH), _reason(outcome)
    why = f": {reason}" if reason else ", since there are no criteria"
    if outcome.should_continue:
        return f"Continued, decided by {rule}{why}"
    if outcome.pauses:
        return f"Paused, decided by {rule}{why}"
    return f"Stopped ({outcome.stop_reason}), decided by {rule}{why}"


def interruption_text(step: Step) -> str | None:
    """Return why the step was interrupted, for people; None if it was not."""
    return None if step.interrupted is None else f"cut off: {step.interrupted.text}"


def ends_of(steps: Sequence[T], most: int | None) -> Sequence[T]:
    """Return the first and the last steps if there are more than `most`, else all."""
    if most is None or len(steps) <= most:
        return steps
    first = most // 2
    return (*steps[:first], *steps[len(steps) - (most - first) :])


def _headline(state: AgentState) -> str:
    open_step, outcome = state.open_step, state.last_continuation_outcome
    taken = counted(state.execution.step_count, "step")
    where = f"in step {open_step.number}" if open_step else f"after {taken}"
    note = state.current_step.wrap_up_note if state.current_step and not open_step else None
    match state.status:
        case AgentStatus.PENDING:
            return f"Pending {where}. Nothing has been decided yet."
        case AgentStatus.IN_PROGRESS:
            # While a step is open, the latest decision is about the one before it.
            verb, outcome = "In progress,", None if open_step else outcome
            if state.execution.wrap_up is not None:
                where = f"{where}, wrapping up"
        case AgentStatus.PAUSED if open_step and not state.pending_calls:
            return f"Paused {where}. Every question is decided, so the run can be resumed."
        case AgentStatus.PAUSED if open_step and any(call.approved for call in open_step.calls):
            waiting = ", ".join([call.question for call in state.pending_calls])
            return f"Paused {where}. ApprovalRequired decided: {shortened(waiting, REASON_LENGTH)}."
        case status:
            verb = status.capitalize()
    if outcome is None:
        return f"{verb} {where}."
    stop_reason = outcome.stop_reason
    named = f" ({stop_reason})" if stop_reason not in (None, StopReason.COMPLETED) else ""
    reason = _reason(outcome)
    why = f": {reason}{_last_failure(outcome, state.current_step)}" if reason else ""
    decided = f"{verb} {where}{named}. {shortened(outcome.resolved_by, NAME_LENGTH)} decided{why}."
    wrapped_up = f" {note[0].upper()}{note[1:].rstrip('.')}." if note and state.wrap_up else ""
    return f"{decided}{_other_forbids(outcome)}{wrapped_up}"


def _other_forbids(outcome: ContinuationOutcome) -> str:
    """Return a sentence about the other rules that would have ended the run."""
    if outcome.decision is not ContinuationDecision.FORBID_CONTINUATION:
        return ""
    deciding = outcome.resolving_evaluation
    forbids = [e for e in outcome.evaluations if e.decision is outcome.decision and e is not deciding]
    if not forbids:
        return ""
    named = [f"{shortened(e.criterion, NAME_LENGTH)} ({shortened(e.reason, 100)})" for e in forbids]
    return f" Also forbidden by {', '.join(named)}."


def _last_failure(outcome: ContinuationOutcome, step: Step | None) -> str:
    """Return the last failure after retries ran out, if that is why the run failed."""
    text = end_error(outcome, step).removeprefix(outcome.reason).rstrip(".")
    decided = outcome.resolving_evaluation
    if step is not None and decided is not None and decided.handling is ErrorHandlingDecision.STOP:
        text += "".join(map(_rejection, step.failures[:1]))
    return text


def _rejection(failure: Failure) -> str:
    """Return the message of the validator that rejected an answer, after a colon."""
    raised = failure.raised if failure.correction is not None else None
    return shortened((raised or "").removeprefix(failure.message), ERROR_LENGTH).rstrip(".")


def _step(state: AgentState, step: Step, number: int, debug: bool = False) -> StepExplanation:
    messages = state.messages_of(step)
    calls = calls_of(step, messages, debug)
    failure, interrupted = step.model_failure, interruption_text(step)
    wrong = next((failure for failure in step.failures if failure.readable), None)
    notes, attempts = _notes(step.source), attempts_summary(step.source)
    error = failure_text(failure, debug) if failure else None
    if error is not None:
        did = f"the model call failed{attempts and f' {attempts}'}: {error}"
    elif wrong is not None:
        text = wrong.message if wrong.correction else f"the answer was wrong: {wrong.message}"
        did = f"{shortened(text, ERROR_LENGTH)}{_rejection(wrong)}"
    elif calls:
        did = "; ".join(call.text for call in calls)
    else:
        did = interrupted or ("answered" if any(m.content for m in messages) else "gave an empty answer")
    if step.source is not None and attempts and error is None:
        # A run that was cut off may have ended before the request was repeated.
        is_cut = interrupted is not None
        notes = (*notes, f"failed with {failed_attempts(step.source)}" if is_cut else f"answered {attempts}")
        did = "" if did == "answered" else did
    if step.wrap_up is not None:
        did = f"wrap-up: {did}"
    outcome = step.outcome
    return StepExplanation(
        number=number,
        summary="; ".join(filter(None, [*notes, did])),
        calls=calls,
        notes=notes,
        error=error,
        interrupted=interrupted,
        tokens=step.usage.total,
        cost=step.usage.cost,
        duration_ms=round(step.duration_ms, 3),
        unknown=_unknown(step),
        decision=outcome.decision if outcome else None,
        stop_reason=outcome.stop_reason if outcome else None,
        resolved_by=outcome.resolved_by if outcome else None,
        policy=_policy(outcome) if outcome else None,
        feedback=_feedback(outcome) if outcome else (),
        wrap_up=None if step.wrap_up is None else shortened(step.wrap_up, NAME_LENGTH),
    )


def _notes(source: ModelSource | None) -> tuple[str, ...]:
    return tuple(shortened(note, NOTE_LENGTH) for note in source.notes) if source else ()


def _unknown(step: Step) -> tuple[str, ...]:
    """Return the facts that were not recorded about a step."""
    return (*(() if step.usage.reported else ("tokens",)), *(("time",) if step.untimed else ()))


def _open_step(step: OpenStep, debug: bool) -> StepExplanation:
    calls, notes = open_calls_of(step, debug), _notes(step.source)
    if attempts := attempts_summary(step.source):
        notes = (*notes, f"answered {attempts}")
    return StepExplanation(
        number=step.number,
        summary="; ".join([*notes, *[call.text for call in calls]]),
        calls=calls,
        notes=notes,
        tokens=step.usage.total,
        cost=step.usage.cost,
        duration_ms=round(step.seconds * 1000, 3),
        is_open=True,
    )


def _policy(outcome: ContinuationOutcome) -> str | None:
    policy = outcome.policy_evaluation
    return _text(policy) if policy and policy.criterion != outcome.resolved_by else None


def _feedback(outcome: ContinuationOutcome) -> tuple[str, ...]:
    if not outcome.should_continue:  # A run that ends sends the model nothing.
        return ()
    given = [e for e in outcome.evaluations if e.feedback and e.handling is None]
    return tuple([f"{shortened(e.criterion, NAME_LENGTH)}: {_text(e)}" for e in given])


def _reason(outcome: ContinuationOutcome) -> str | None:
    """Return the deciding rule's reason, without its full stop."""
    evaluation = outcome.resolving_evaluation
    return _text(evaluation) if evaluation else None


def _text(evaluation: ContinuationEvaluation) -> str:
    return shortened(evaluation.reason, REASON_LENGTH).rstrip(".")
