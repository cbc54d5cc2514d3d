"""`whyloop approve`, `deny` and `stop`: what people decide about runs, from the shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from whyloop.cli.formats import (
    AN_AGENT,
    command_line,
    decider,
    exact_arguments,
    parse_arguments,
    short,
    unique_length,
)
from whyloop.cli.renderer import approval_text, next_commands, pending_text
from whyloop.cli.store_access import find_session, load_session
from whyloop.cli.terminal import USAGE_ERROR, CommandError, write_lines
from whyloop.loop.executions import refuse_edit
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.approval import Approval, Verdict
from whyloop.values.state import AgentState
from whyloop.values.text import clean, shortened


async def approve(store: Store, args: argparse.Namespace) -> int:
    """Let a call run that waits for a person, with its arguments or with new ones."""
    if args.args is None:
        return await _decide(store, args, Verdict.APPROVED)
    return await _decide(store, args, Verdict.EDITED, arguments=parse_arguments(args.args, "--args"))


async def deny(store: Store, args: argparse.Namespace) -> int:
    """Do not let a call run that waits for a person."""
    # A single word always names a question: one that was mistyped must not deny another question.
    if args.reason is None and args.question is not None and len(args.question.split()) > 1:
        args.question, args.reason = None, args.question
    return await _decide(store, args, Verdict.DENIED, reason=args.reason)


async def stop(store: Store, args: argparse.Namespace) -> int:
    """Stop a session's run, wherever it runs."""
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


# Questions


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
        return [f"A worker continues it, in the workflow {shortened(summary.workflow, 200)}."]
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
    """Report that the same decision was made already; another one is an error."""
    decision = question.decision
    assert decision is not None
    made = f"{question.about} was {approval_text(decision)}"
    if (decision.verdict, decision.arguments) != (verdict, arguments):
        opened = [_Question(call.id, pending_text(call)) for call in state.pending_calls]
        others = _open_text(opened)
        raise CommandError(
            f"question {short(question.id)} is decided: {made}. {others[0].upper()}{others[1:]}"
        )
    write_lines([f"Nothing changed: {made}.", *_next_commands(args, summary, state)])
    return 0


def _open_text(questions: Sequence[_Question]) -> str:
    if not questions:
        return "no question is open"
    return f"choose from\n{_listed(questions)}"


def _listed(questions: Sequence[_Question]) -> str:
    length = unique_length(asked.id for asked in questions)
    return "\n".join(f"  {shortened(short(asked.id, length))}  {asked.about}" for asked in questions)
