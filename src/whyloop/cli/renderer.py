"""Sessions, steps and explanations as lines, for pipes and terminals, and the commands to continue with."""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from msgspec.structs import asdict

from whyloop.cli.formats import (
    AN_AGENT,
    Arguments,
    View,
    arguments_summary,
    command_line,
    exact_arguments,
    span_text,
    unique_length,
)
from whyloop.cli.terminal import is_terminal, terminal, write_lines
from whyloop.values.approval import Approval, PendingCall, Verdict
from whyloop.values.continuation import Budget, ContinuationOutcome, StopReason
from whyloop.values.explanation import REASON_LENGTH, Explanation, interruption_text
from whyloop.values.explanation_text import (
    evaluations_section,
    section,
    step_lines,
    steps_title,
)
from whyloop.values.messages import FilePart, ImagePart, Message, ToolCall
from whyloop.values.model import FinishReason, Usage
from whyloop.values.next_action import ActionKind, NextAction, next_actions_of
from whyloop.values.price import dollars
from whyloop.values.redaction import redacted, redacted_cut
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import OpenCall, OpenStep, Step, ToolRun
from whyloop.values.text import counted, printable, revealed, short_id, shortened

LONGEST_QUESTION = 600
LONGEST_RESULT = 200
LONGEST_TEXT = 2_000
LABEL_WIDTH = 9
NOTHING = "-"
GAP = "  "
ALL_DECIDED = "every question is decided: resume the session"


class Look(NamedTuple):
    """How a line looks: on a terminal a sign and styles, in a pipe a text."""

    sign: str
    sign_style: str
    head_style: str
    text_style: str
    plain: str
    """The line as text, with `text`, `head`, `note` and `measure` to be filled in."""


class Kind(Enum):
    """The subject of a line, with its look."""

    QUERY = Look("❯", "bold magenta", "", "bold", "\nuser: {text}")
    WAITED = Look("…", "yellow", "", "yellow", "\n({text})")
    STEP = Look("", "", "", "", "\n{text}")
    ANSWER = Look("◆", "blue", "", "", "  {head}: {text}{note}")
    DONE = Look("✓", "green", "bold", "", "  {head}({text}) ok{note}{measure}")
    FAILED = Look("✗", "red", "bold red", "", "  {head}({text}) failed{note}{measure}")
    DENIED = Look("–", "yellow", "bold", "", "  {head}({text}) denied{note}")
    PROBLEM = Look("✗", "red", "bold red", "", "  {head}: {text}{note}")
    OPEN = Look("?", "yellow", "bold", "yellow", "  {head}, {text}{note}{measure}")
    DECIDED = Look("✓", "magenta", "bold", "", "  {head}, {text}{note}{measure}")
    RESULT = Look("", "", "", "dim", "    {text}")
    ERROR = Look("", "", "", "", "    {text}")
    POLICY = Look("↻", "yellow", "bold yellow", "dim", "  {head}, {text}{note}{measure}")
    CONTINUE = Look("→", "cyan", "bold cyan", "dim", "  {head}, {text}{note}{measure}")
    COMPLETE = Look("■", "green", "bold green", "", "  {head}, {text}{note}{measure}")
    STOP = Look("■", "yellow", "bold yellow", "", "  {head}, {text}{note}{measure}")
    PAUSE = Look("‖", "yellow", "bold yellow", "", "  {head}, {text}{note}{measure}")


class Line(NamedTuple):
    """One thing that happened in a run."""

    kind: Kind
    text: str
    head: str = ""
    """The word that matters most, such as the name of a tool."""
    measure: str = ""
    """How long it took, or what it used."""
    note: str = ""
    """An addition, such as the hooks that changed a call."""

    def plain(self) -> str:
        """Return the line as text, for pipes and files."""
        note = f", {self.note}" if self.note else ""
        if self.kind is Kind.ANSWER and self.note:
            note = f" ({self.note})"
        return self.kind.value.plain.format(
            text=self.text.replace("\n", "\n    "),
            head=self.head or "assistant",
            note=note,
            measure=f" ({self.measure})" if self.measure else "",
        )


class SessionRow(NamedTuple):
    """A session as a list shows it."""

    id: str
    status: str
    stop_reason: str
    steps: str
    cost: str
    age: str
    runner: str
    title: str
    rule: str
    reason: str


def table_lines(rows: Sequence[Sequence[str]], to_the_right: Container[str] = ()) -> list[str]:
    """Return each row as a line, the headings first; columns with these headings end at their right edge."""

    def padded(column: Sequence[str]) -> list[str]:
        pad, width = str.rjust if column[0] in to_the_right else str.ljust, max(map(len, column))
        return [pad(cell, width) for cell in column]

    columns = map(padded, zip(*rows, strict=True))
    return [GAP.join(row).rstrip() for row in zip(*columns, strict=True)]


# Pieces that recorded and running sessions share


def decision_line(outcome: ContinuationOutcome, usage: Usage | None = None, ms: float | None = None) -> Line:
    """Return whether the run continued, the rule that decided, and what the step used."""
    deciding, rule = outcome.resolving_evaluation, outcome.resolved_by
    text = shortened(f"{rule}: {deciding.reason}" if deciding else rule, LONGEST_RESULT)
    took = "time unknown" if ms is None else span_text(ms / 1000)
    measure = " · ".join([*used_texts(usage), took]) if usage else ""
    if outcome.should_continue:
        return Line(Kind.CONTINUE, text, "continue", measure)
    if outcome.pauses:
        return Line(Kind.PAUSE, text, "pause", measure)
    kind = Kind.COMPLETE if outcome.stop_reason is StopReason.COMPLETED else Kind.STOP
    return Line(kind, text, f"stop ({outcome.stop_reason})", measure)


def used_texts(usage: Usage) -> list[str]:
    """Return the tokens and the cost, if known: "1,200 tokens", "$0.0123"."""
    tokens = [counted(usage.total, "token")] if usage.total else []
    return tokens if usage.cost is None else [*tokens, dollars(usage.cost)]


def model_problem(message: str, finish_reason: FinishReason | None) -> Line:
    """Return what is wrong with an answer, or why the model call failed."""
    text = shortened(message, LONGEST_RESULT) or "no reason given"
    return Line(Kind.PROBLEM, text, "the model call failed" if finish_reason is None else "wrong answer")


def changes_note(changed_by: Sequence[str], verb: str = "changed by") -> str:
    """Return which hooks changed something: "changed by cap_amount"."""
    return f"{verb} {', '.join(shortened(name, 64) for name in changed_by)}" if changed_by else ""


def joined_notes(*notes: str) -> str:
    """Return the notes that are not empty as one."""
    return ", ".join(filter(None, notes))


def approval_text(approval: Approval) -> str:
    """Return a person's decision: "edited by ada, 2026-03-01 12:00 UTC"."""
    reason = f": {shortened(approval.reason, REASON_LENGTH)}" if approval.reason else ""
    arguments = f": {' '.join(exact_arguments(approval.arguments))}" if approval.arguments is not None else ""
    when = f"{approval.at:%Y-%m-%d %H:%M} UTC"
    return f"{approval.verdict} by {shortened(approval.by)}, {when}{reason}{arguments}"


# A recorded session


def conversation(state: AgentState, view: View) -> Iterator[Line]:
    """Yield the conversation in order, without secrets unless the view shows them."""
    for line in _lines(state, view):
        yield line._replace(
            text=redacted_cut(line.text, view.redaction),
            head=redacted_cut(line.head, view.redaction),
            note=redacted_cut(line.note, view.redaction),
        )


def _lines(state: AgentState, view: View) -> Iterator[Line]:
    shown = 0
    for number, step in enumerate(state.steps, 1):
        yield from _messages(state.messages[shown : step.first_message], view)
        yield Line(Kind.STEP, f"step {number}" if step.wrap_up is None else f"step {number}, the wrap-up")
        yield from _step(state, step, view)
        shown = step.first_message + step.message_count
    yield from _messages(state.messages[shown:], view)
    if state.open_step is not None:
        yield Line(Kind.STEP, f"step {len(state.steps) + 1}, not finished")
        yield from _open_step(state.open_step, view)
    for approval in state.execution.approvals:
        yield Line(Kind.ERROR, f"the run {approval_text(approval)}")
    outcome = state.last_continuation_outcome
    if state.status is AgentStatus.PAUSED and not state.pending_calls:
        yield Line(Kind.PAUSE, ALL_DECIDED, "pause")
    elif outcome is not None and (outcome.pauses or state.open_step is not None):
        yield decision_line(outcome)


def _messages(messages: Sequence[Message], view: View) -> Iterator[Line]:
    for message in messages:
        if message.is_user:
            yield Line(Kind.QUERY, _text(message, view))
        elif message.is_tool:
            yield Line(Kind.RESULT, _result(message.text, view))
        else:
            yield _answer(message, view)


def _answer(message: Message, view: View, note: str = "") -> Line:
    head = message.role.value if message.is_system else ""
    if message.source:  # Feedback of rules.
        head = f"feedback of {', '.join(shortened(name, 64) for name in message.source)}"
    note = joined_notes("cut off" if message.incomplete else "", note)
    return Line(Kind.ANSWER, _text(message, view), head, note=note)


def _step(state: AgentState, step: Step, view: View) -> Iterator[Line]:
    messages = state.messages_of(step)
    if step.failures and step.failures[0].is_model_call:
        failure = step.failures[0]
        yield model_problem(failure.raised or failure.message, step.finish_reason)
    note = changes_note(step.response_changed_by)
    answer = next((message for message in messages if message.is_assistant), None)
    if answer is not None and answer.text:
        yield _answer(answer, view, note)
    elif note:
        yield Line(Kind.ERROR, f"response {note}")
    asked = {call.id: call for message in messages for call in message.tool_calls}
    results = {message.tool_call_id: message.text for message in messages if message.is_tool}
    raised = {failure.tool_call_id: failure.raised for failure in step.failures}
    for run in step.tool_calls:
        error, result = raised.get(run.id) or run.error, results.get(run.id, "")
        yield from _run(run, asked.get(run.id), error or result, view, timed=not step.untimed)
    if interrupted := interruption_text(step):
        yield Line(Kind.ERROR, interrupted)
    if step.outcome is not None:
        yield decision_line(step.outcome, step.usage, None if step.untimed else step.duration_ms)


def _run(
    run: ToolRun, asked: ToolCall | None, result: str, view: View, *, timed: bool = True
) -> Iterator[Line]:
    asked_for = asked.arguments if asked else {}
    edits = [approval for approval in run.approvals if approval.arguments is not None]
    ran_with = edits[-1].arguments if edits else None
    arguments = _arguments(asked_for if ran_with is None else ran_with, view)
    note = joined_notes(_changes(asked), changes_note(run.changed_by, "result changed by"))
    is_denied = _is_denied(run)
    kind = Kind.DONE if run.success else Kind.DENIED if is_denied else Kind.FAILED
    took = span_text(run.duration_ms / 1000) if timed else ""
    yield Line(kind, arguments, shortened(run.name), "" if is_denied else took, note)
    if ran_with not in (None, asked_for):
        yield Line(Kind.ERROR, f"before the edit: {shortened(run.name)}({_arguments(asked_for, view)})")
    yield from _history(asked, run.approvals, view)
    if is_denied:  # The history has the person and the reason.
        return
    if run.success:
        yield Line(Kind.ERROR if view.full else Kind.RESULT, _result(result, view))
    else:
        yield Line(Kind.ERROR, _result(result, view))


def _is_denied(run: ToolRun) -> bool:
    """Return whether a person denied a call that had not started."""
    denied = bool(run.approvals) and run.approvals[-1].verdict is Verdict.DENIED
    return denied and not run.success and run.started_at is None


def _open_step(step: OpenStep, view: View) -> Iterator[Line]:
    if step.failure is not None:
        yield model_problem(step.failure.raised or step.failure.message, step.finish_reason)
    if step.message is not None and step.message.text:
        yield _answer(step.message, view, changes_note(step.response_changed_by))
    for index, call in enumerate(step.calls):
        asked, result = step.call_to_run(index), call.result
        if result is not None:
            raised = result.failure and result.failure.raised
            yield from _run(call.run_of(asked, result), asked, raised or result.error or result.content, view)
        else:
            head = f"{shortened(asked.name)}({_arguments(asked.arguments, view)})"
            yield Line(Kind.OPEN, _progress(call), head, note=_changes(asked))
            yield from _history(asked, call.approvals, view)


def _progress(call: OpenCall) -> str:
    if call.question is not None:
        return "may have run, and waits for a person" if call.question.uncertain else "waits for a person"
    if call.approved:
        return "is approved, and runs when the session continues"
    return "was started, and has no result yet" if call.started else "has not started"


def _changes(call: ToolCall | None) -> str:
    return changes_note([change.by for change in call.changes]) if call is not None else ""


def _history(call: ToolCall | None, approvals: Sequence[Approval], view: View) -> Iterator[Line]:
    """Yield the call before each change by a hook, and the decisions of people."""
    for change in call.changes if call is not None else ():
        name = shortened(change.name or (call.name if call else ""))
        before = f"{name}({_arguments(change.before, view)})"
        yield Line(Kind.ERROR, f"before {shortened(change.by, 64)}: {before}")
    for approval in approvals:
        yield Line(Kind.ERROR, approval_text(approval))


def _arguments(arguments: Arguments, view: View) -> str:
    shown: Arguments = redacted(arguments, view.redaction)
    return "\n".join(exact_arguments(shown, full=True)) if view.full else arguments_summary(shown)


def _result(text: str, view: View) -> str:
    return printable(text) if view.full else shortened(text, LONGEST_RESULT)


def _text(message: Message, view: View) -> str:
    parts = () if isinstance(message.content, str) else message.content
    others = [_attachment(part) for part in parts if isinstance(part, ImagePart | FilePart)]
    text = printable(message.text)
    if not view.full and len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}… ({counted(len(text) - LONGEST_TEXT, 'character')} more: --full)"
    return "\n".join([*([text] if text else []), *others])


def _attachment(part: ImagePart | FilePart) -> str:
    kind = "image" if isinstance(part, ImagePart) else "file"
    name = part.name if isinstance(part, FilePart) else None
    return f"[{kind}: {shortened(name or part.url or part.media_type or 'unnamed')}]"


# Explanations


def show_explanation(explanation: Explanation, notes: Sequence[str] = ()) -> None:
    """Print an explanation: in colours on a terminal, as plain lines in a pipe."""
    if is_terminal():
        from whyloop.cli.drawing import draw_explanation

        draw_explanation(terminal(), explanation, _approval_lines(explanation), notes)
    else:
        write_lines([*explanation_lines(explanation), *(["", *notes] if notes else [])])


def explanation_lines(explanation: Explanation) -> list[str]:
    """Return the explanation as lines, with decisions but without next actions."""
    return [
        explanation.headline,
        *section(steps_title(explanation), step_lines(explanation.steps)),
        *section("Repeated calls", [f"  {call.text}" for call in explanation.repeated_calls]),
        *section("Decided by people", [f"  {line}" for line in _approval_lines(explanation)]),
        *evaluations_section(explanation),
    ]


def _approval_lines(explanation: Explanation) -> list[str]:
    calls = [call for step in explanation.steps for call in step.calls]
    decided = [(call.tool, approval) for call in calls for approval in call.approvals]
    decided += [("the run", approval) for approval in explanation.approvals]
    return [
        f"{about} (question {shortened(short_id(approval.question_id))}) {approval_text(approval)}"
        for about, approval in decided
    ]


# Next commands


def pending_text(call: PendingCall) -> str:
    """Return the subject of a question: "pay(amount: 500)", or the run itself."""
    return f"{shortened(call.tool)}({arguments_summary(call.arguments)})" if call.tool_call_id else "the run"


def next_commands(
    args: argparse.Namespace,
    state: AgentState,
    session: str,
    *,
    runner: str | None = None,
    agent: tuple[str, ...] = AN_AGENT,
    view: View | None = None,
) -> list[str]:
    """Return the open questions, and the commands that let the run continue.

    `session` is how the session was named, `runner` the process that runs it now, `agent` the options that
    describe the agent.
    """
    if runner is not None:
        return [f"{shortened(runner)} runs it. Stop it: {command_line(args, 'stop', session)}"]
    lines = _question_lines(args, state.pending_calls, session, view or View(redaction=None))
    actions = [action for action in next_actions_of(state) if action.kind is not ActionKind.DECIDE]
    if lines and actions:
        lines.append("")
    return lines + [_action_line(args, action, session, agent) for action in actions]


def _question_lines(
    args: argparse.Namespace, calls: tuple[PendingCall, ...], session: str, view: View
) -> list[str]:
    if not calls:
        return []
    waits = "waits" if len(calls) == 1 else "wait"
    lines = [f"{counted(len(calls), 'question')} {waits} for a person"]
    length = unique_length(call.id for call in calls)
    for call in calls:
        question = short_id(call.id, length)
        shown = redacted(call.arguments, view.redaction)
        arguments = exact_arguments(shown, full=view.full) if call.tool_call_id else []
        lines += [
            "",
            f"  {shortened(question)}  {shortened(revealed(call.question), LONGEST_QUESTION)}",
            *(f"    {line}" for line in arguments),
            f"    {command_line(args, 'approve', session, question)}",
            f"    {command_line(args, 'deny', session, question, 'the reason')}",
        ]
    return lines


def _action_line(args: argparse.Namespace, action: NextAction, session: str, agent: tuple[str, ...]) -> str:
    text = action.text[0].upper() + action.text[1:]
    match action.kind:
        case ActionKind.ASK:
            return f"{text}: {command_line(args, 'run', '…', options=('--session', session, *agent))}"
        case ActionKind.RESUME | ActionKind.GRANT:
            options = (*agent, *_grant_options(action.grant))
            return f"{text}: {command_line(args, 'resume', session, options=options)}"
    return f"{text}: {action.code}" if action.code else text


def _grant_options(grant: Budget | None) -> list[str]:
    granted = asdict(grant) if grant else {}
    return [word for name, more in granted.items() if more for word in (f"--grant-{name}", f"{more:g}")]
