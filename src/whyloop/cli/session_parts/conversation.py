"""A session in lines: what was said, what was done, what was decided."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whyloop.cli.demo_parts.narration import Kind, Line
from whyloop.cli.renderer import approval_text
from whyloop.cli.session_parts.ages import age, seconds_since, span
from whyloop.cli.session_parts.arguments import exact, summary as arguments_summary
from whyloop.cli.terminal import is_terminal, print_notes, terminal, write_lines
from whyloop.stores.records import Summary
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.explanation import interruption_text
from whyloop.values.messages import FilePart, ImagePart, Message
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step, ToolRun
from whyloop.values.text import counted, printable, shortened

LONGEST_SAID = 2_000
LONGEST_RESULT = 200
LABEL_WIDTH = 9
WIDEST = 120
_WAITS = (AgentStatus.PAUSED, AgentStatus.STOPPED, AgentStatus.FAILED)
_ERROR, _RESULT = Kind.ERROR, Kind.RESULT


def show_session(state: AgentState, summary: Summary, notes: Sequence[str], *, full: bool = False) -> None:
    """Print what a session is, what happened in it, and what can be done now."""
    heading, lines = _heading(state, summary), conversation(state, full=full)
    if not is_terminal():
        write_lines([*heading, *(line.plain() for line in lines), *(["", *notes] if notes else [])])
        return
    from rich.text import Text

    from whyloop.cli.demo_parts.drawing import row

    console = terminal()
    for entry in heading:
        console.print(Text.assemble((entry[:LABEL_WIDTH], "dim"), entry[LABEL_WIDTH:]))
    for line in lines:
        console.print(row(line), width=min(console.width, WIDEST))
    print_notes(console, notes)


def conversation(state: AgentState, *, full: bool = False) -> Iterator[Line]:
    """Everything in the order in which it happened; long texts are cut unless all is wanted."""
    shown = 0
    for number, step in enumerate(state.steps, 1):
        yield from _messages(state.messages[shown : step.first_message], full)
        yield Line(Kind.STEP, f"step {number}")
        yield from _step(state, step, full)
        shown = step.first_message + step.message_count
    yield from _messages(state.messages[shown:], full)
    if state.open_step is not None:
        yield Line(Kind.STEP, f"step {state.step_count + 1}, not at its end")
        yield from _open_step(state.open_step, full)
        if state.last_continuation_outcome is not None:
            yield decision(state.last_continuation_outcome)


def decision(outcome: ContinuationOutcome) -> Line:
    """Whether it went on, and who decided."""
    said, rule = outcome.resolving_evaluation, outcome.resolved_by
    words = shortened(f"{rule}: {said.reason}" if said else rule, LONGEST_RESULT)
    if outcome.should_continue:
        return Line(Kind.GO_ON, words, "continue")
    if outcome.pauses:
        return Line(Kind.STOP, words, "pause")
    complete = outcome.stop_reason is StopReason.COMPLETED
    return Line(Kind.COMPLETE if complete else Kind.STOP, words, f"stop ({outcome.stop_reason})")


def _messages(messages: Sequence[Message], full: bool) -> Iterator[Line]:
    for message in messages:
        if message.is_user:
            yield Line(Kind.QUERY, _said(message, full))
        elif message.is_tool:
            yield Line(_RESULT, _result(message.text, full))
        else:
            yield Line(Kind.SAID, _said(message, full), message.role.value if message.is_system else "")


def _step(state: AgentState, step: Step, full: bool) -> Iterator[Line]:
    messages = state.messages_of(step)
    if step.model_failure is not None:
        message = shortened(step.model_failure.message, LONGEST_RESULT)
        yield Line(Kind.FAILED, message, "the model call failed")
    answer = next((message for message in messages if message.is_assistant), None)
    if answer is not None and answer.content:
        yield Line(Kind.SAID, _said(answer, full))
    asked = {call.id: call.arguments for message in messages for call in message.tool_calls}
    results = {message.tool_call_id: message.text for message in messages if message.is_tool}
    for run in step.tool_calls:
        yield from _run(run, asked.get(run.id, {}), results.get(run.id, ""), full)
    if interrupted := interruption_text(step):
        yield Line(_ERROR, interrupted)
    if step.outcome is not None:
        measure = [counted(step.usage.total, "token")] if step.usage.total else []
        measure.append(span(step.duration_ms / 1000))
        yield decision(step.outcome)._replace(measure=" · ".join(measure))


def _run(run: ToolRun, arguments: Mapping[str, Any] | str, result: str, full: bool) -> Iterator[Line]:
    took = span(run.duration_ms / 1000)
    kind = Kind.DONE if run.success else Kind.FAILED
    yield Line(kind, _arguments(arguments, full), shortened(run.name), took)
    yield from (Line(_ERROR, approval_text(approval)) for approval in run.approvals)
    if run.success:
        yield Line(_ERROR if full else _RESULT, _result(result, full))
    else:
        yield Line(_ERROR, _result(run.error or result, full))


def _open_step(step: OpenStep, full: bool) -> Iterator[Line]:
    if step.message.content:
        yield Line(Kind.SAID, _said(step.message, full))
    for index, call in enumerate(step.calls):
        asked = step.call_as_decided(index)
        head, arguments = shortened(asked.name), _arguments(asked.arguments, full)
        if call.result is not None:
            done = ToolRun(
                asked.id,
                asked.name,
                call.result.error is None,
                call.result.error,
                call.duration_ms,
                call.approvals,
            )
            yield from _run(done, asked.arguments, call.result.content, full)
        else:
            yield Line(Kind.GO_ON, _progress(call), f"{head}({arguments})")
            yield from (Line(_ERROR, approval_text(approval)) for approval in call.approvals)


def _progress(call: OpenCall) -> str:
    if call.is_waiting:
        return "waits for a person"
    return "was started, and nothing has come of it yet" if call.started else "is to be run"


def _arguments(arguments: Mapping[str, Any] | str, full: bool) -> str:
    return "\n".join(exact(arguments, full=True)) if full else arguments_summary(arguments)


def _result(text: str, full: bool) -> str:
    return printable(text) if full else shortened(text, LONGEST_RESULT)


def _said(message: Message, full: bool) -> str:
    parts = () if isinstance(message.content, str) else message.content
    others = [_other(part) for part in parts if isinstance(part, ImagePart | FilePart)]
    text = printable(message.text)
    if not full and len(text) > LONGEST_SAID:
        text = f"{text[:LONGEST_SAID]}… ({counted(len(text) - LONGEST_SAID, 'character')} more: --full)"
    return "\n".join([*([text] if text else []), *others])


def _other(part: ImagePart | FilePart) -> str:
    kind = "image" if isinstance(part, ImagePart) else "file"
    name = part.name if isinstance(part, FilePart) else None
    return f"[{kind}: {shortened(name or part.url or part.media_type or 'of no name')}]"


def _heading(state: AgentState, summary: Summary) -> list[str]:
    """Return its id, its status and its clocks."""
    entries = {
        "session": shortened(state.agent_id),
        "status": _status(state, summary),
        "steps": _steps(state),
        "clocks": _clocks(state),
        "child of": shortened(state.parent_agent_id) if state.parent_agent_id else "",
        "metadata": shortened(json.dumps(state.metadata, ensure_ascii=False), 300) if state.metadata else "",
    }
    return [f"{label:<{LABEL_WIDTH}}  {words}" for label, words in entries.items() if words]


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
        waiting += seconds_since(execution.updated_at)  # It waits now, and this is not counted yet.
    clocks = {
        "active": span(execution.active_seconds),
        "waiting": span(waiting),
        "backoff": span(execution.backoff_seconds),
        "age": age(state.state_info.started_at),
    }
    return " · ".join(f"{name} {words}" for name, words in clocks.items())
