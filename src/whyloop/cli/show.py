"""`whyloop show`: a session from its first message to the last, and what can be done now."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from whyloop.cli.formats import age, arguments_summary, exact_arguments, seconds_since, span_text
from whyloop.cli.narration import Kind, Line, changes_note, joined_notes
from whyloop.cli.renderer import approval_text, next_commands
from whyloop.cli.store_access import load_session
from whyloop.cli.terminal import is_terminal, terminal, write_json, write_lines
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.approval import Approval
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.explanation import interruption_text
from whyloop.values.messages import FilePart, ImagePart, Message, ToolCall
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import OpenCall, OpenStep, Step, ToolRun
from whyloop.values.text import counted, printable, shortened
from whyloop.wire.document import document

LONGEST_TEXT = 2_000
LONGEST_RESULT = 200
LABEL_WIDTH = 9
WIDEST = 120
_WAITS = (AgentStatus.PAUSED, AgentStatus.STOPPED, AgentStatus.FAILED)


async def show(store: Store, args: argparse.Namespace) -> int:
    """Print a session."""
    summary, state = await load_session(store, args.id)
    if args.json:
        write_json(_document(state, summary))
        return 0
    notes = next_commands(args, state, args.id, runner=summary.runner, full=args.full)
    heading, lines = _heading(state, summary), conversation(state, full=args.full)
    if is_terminal():
        _draw(heading, lines, notes)
    else:
        write_lines([*heading, *(line.plain() for line in lines), *(["", *notes] if notes else [])])
    return 0


def conversation(state: AgentState, *, full: bool = False) -> Iterator[Line]:
    """Yield everything in the order in which it happened; long texts are cut unless `full`."""
    shown = 0
    for number, step in enumerate(state.steps, 1):
        yield from _messages(state.messages[shown : step.first_message], full)
        yield Line(Kind.STEP, f"step {number}")
        yield from _step(state, step, full)
        shown = step.first_message + step.message_count
    yield from _messages(state.messages[shown:], full)
    if state.open_step is not None:
        yield Line(Kind.STEP, f"step {state.step_count + 1}, not finished")
        yield from _open_step(state.open_step, full)
    yield from (
        Line(Kind.ERROR, f"the run {approval_text(approval)}") for approval in state.execution.approvals
    )
    outcome = state.last_continuation_outcome
    if outcome is not None and (outcome.pauses or state.open_step is not None):
        yield _decision(outcome)


def _document(state: AgentState, summary: Summary) -> dict[str, Any]:
    """Return a session as plain data: its steps and decisions, and all messages."""
    return {
        **document(state),
        "agent": state.agent,
        "identity": state.identity,
        "parent_agent_id": state.parent_agent_id,
        "metadata": state.metadata,
        "runner": summary.runner,
        "version": summary.version,
        "messages": msgspec.to_builtins(list(state.messages)),
    }


def _draw(heading: Sequence[str], lines: Iterator[Line], notes: Sequence[str]) -> None:
    from rich.text import Text

    from whyloop.cli.drawing import draw_notes, row

    console = terminal()
    for entry in heading:
        console.print(Text.assemble((entry[:LABEL_WIDTH], "dim"), entry[LABEL_WIDTH:]))
    for line in lines:
        console.print(row(line), width=min(console.width, WIDEST))
    draw_notes(console, notes)


# The heading


def _heading(state: AgentState, summary: Summary) -> list[str]:
    entries = {
        "session": shortened(state.agent_id),
        "agent": shortened(state.agent),
        "status": _status(state, summary),
        "steps": _steps(state),
        "clocks": _clocks(state),
        "child of": shortened(state.parent_agent_id) if state.parent_agent_id else "",
        "metadata": shortened(json.dumps(state.metadata, ensure_ascii=False), 300) if state.metadata else "",
    }
    return [f"{label:<{LABEL_WIDTH}}  {text}" for label, text in entries.items() if text]


def _status(state: AgentState, summary: Summary) -> str:
    reason = f" ({state.stop_reason})" if state.stop_reason not in (None, "completed") else ""
    runner = f", run by {shortened(summary.runner)}" if summary.runner else ""
    return f"{state.status}{reason}{runner}, {age(state.state_info.updated_at)} ago"


def _steps(state: AgentState) -> str:
    tokens = f", {counted(state.usage.total, 'token')}" if state.usage.total else ""
    return f"{state.step_count}{tokens}"


def _clocks(state: AgentState) -> str:
    execution = state.execution
    waiting = execution.waiting_seconds
    if state.status in _WAITS and execution.updated_at is not None:
        waiting += seconds_since(execution.updated_at)  # This wait is recorded when it ends.
    clocks = {
        "active": span_text(execution.active_seconds),
        "waiting": span_text(waiting),
        "backoff": span_text(execution.backoff_seconds),
        "age": age(state.state_info.started_at),
    }
    return " · ".join(f"{name} {text}" for name, text in clocks.items())


# Messages and steps


def _messages(messages: Sequence[Message], full: bool) -> Iterator[Line]:
    for message in messages:
        if message.is_user:
            yield Line(Kind.QUERY, _text(message, full))
        elif message.is_tool:
            yield Line(Kind.RESULT, _result(message.text, full))
        else:
            yield _answer(message, full)


def _answer(message: Message, full: bool, note: str = "") -> Line:
    head = message.role.value if message.is_system else ""
    if message.source:  # Feedback of rules.
        head = f"feedback of {', '.join(shortened(name, 64) for name in message.source)}"
    note = joined_notes("cut off" if message.incomplete else "", note)
    return Line(Kind.ANSWER, _text(message, full), head, note=note)


def _step(state: AgentState, step: Step, full: bool) -> Iterator[Line]:
    messages = state.messages_of(step)
    if step.model_failure is not None:
        message = shortened(step.model_failure.message, LONGEST_RESULT)
        yield Line(Kind.PROBLEM, message, "the model call failed")
    note = changes_note(step.response_changed_by)
    answer = next((message for message in messages if message.is_assistant), None)
    if answer is not None and answer.content:
        yield _answer(answer, full, note)
    elif note:
        yield Line(Kind.ERROR, f"response {note}")
    asked = {call.id: call for message in messages for call in message.tool_calls}
    results = {message.tool_call_id: message.text for message in messages if message.is_tool}
    for run in step.tool_calls:
        yield from _run(run, asked.get(run.id), results.get(run.id, ""), full)
    if interrupted := interruption_text(step):
        yield Line(Kind.ERROR, interrupted)
    if step.outcome is not None:
        measure = [counted(step.usage.total, "token")] if step.usage.total else []
        measure.append(span_text(step.duration_ms / 1000))
        yield _decision(step.outcome)._replace(measure=" · ".join(measure))


def _decision(outcome: ContinuationOutcome) -> Line:
    """Return whether the run continued, and the rule that decided."""
    deciding, rule = outcome.resolving_evaluation, outcome.resolved_by
    text = shortened(f"{rule}: {deciding.reason}" if deciding else rule, LONGEST_RESULT)
    if outcome.should_continue:
        return Line(Kind.CONTINUE, text, "continue")
    if outcome.pauses:
        return Line(Kind.STOP, text, "pause")
    complete = outcome.stop_reason is StopReason.COMPLETED
    return Line(Kind.COMPLETE if complete else Kind.STOP, text, f"stop ({outcome.stop_reason})")


# Tool calls


def _run(run: ToolRun, asked: ToolCall | None, result: str, full: bool) -> Iterator[Line]:
    arguments = _arguments(asked.arguments if asked else {}, full)
    note = joined_notes(_changes(asked), changes_note(run.changed_by, "result changed by"))
    kind = Kind.DONE if run.success else Kind.FAILED
    yield Line(kind, arguments, shortened(run.name), span_text(run.duration_ms / 1000), note)
    yield from _before_changes(asked, full)
    yield from _approvals(run.approvals)
    if run.success:
        yield Line(Kind.ERROR if full else Kind.RESULT, _result(result, full))
    else:
        yield Line(Kind.ERROR, _result(run.error or result, full))


def _open_step(step: OpenStep, full: bool) -> Iterator[Line]:
    if step.failure is not None:
        yield Line(Kind.PROBLEM, shortened(step.failure.message, LONGEST_RESULT), "the model call failed")
    if step.message is not None and step.message.content:
        yield _answer(step.message, full, changes_note(step.response_changed_by))
    for index, call in enumerate(step.calls):
        asked = step.call_to_run(index)
        if call.result is not None:
            done = ToolRun(
                asked.id,
                asked.name,
                call.result.error is None,
                call.result.error,
                call.duration_ms,
                call.approvals,
                changed_by=call.result.changed_by,
            )
            yield from _run(done, asked, call.result.content, full)
        else:
            head = f"{shortened(asked.name)}({_arguments(asked.arguments, full)})"
            yield Line(Kind.OPEN, _progress(call), head, note=_changes(asked))
            yield from _before_changes(asked, full)
            yield from _approvals(call.approvals)


def _progress(call: OpenCall) -> str:
    if call.question is not None:
        return "may have run, and waits for a person" if call.question.uncertain else "waits for a person"
    if call.approved:
        return "is approved, and runs when the session continues"
    return "was started, and has no result yet" if call.started else "has not started"


def _approvals(approvals: Sequence[Approval]) -> Iterator[Line]:
    return (Line(Kind.ERROR, approval_text(approval)) for approval in approvals)


def _changes(call: ToolCall | None) -> str:
    return changes_note([change.by for change in call.changes]) if call is not None else ""


def _before_changes(call: ToolCall | None, full: bool) -> Iterator[Line]:
    """Yield the call as it was before each hook that changed it."""
    for change in call.changes if call is not None else ():
        name = shortened(change.name or (call.name if call else ""))
        before = f"{name}({_arguments(change.before, full)})"
        yield Line(Kind.ERROR, f"before {shortened(change.by, 64)}: {before}")


# Texts


def _arguments(arguments: Mapping[str, Any] | str, full: bool) -> str:
    return "\n".join(exact_arguments(arguments, full=True)) if full else arguments_summary(arguments)


def _result(text: str, full: bool) -> str:
    return printable(text) if full else shortened(text, LONGEST_RESULT)


def _text(message: Message, full: bool) -> str:
    parts = () if isinstance(message.content, str) else message.content
    others = [_attachment(part) for part in parts if isinstance(part, ImagePart | FilePart)]
    text = printable(message.text)
    if not full and len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}… ({counted(len(text) - LONGEST_TEXT, 'character')} more: --full)"
    return "\n".join([*([text] if text else []), *others])


def _attachment(part: ImagePart | FilePart) -> str:
    kind = "image" if isinstance(part, ImagePart) else "file"
    name = part.name if isinstance(part, FilePart) else None
    return f"[{kind}: {shortened(name or part.url or part.media_type or 'unnamed')}]"
