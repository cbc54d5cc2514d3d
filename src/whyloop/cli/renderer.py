"""An explanation on a terminal or in a pipe, and the commands that let the run continue."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from whyloop.cli.session_parts.arguments import exact
from whyloop.cli.session_parts.options import AN_AGENT, command
from whyloop.cli.terminal import STATUS_STYLES, is_terminal, print_notes, terminal, write_lines
from whyloop.values.approval import Approval, PendingCall
from whyloop.values.budget import Budget
from whyloop.values.continuation import ContinuationDecision
from whyloop.values.explanation import REASON_LENGTH, Explanation
from whyloop.values.explanation_text import (
    evaluation_lines,
    evaluations_title,
    section,
    step_lines,
    step_rows,
    when_asked,
)
from whyloop.values.next_action import NAME_LENGTH, ActionKind, NextAction, next_actions_of
from whyloop.values.state import AgentState
from whyloop.values.text import counted, shortened

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

QUESTION_LENGTH = 600
NUMBER_WIDTH = 5

_DECISION_STYLES = {
    ContinuationDecision.FORBID_CONTINUATION: "bold red",
    ContinuationDecision.REQUEST_CONTINUATION: "cyan",
    ContinuationDecision.ALLOW_STOP: "green",
    ContinuationDecision.ALLOW_CONTINUATION: "dim",
}


def show_explanation(explanation: Explanation, notes: Sequence[str] = ()) -> None:
    """Print an explanation: in colours on a terminal, as plain lines in a pipe."""
    if is_terminal():
        _draw(terminal(), explanation, notes)
    else:
        write_lines([*explanation_lines(explanation), *(["", *notes] if notes else [])])


def explanation_lines(explanation: Explanation) -> list[str]:
    """Return the explanation as plain lines, with what people decided; commands stand for its actions."""
    return [
        explanation.headline,
        *section("Steps", step_lines(explanation.steps)),
        *section("Decided by people", [f"  {line}" for line in _approval_lines(explanation)]),
        *section(evaluations_title(explanation), evaluation_lines(explanation.evaluations)),
    ]


def rules_table(explanation: Explanation) -> Table:
    """Return a row a rule, with its decision and reason; the rule that decided stands out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column("")
    table.add_column("decision", no_wrap=True)
    table.add_column("rule", overflow="fold")
    table.add_column(Text(when_asked(explanation)), overflow="fold", ratio=1)
    deciding = explanation.deciding
    for evaluation in explanation.evaluations:
        style = "bold" if evaluation is deciding else ""
        table.add_row(
            Text("▶" if evaluation is deciding else " "),
            Text(evaluation.decision.value, style=_DECISION_STYLES[evaluation.decision]),
            Text(shortened(evaluation.criterion, NAME_LENGTH), style=style),
            Text(shortened(evaluation.reason, REASON_LENGTH), style=style),
        )
    return table


def approval_text(approval: Approval) -> str:
    """Return a person's decision: "edited by ada, 2026-03-01 12:00 UTC"."""
    reason = f": {shortened(approval.reason, REASON_LENGTH)}" if approval.reason else ""
    arguments = f": {' '.join(exact(approval.arguments))}" if approval.arguments is not None else ""
    when = f"{approval.at:%Y-%m-%d %H:%M} UTC"
    return f"{approval.verdict} by {shortened(approval.by)}, {when}{reason}{arguments}"


def next_commands(
    args: argparse.Namespace,
    state: AgentState,
    session: str,
    *,
    runner: str | None = None,
    agent: tuple[str, ...] = AN_AGENT,
    full: bool = False,
) -> list[str]:
    """Return the questions that wait for a person, and the commands that let the run continue.

    `session` is how the session was named, `runner` is who runs it now, `agent` the options that
    describe the agent.
    """
    if runner is not None:
        return [f"{shortened(runner)} runs it. Stop it: {command(args, 'stop', session)}"]
    lines = _question_lines(args, state.pending_calls, session, full)
    actions = [action for action in next_actions_of(state) if action.kind is not ActionKind.DECIDE]
    if lines and actions:
        lines.append("")
    return lines + [_action_line(args, action, session, agent) for action in actions]


def _action_line(args: argparse.Namespace, action: NextAction, session: str, agent: tuple[str, ...]) -> str:
    text = action.text[0].upper() + action.text[1:]
    match action.kind:
        case ActionKind.ASK:
            return f"{text}: {command(args, 'run', '…', options=('--session', session, *agent))}"
        case ActionKind.RESUME | ActionKind.GRANT:
            options = (*agent, *_grant_options(action.grant))
            return f"{text}: {command(args, 'resume', session, options=options)}"
    return f"{text}: {action.code}" if action.code else text


def _grant_options(grant: Budget | None) -> list[str]:
    granted = asdict(grant) if grant else {}
    return [word for name, more in granted.items() if more for word in (f"--grant-{name}", f"{more:g}")]


def _question_lines(
    args: argparse.Namespace, calls: tuple[PendingCall, ...], session: str, full: bool
) -> list[str]:
    if not calls:
        return []
    lines = [f"{counted(len(calls), 'tool call')} {'waits' if len(calls) == 1 else 'wait'} for a person"]
    for call in calls:
        lines += [
            "",
            f"  {shortened(call.id)}  {shortened(call.question, QUESTION_LENGTH)}",
            *(f"    {line}" for line in exact(call.arguments, full=full)),
            f"    {command(args, 'approve', session, call.id)}",
            f"    {command(args, 'deny', session, call.id, 'why not')}",
        ]
    return lines


def _approval_lines(explanation: Explanation) -> list[str]:
    return [
        f"{call.name} ({call.id}) {approval_text(approval)}"
        for step in explanation.steps
        for call in step.calls
        for approval in call.approvals
    ]


def _draw(console: Console, explanation: Explanation, notes: Sequence[str]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console.print(Text(explanation.headline, style=f"bold {STATUS_STYLES[explanation.status]}"))
    if explanation.steps:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=NUMBER_WIDTH, justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
        for number, text in step_rows(explanation.steps):
            grid.add_row(Text(number, style="dim"), Text(text))
        console.print(Padding(Text("Steps", style="bold"), (1, 0, 0, 0)), grid, sep="\n")
    if approvals := _approval_lines(explanation):
        console.print(Padding(Text("Decided by people", style="bold"), (1, 0, 0, 0)))
        for line in approvals:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    if explanation.evaluations:
        console.print(rules_table(explanation))
    print_notes(console, notes)
