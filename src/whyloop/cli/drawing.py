"""The pieces of terminal views. Any text is drawn as text, never as markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from whyloop.cli.narration import Headroom, Kind, Line, headroom_of
from whyloop.cli.terminal import STATUS_STYLES
from whyloop.values.continuation import ContinuationDecision
from whyloop.values.explanation import REASON_LENGTH, Explanation
from whyloop.values.explanation_text import step_rows, when_asked
from whyloop.values.next_action import NAME_LENGTH
from whyloop.values.text import shortened

BAR = 20
NUMBER_WIDTH = 5

_DECISION_STYLES = {
    ContinuationDecision.FORBID_CONTINUATION: "bold red",
    ContinuationDecision.REQUEST_CONTINUATION: "cyan",
    ContinuationDecision.ALLOW_STOP: "green",
    ContinuationDecision.ALLOW_CONTINUATION: "dim",
}

# The sign before a line, its style, the style of its head, and that of its text.
_LOOKS = {
    Kind.QUERY: ("❯", "bold magenta", "", "bold"),
    Kind.WAITED: ("…", "yellow", "", "yellow"),
    Kind.ANSWER: ("◆", "blue", "", ""),
    Kind.DONE: ("✓", "green", "bold", ""),
    Kind.FAILED: ("✗", "red", "bold red", ""),
    Kind.PROBLEM: ("✗", "red", "bold red", ""),
    Kind.OPEN: ("?", "yellow", "bold", "yellow"),
    Kind.DECIDED: ("✓", "magenta", "bold", ""),
    Kind.RESULT: ("", "", "", "dim"),
    Kind.ERROR: ("", "", "", ""),
    Kind.POLICY: ("↻", "yellow", "bold yellow", "dim"),
    Kind.CONTINUE: ("→", "cyan", "bold cyan", "dim"),
    Kind.COMPLETE: ("■", "green", "bold green", ""),
    Kind.STOP: ("■", "yellow", "bold yellow", ""),
}


def row(line: Line) -> RenderableType:
    """Return one line of a run: a sign, the text, and the measure at the right edge."""
    if line.kind is Kind.STEP:
        return Padding(Rule(Text(line.text, style="bold"), align="left", style="dim"), (1, 0, 0, 0))
    sign, sign_style, head_style, style = _LOOKS[line.kind]
    gap = "  " if line.head and line.text else ""
    text = Text.assemble((line.head, head_style), gap, (line.text, style))
    if line.note:
        text.append(f"  {line.note}", "yellow")
    grid = Table.grid(expand=True)
    grid.add_column(width=4)
    # A result is worth a glance, so it gets one line; everything else is shown to its end.
    grid.add_column(ratio=1, no_wrap=line.kind is Kind.RESULT, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(Text(f" {sign}", style=sign_style), text, Text(f"  {line.measure}", style="dim"))
    return Padding(grid, (1, 0, 0, 0)) if line.kind in (Kind.QUERY, Kind.WAITED) else grid


def bars(headroom: Sequence[Headroom], tokens: int) -> RenderableType:
    """Return a bar for each limit."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for room in headroom:
        full = max(round(room.share * BAR), 1 if room.used else 0)
        colour = "red" if room.share >= 1 else "yellow" if room.share >= 0.75 else "green"
        bar = Text.assemble(("━" * full, colour), ("─" * (BAR - full), "dim"))
        grid.add_row(Text(room.label, style="dim"), bar, Text(str(room)))
    if tokens and all(room.label != "tokens" for room in headroom):
        grid.add_row(Text("tokens", style="dim"), Text("no limit", style="dim"), Text(f"{tokens:,}"))
    return grid


def verdict(explanation: Explanation, tokens: int) -> RenderableType:
    """Return the headline and a bar for each limit, in the colour of the status."""
    style = STATUS_STYLES[explanation.status]
    title = Text(explanation.status.replace("_", " ").capitalize(), style=f"bold {style}")
    used = bars(headroom_of(explanation.evaluations), tokens)
    parts = Group(Text(explanation.headline), Text(), used)
    return Padding(
        Panel(parts, title=title, title_align="left", border_style=style, padding=(0, 1)), (1, 0, 0, 0)
    )


def rules_table(explanation: Explanation) -> Table:
    """Return a row for each rule, with its decision and reason; the rule that decided stands out."""
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


def draw_explanation(
    console: Console, explanation: Explanation, approvals: Sequence[str], notes: Sequence[str]
) -> None:
    """Print an explanation, the decisions of people, and notes below them."""
    console.print(Text(explanation.headline, style=f"bold {STATUS_STYLES[explanation.status]}"))
    if explanation.steps:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=NUMBER_WIDTH, justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
        for number, text in step_rows(explanation.steps):
            grid.add_row(Text(number, style="dim"), Text(text))
        console.print(Padding(Text("Steps", style="bold"), (1, 0, 0, 0)), grid, sep="\n")
    if approvals:
        console.print(Padding(Text("Decided by people", style="bold"), (1, 0, 0, 0)))
        for line in approvals:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    if explanation.evaluations:
        console.print(rules_table(explanation))
    draw_notes(console, notes)


def draw_notes(console: Console, notes: Sequence[str]) -> None:
    """Print the notes below a blank line, the first of them in colour."""
    for number, note in enumerate(["", *notes] if notes else []):
        # A command to copy is never broken into lines of its own.
        console.print(Text(note, style="bold yellow" if number == 1 else ""), soft_wrap=True)
