"""`whyloop sessions`, `show`, `why`, `watch`, `approve`, `deny` and `stop`: read sessions, and decide."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from io import StringIO
from typing import Any, NamedTuple

import msgspec

from whyloop.broadcasting.feed import EventFeed, cursor_of
from whyloop.broadcasting.transports import AgentConsoleLogger
from whyloop.cli.formats import (
    AN_AGENT,
    View,
    age,
    command_line,
    decider,
    exact_arguments,
    parse_arguments,
    redaction_of,
    seconds_since,
    span_text,
    unique_length,
)
from whyloop.cli.narration import FollowedEvents
from whyloop.cli.renderer import (
    ALL_DECIDED,
    LABEL_WIDTH,
    NOTHING,
    SessionRow,
    approval_text,
    conversation,
    next_commands,
    pending_text,
    show_explanation,
    table_lines,
    used_texts,
)
from whyloop.cli.store_access import filters_of, find_session, load_session
from whyloop.cli.terminal import (
    USAGE_ERROR,
    CommandError,
    is_terminal,
    terminal,
    write,
    write_error,
    write_json,
    write_lines,
)
from whyloop.loop.executions import refuse_edit
from whyloop.stores.records import Page, Summary
from whyloop.stores.store import PAGE, Store
from whyloop.values.approval import Approval, Verdict
from whyloop.values.explanation import Explanation, explanation_of_step
from whyloop.values.price import dollars
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction, redacted
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean, short_id, shortened
from whyloop.wire.document import document, step_document
from whyloop.wire.envelope import BroadcastConfig

PAGE_OF_ALL = 1000
LONGEST_ID = 64
LONGEST_REASON = 200
_WAITS = (AgentStatus.PAUSED, AgentStatus.STOPPED, AgentStatus.FAILED)


# sessions


async def list_sessions(store: Store, args: argparse.Namespace) -> int:
    """Print the sessions that meet every condition."""
    page = await _find(store, args)
    if args.json:
        write_json({"sessions": [_summary(summary) for summary in page.sessions], "next": page.next})
        return 0
    if page.sessions:
        _show_rows(page.sessions)
    else:
        write_error(
            "No session meets the conditions."
            if any(filters_of(args).values()) or args.after
            else "There are no sessions yet."
        )
    if page.next:
        write_error(f"There are more: --after {page.next}, or --all")
    return 0


async def _find(store: Store, args: argparse.Namespace) -> Page:
    filters = filters_of(args)
    limit = args.limit if args.limit is not None else PAGE_OF_ALL if args.all else PAGE
    sessions: list[Summary] = []
    cursor = args.after
    while True:
        page = await store.sessions(limit=limit, after=cursor, **filters)
        sessions += page.sessions
        cursor = page.next
        if cursor is None or not args.all:
            return Page(tuple(sessions), cursor)


def _summary(summary: Summary) -> dict[str, Any]:
    """Return every field that a list shows as plain data."""
    shown = [name for name in summary.__struct_fields__ if name != "search"]
    return {name: msgspec.to_builtins(getattr(summary, name)) for name in shown}


def _show_rows(sessions: Sequence[Summary]) -> None:
    length = unique_length(summary.agent_id for summary in sessions)
    rows = [_row(summary, length) for summary in sessions]
    if is_terminal():
        from whyloop.cli.drawing import draw_sessions

        draw_sessions(terminal(), rows)
        return
    heads = tuple(name.replace("_", " ").upper() for name in SessionRow._fields)
    write_lines(table_lines([heads, *rows]))


def _row(summary: Summary, length: int) -> SessionRow:
    return SessionRow(
        shortened(short_id(summary.agent_id, length), LONGEST_ID),
        summary.status.value,
        summary.stop_reason or NOTHING,
        str(summary.step_count),
        NOTHING if summary.cost is None else dollars(Decimal(summary.cost)),
        age(summary.started_at),
        shortened(summary.runner or NOTHING),
        shortened(summary.title or NOTHING),
        shortened(summary.resolved_by or NOTHING, 64),
        shortened(_reason(summary) or NOTHING, LONGEST_REASON),
    )


def _reason(summary: Summary) -> str | None:
    """Return why the session has its status; a decided question no longer waits."""
    if summary.status is AgentStatus.PAUSED and not summary.pending:
        return ALL_DECIDED
    return summary.reason


# show


async def show(store: Store, args: argparse.Namespace) -> int:
    """Print a session from its first message to the last, and what can be done now."""
    summary, state = await load_session(store, args.id)
    redaction = redaction_of(args)
    if args.json:
        write_json(redacted(_document(state, summary), redaction))
        return 0
    view = View(args.full, redaction)
    notes = next_commands(args, state, args.id, runner=summary.runner, view=view)
    heading, lines = _heading(state, summary, redaction), conversation(state, view)
    if is_terminal():
        from whyloop.cli.drawing import draw_conversation

        draw_conversation(terminal(), heading, lines, notes)
    else:
        texts = [f"{label:<{LABEL_WIDTH}}  {text}" for label, text in heading]
        write_lines([*texts, *(line.plain() for line in lines), *(["", *notes] if notes else [])])
    return 0


def _document(state: AgentState, summary: Summary) -> dict[str, Any]:
    """Return a session as plain data: its steps and decisions, and all messages."""
    return {
        **document(state, debug=True),
        "agent": state.agent,
        "identity": state.identity,
        "parent_agent_id": state.parent_agent_id,
        "metadata": state.metadata,
        "runner": summary.runner,
        "version": summary.version,
        "messages": msgspec.to_builtins(list(state.messages)),
    }


def _heading(
    state: AgentState, summary: Summary, redaction: Redaction | None = DEFAULT_REDACTION
) -> list[tuple[str, str]]:
    """Return the facts about a session, each with its label."""
    metadata = redacted(state.metadata, redaction)
    reason = f" ({state.stop_reason})" if state.stop_reason not in (None, "completed") else ""
    runner = f", run by {shortened(summary.runner)}" if summary.runner else ""
    entries = {
        "session": shortened(state.agent_id),
        "agent": shortened(state.agent),
        "status": f"{state.status}{reason}{runner}, {age(state.state_info.updated_at)} ago",
        "steps": ", ".join([str(state.step_count), *used_texts(state.usage)]),
        "clocks": _clocks(state),
        "child of": shortened(state.parent_agent_id) if state.parent_agent_id else "",
        "metadata": shortened(json.dumps(metadata, ensure_ascii=False), 300) if metadata else "",
    }
    return [(label, text) for label, text in entries.items() if text]


def _clocks(state: AgentState) -> str:
    execution = state.execution
    waiting = execution.waiting_seconds
    if state.status in _WAITS and execution.updated_at is not None:
        waiting += seconds_since(execution.updated_at)  # This wait is recorded when it ends.
    if execution.untimed:
        return f"active unknown · age {age(state.state_info.started_at)}"
    clocks = {
        "active": span_text(execution.active_seconds),
        "waiting": span_text(waiting),
        "backoff": span_text(execution.backoff_seconds),
        "age": age(state.state_info.started_at),
    }
    return " · ".join(f"{name} {text}" for name, text in clocks.items())


# why


async def why(store: Store, args: argparse.Namespace) -> int:
    """Explain why a session ended, or continued after one of its steps."""
    summary, state = await load_session(store, args.id)
    redaction = redaction_of(args)
    explanation = state.explanation if args.step is None else explanation_of_step(state, args.step)
    explanation = explanation.without_secrets(redaction)
    if args.json:
        write_json(redacted(_explained(state, explanation, args.step), redaction))
    elif args.markdown:
        write_lines([explanation.to_markdown()])
    elif args.step is not None:
        show_explanation(explanation)
    else:
        notes = next_commands(args, state, args.id, runner=summary.runner, view=View(redaction=redaction))
        show_explanation(explanation, notes)
    return 0


def _explained(state: AgentState, explanation: Explanation, step: int | None) -> dict[str, Any]:
    if step is not None:
        return {
            "agent_id": state.agent_id,
            "step": step,
            **step_document(state, step),
            "explanation": explanation.to_dict(),
        }
    wanted = ("agent_id", "status", "stop_reason", "resolved_by", "reason", "pending_calls")
    outcome = state.last_continuation_outcome
    return {
        **{key: value for key, value in document(state, ()).items() if key in wanted},
        "outcome": outcome.to_dict() if outcome else None,
        "explanation": explanation.to_dict(),
    }


# watch


async def watch(store: Store, args: argparse.Namespace) -> int:
    """Show the events of a session: those so far, and then new ones as they come."""
    if is_terminal() and not args.json:
        return await _draw_session(store, args)
    agent_id = (await find_session(store, args.id)).agent_id
    async with EventFeed(store) as feed:
        cursor = await feed.cursor(agent_id, args.after)
        events = feed.recorded(agent_id, cursor) if args.so_far else feed.follow(agent_id, cursor)
        lines = StringIO()
        logger = AgentConsoleLogger(lines, json=args.json)
        async with aclosing(events) as batches:
            async for items in batches:
                logger.broadcast_batch([msgspec.json.decode(item.body) for item in items])
                write(lines.getvalue())
                lines.seek(0)
                lines.truncate()
    return 0


async def _draw_session(store: Store, args: argparse.Namespace) -> int:
    """Draw the session so far, or what comes after the cursor, and then what happens."""
    from whyloop.cli.drawing import WIDEST, LiveView, draw_conversation

    summary, state = await load_session(store, args.id)
    console = terminal(WIDEST)
    async with EventFeed(store, BroadcastConfig.debug(), keep_events=True) as feed:
        cursor = await feed.cursor(summary.agent_id, args.after)
        if cursor is None:
            draw_conversation(console, _heading(state, summary), conversation(state, View()), ())
            cursor = cursor_of(state.execution)
        events = (
            feed.recorded(summary.agent_id, cursor) if args.so_far else feed.follow(summary.agent_id, cursor)
        )
        followed = FollowedEvents(store, summary.agent_id)
        with LiveView(console, live=not args.so_far, idle="waiting for events; Ctrl-C ends") as view:
            async with aclosing(events) as batches:
                async for items in batches:
                    for item in items:
                        for event in await followed.of(item):
                            view(event)
    return 0


# approve, deny, stop


async def approve(store: Store, args: argparse.Namespace) -> int:
    """Approve a call that waits for a person, with its arguments or with new ones."""
    if args.args is None:
        return await _decide(store, args, Verdict.APPROVED)
    return await _decide(store, args, Verdict.EDITED, arguments=parse_arguments(args.args, "--args"))


async def deny(store: Store, args: argparse.Namespace) -> int:
    """Deny a call that waits for a person."""
    # A single word always names a question, because a mistyped one must not deny another question.
    if args.reason is None and args.question is not None and len(args.question.split()) > 1:
        args.question, args.reason = None, args.question
    return await _decide(store, args, Verdict.DENIED, reason=args.reason)


async def stop(store: Store, args: argparse.Namespace) -> int:
    """Stop a session's run in any process."""
    summary = await find_session(store, args.id)
    reason = args.reason or f"{decider(None)} stopped it with whyloop stop"
    if not await store.request_stop(summary.agent_id, reason):
        write_lines([f"There is nothing to stop: the session is {summary.status}."])
    elif summary.runner is not None:
        write_lines([f"{shortened(summary.runner)} runs it, and was asked to stop."])
    else:
        fleet = ("--agent", summary.agent, "--temporal", "ADDRESS")
        options = AN_AGENT if summary.workflow is None else fleet
        again = command_line(args, "resume", args.id, options=options)
        write_lines([f"Stopped. To continue anyway: {again}"])
    return 0


class _Question(NamedTuple):
    """A question of a session, open or decided."""

    id: str
    about: str
    decision: Approval | None = None


async def _decide(
    store: Store,
    args: argparse.Namespace,
    verdict: Verdict,
    *,
    reason: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> int:
    by = decider(args.by)
    summary, state = await load_session(store, args.id)
    question = _find_question(state, args.question, verdict)
    if question.decision is not None:
        return _repeat(args, summary, state, question, verdict, arguments)
    agent_id = state.agent_id
    if arguments is not None:
        refuse_edit(None, state, question.id, arguments)
    state = await store.decide(
        agent_id, question.id, verdict, by=by, reason=reason or None, arguments=arguments
    )
    why = f": {shortened(reason, 300)}" if reason else ""
    verb = "denied" if verdict is Verdict.DENIED else "approved"
    lines = [f"{shortened(by)} {verb} {question.about}{why}."]
    if arguments is not None:
        lines = [f"{shortened(by)} approved {question.about} with other arguments:"]
        lines += [f"  {line}" for line in exact_arguments(arguments, full=True)]
    write_lines([*lines, *_next_commands(args, summary, state)])
    return 0


def _next_commands(args: argparse.Namespace, summary: Summary, state: AgentState) -> list[str]:
    """Return the next commands; a worker of Temporal continues its sessions itself."""
    if summary.workflow is not None and not state.pending_calls and not state.status.has_ended:
        return [f"A worker continues it, in workflow {shortened(summary.workflow, 200)}."]
    return next_commands(args, state, args.id)


def _find_question(state: AgentState, typed: str | None, verdict: Verdict) -> _Question:
    """Return the question whose id begins with the text, or the only open one."""
    pending = state.pending_calls
    opened = [_Question(call.id, pending_text(call)) for call in pending]
    if typed is None:
        if len(opened) == 1:
            return opened[0]
        if opened:
            raise CommandError(f"several questions are open, name one:\n{_listed(opened)}", USAGE_ERROR)
        latest = max(_decided(state), key=lambda asked: asked.decision.at, default=None)  # type: ignore[union-attr]
        if latest is not None and latest.decision is not None and latest.decision.verdict is verdict:
            return latest
        raise CommandError("no question of this session is open")
    # Decided questions count too: repeating a decision must never reach another question.
    typed = clean(typed)
    known = [*opened, *_decided(state)]
    found = [asked for asked in known if asked.id == typed] if typed else []
    found = found or [asked for asked in known if asked.id.startswith(typed) and typed]
    if len(found) == 1:
        return found[0]
    problem = "several questions begin with" if found else "unknown question"
    raise CommandError(f"{problem} {shortened(typed)!r}: {_open_text(found or opened)}")


def _decided(state: AgentState) -> Iterator[_Question]:
    """Yield the questions of the session that people have decided."""
    about_calls = [(run.name, run.approvals) for step in state.steps for run in step.tool_calls]
    if state.open_step is not None:
        step = state.open_step
        calls = zip(step.tool_calls, step.calls, strict=True)
        about_calls += [(asked.name, call.approvals) for asked, call in calls]
    for name, approvals in (*about_calls, ("the run", state.execution.approvals)):
        for approval in approvals:
            yield _Question(approval.question_id, shortened(name), approval)


def _repeat(
    args: argparse.Namespace,
    summary: Summary,
    state: AgentState,
    question: _Question,
    verdict: Verdict,
    arguments: Mapping[str, Any] | None,
) -> int:
    """Report that the same decision was already made; raise if it was a different one."""
    decision = question.decision
    assert decision is not None
    made = f"{question.about} was {approval_text(decision)}"
    if (decision.verdict, decision.arguments) != (verdict, arguments):
        opened = [_Question(call.id, pending_text(call)) for call in state.pending_calls]
        others = _open_text(opened)
        raise CommandError(
            f"question {short_id(question.id)} is decided: {made}. {others[0].upper()}{others[1:]}"
        )
    write_lines([f"Nothing changed: {made}.", *_next_commands(args, summary, state)])
    return 0


def _open_text(questions: Sequence[_Question]) -> str:
    if not questions:
        return "no question is open"
    return f"choose from\n{_listed(questions)}"


def _listed(questions: Sequence[_Question]) -> str:
    length = unique_length(asked.id for asked in questions)
    return "\n".join(f"  {shortened(short_id(asked.id, length))}  {asked.about}" for asked in questions)
