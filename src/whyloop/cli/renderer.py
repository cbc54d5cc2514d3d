"""Explanations as plain lines or on a terminal, and the commands that let a run continue."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from msgspec.structs import asdict

from whyloop.cli.command_lines import AN_AGENT, command_line, short, unique_length
from whyloop.cli.formats import arguments_summary, exact_arguments
from whyloop.cli.terminal import is_terminal, terminal, write_lines
from whyloop.values.approval import Approval, PendingCall
from whyloop.values.budget import Budget
from whyloop.values.explanation import REASON_LENGTH, Explanation
from whyloop.values.explanation_text import evaluation_lines, evaluations_title, section, step_lines
from whyloop.values.next_action import ActionKind, NextAction, next_actions_of
from whyloop.values.state import AgentState
from whyloop.values.text import counted, shortened

QUESTION_LENGTH = 600


def show_explanation(explanation: Explanation, notes: Sequence[str] = ()) -> None:
    """Print an explanation: in colours on a terminal, as plain lines in a pipe."""
    if is_terminal():
        from whyloop.cli.drawing import draw_explanation

        draw_explanation(terminal(), explanation, _approval_lines(explanation), notes)
    else:
        write_lines([*explanation_lines(explanation), *(["", *notes] if notes else [])])


def explanation_lines(explanation: Explanation) -> list[str]:
    """Return the explanation as plain lines, with the decisions of people but without its actions."""
    return [
        explanation.headline,
        *section("Steps", step_lines(explanation.steps)),
        *section("Repeated calls", [f"  {call.text}" for call in explanation.repeated_calls]),
        *section("Decided by people", [f"  {line}" for line in _approval_lines(explanation)]),
        *section(evaluations_title(explanation), evaluation_lines(explanation.evaluations)),
    ]


def approval_text(approval: Approval) -> str:
    """Return a person's decision: "edited by ada, 2026-03-01 12:00 UTC"."""
    reason = f": {shortened(approval.reason, REASON_LENGTH)}" if approval.reason else ""
    arguments = f": {' '.join(exact_arguments(approval.arguments))}" if approval.arguments is not None else ""
    when = f"{approval.at:%Y-%m-%d %H:%M} UTC"
    return f"{approval.verdict} by {shortened(approval.by)}, {when}{reason}{arguments}"


def pending_text(call: PendingCall) -> str:
    """Return what a question is about: "pay(amount: 500, to: 'Bob')", or the run itself."""
    return f"{shortened(call.name)}({arguments_summary(call.arguments)})" if call.call_id else "the run"


def next_commands(
    args: argparse.Namespace,
    state: AgentState,
    session: str,
    *,
    runner: str | None = None,
    agent: tuple[str, ...] = AN_AGENT,
    full: bool = False,
) -> list[str]:
    """Return the open questions, and the commands that let the run continue.

    `session` is how the session was named, `runner` the process that runs it now, `agent` the options that
    describe the agent.
    """
    if runner is not None:
        return [f"{shortened(runner)} runs it. Stop it: {command_line(args, 'stop', session)}"]
    lines = _question_lines(args, state.pending_calls, session, full)
    actions = [action for action in next_actions_of(state) if action.kind is not ActionKind.DECIDE]
    if lines and actions:
        lines.append("")
    return lines + [_action_line(args, action, session, agent) for action in actions]


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


def _question_lines(
    args: argparse.Namespace, calls: tuple[PendingCall, ...], session: str, full: bool
) -> list[str]:
    if not calls:
        return []
    waits = "waits" if len(calls) == 1 else "wait"
    lines = [f"{counted(len(calls), 'question')} {waits} for a person"]
    length = unique_length(call.id for call in calls)
    for call in calls:
        question = short(call.id, length)
        arguments = exact_arguments(call.arguments, full=full) if call.call_id else []
        lines += [
            "",
            f"  {shortened(question)}  {shortened(call.question, QUESTION_LENGTH)}",
            *(f"    {line}" for line in arguments),
            f"    {command_line(args, 'approve', session, question)}",
            f"    {command_line(args, 'deny', session, question, 'why not')}",
        ]
    return lines


def _approval_lines(explanation: Explanation) -> list[str]:
    about_calls = [
        (call.name, approval)
        for step in explanation.steps
        for call in step.calls
        for approval in call.approvals
    ]
    decided = [*about_calls, *[("the run", approval) for approval in explanation.approvals]]
    return [
        f"{about} (question {shortened(short(approval.question_id))}) {approval_text(approval)}"
        for about, approval in decided
    ]
