"""Runs and sessions on a terminal, drawn with Rich. Any text is drawn as text, never as markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from whyloop.cli.narration import Headroom, headroom_of
from whyloop.cli.output import STATUS_STYLES
from whyloop.cli.renderer import GAP, LABEL_WIDTH, NOTHING, Kind, Line, SessionRow
from whyloop.values.continuation import ContinuationDecision
from whyloop.values.explanation import REASON_LENGTH, Explanation
from whyloop.values.explanation_text import step_rows, steps_title, when_asked
from whyloop.values.model import Usage
from whyloop.values.next_action import NAME_LENGTH
from whyloop.values.price import dollars
from whyloop.values.text import shortened

BAR = 20
NUMBER_WIDTH = 5
SIGN_WIDTH = 4
WIDEST = 120
LEAST_TITLE = 12
LONGEST_RUNNER = 16

_DECISION_STYLES = {
    ContinuationDecision.FORBID_CONTINUATION: "bold red",
    ContinuationDecision.REQUEST_CONTINUATION: "cyan",
    ContinuationDecision.ALLOW_STOP: "green",
    ContinuationDecision.ALLOW_CONTINUATION: "dim",
}


def row(line: Line, *, has_sign: bool = True) -> RenderableType:
    """Return one line of a run: a sign, the text, and the measure at the right edge."""
    if line.kind is Kind.STEP:
        return Padding(Rule(Text(line.text, style="bold"), align="left", style="dim"), (1, 0, 0, 0))
    look = line.kind.value
    gap = "  " if line.head and line.text else ""
    text = Text.assemble((line.head, look.head_style), gap, (line.text, look.text_style))
    if line.note:
        text.append(f"  {line.note}", "yellow")
    grid = Table.grid(expand=True)
    grid.add_column(width=SIGN_WIDTH)
    # A result is worth a glance, so it gets one line; everything else is shown to its end.
    grid.add_column(ratio=1, no_wrap=line.kind is Kind.RESULT, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    sign = Text(f" {look.sign}" if has_sign else "", style=look.sign_style)
    grid.add_row(sign, text, Text(f"{GAP}{line.measure}", style="dim"))
    return Padding(grid, (1, 0, 0, 0)) if line.kind in (Kind.QUERY, Kind.WAITED) else grid


def bars(headroom: Sequence[Headroom], usage: Usage) -> RenderableType:
    """Return a bar for each limit, and the tokens and the cost that none limits."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for room in headroom:
        full = max(round(room.share * BAR), 1 if room.used else 0)
        colour = "red" if room.share >= 1 else "yellow" if room.share >= 0.75 else "green"
        bar = Text.assemble(("━" * full, colour), ("─" * (BAR - full), "dim"))
        grid.add_row(Text(room.label, style="dim"), bar, Text(str(room)))
    cost = "" if usage.cost is None else dollars(usage.cost)
    for label, used in (("tokens", f"{usage.total:,}" if usage.total else ""), ("cost", cost)):
        if used and all(room.label != label for room in headroom):
            grid.add_row(Text(label, style="dim"), Text("no limit", style="dim"), Text(used))
    return grid


def verdict(explanation: Explanation, usage: Usage) -> RenderableType:
    """Return the headline and a bar for each limit, in the colour of the status."""
    style = STATUS_STYLES[explanation.status]
    title = Text(explanation.status.replace("_", " ").capitalize(), style=f"bold {style}")
    used = bars(headroom_of(explanation.evaluations), usage)
    parts = Group(Text(explanation.headline), Text(), used)
    return Padding(
        Panel(parts, title=title, title_align="left", border_style=style, padding=(0, 1)), (1, 0, 0, 0)
    )


def rules_table(explanation: Explanation) -> Table:
    """Return a row for each rule, with its decision and reason; the rule that decided is marked."""
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


def draw_end(console: Console, explanation: Explanation, usage: Usage) -> None:
    """Print how a run that was shown ended: the headline, the limits, and what each rule decided."""
    console.print(verdict(explanation, usage))
    if explanation.evaluations:
        console.print(rules_table(explanation))


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
        console.print(Padding(Text(steps_title(explanation), style="bold"), (1, 0, 0, 0)), grid, sep="\n")
    if approvals:
        console.print(Padding(Text("Decided by people", style="bold"), (1, 0, 0, 0)))
        for line in approvals:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    if explanation.evaluations:
        console.print(rules_table(explanation))
    draw_notes(console, notes)


def draw_conversation(
    console: Console, heading: Sequence[tuple[str, str]], lines: Iterable[Line], notes: Sequence[str]
) -> None:
    """Print the heading of a session, everything that happened in it, and notes below."""
    for label, text in heading:
        console.print(Text.assemble((f"{label:<{LABEL_WIDTH}}", "dim"), GAP, text))
    for line in lines:
        console.print(row(line), width=min(console.width, WIDEST))
    draw_notes(console, notes)


def draw_sessions(console: Console, rows: Sequence[SessionRow]) -> None:
    """Print a line for each session, and below it the rule that decided, with its reason."""
    empty = [name for name in ("cost", "runner") if all(getattr(row, name) == NOTHING for row in rows)]
    lines = [Text() for _ in range(len(rows) + 1)]
    for name in SessionRow._fields[: SessionRow._fields.index("rule")]:
        if name in empty:
            continue
        cells = [Text(getattr(row, name), style=_cell_style(name, row)) for row in rows]
        column = [Text(name.replace("_", " "), style="dim"), *cells]
        width = max(cell.cell_len for cell in column)
        if name == "runner":
            width = min(width, LONGEST_RUNNER)
        if name == "title":  # The others are shown whole, to be copied and compared.
            width = min(width, max(LEAST_TITLE, console.width - lines[0].cell_len))
        for line, cell in zip(lines, column, strict=True):
            cell.truncate(width, overflow="ellipsis")
            pad = " " * (width - cell.cell_len)
            line.append_text(
                Text.assemble(pad, cell, GAP)
                if name in ("steps", "cost", "age")
                else Text.assemble(cell, pad, GAP)
            )
    indent = " " * (max(len(row.id) for row in rows) + len(GAP))
    for line, session in zip(lines, (None, *rows), strict=True):
        line.rstrip()
        console.print(line, soft_wrap=True)
        if session is not None and session.rule != NOTHING:
            reason = Text(f"{indent}{session.rule}: {session.reason}", style="dim")
            reason.truncate(console.width, overflow="ellipsis")
            console.print(reason, soft_wrap=True)


def _cell_style(name: str, row: SessionRow) -> str:
    value = getattr(row, name)
    if value == NOTHING or (name == "stop_reason" and value == row.status):
        return "dim"
    return {"id": "bold", "status": STATUS_STYLES[row.status], "runner": "cyan"}.get(name, "")


def draw_notes(console: Console, notes: Sequence[str]) -> None:
    """Print the notes below a blank line, the first of them in colour."""
    for number, note in enumerate(["", *notes] if notes else []):
        # A command to copy is never broken into lines of its own.
        console.print(Text(note, style="bold yellow" if number == 1 else ""), soft_wrap=True)
