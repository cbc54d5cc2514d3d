"""Runs and sessions on a terminal, drawn with Rich. Any text is drawn as text, never as markup."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from whyloop.cli.narration import Headroom, Narrator, headroom_of
from whyloop.cli.output import STATUS_STYLES
from whyloop.cli.renderer import GAP, LABEL_WIDTH, NOTHING, Kind, Line, SessionRow
from whyloop.events import AgentEvent
from whyloop.values.continuation import ContinuationDecision
from whyloop.values.explanation import REASON_LENGTH, Explanation
from whyloop.values.explanation_text import step_rows, when_asked
from whyloop.values.next_action import NAME_LENGTH
from whyloop.values.state import AgentState
from whyloop.values.text import shortened

if TYPE_CHECKING:
    from whyloop.cli.demo.scenarios import Scenario
    from whyloop.models.local import LocalServer

BAR = 20
NUMBER_WIDTH = 5
WIDEST = 120
DEMO_WIDTH = 100
LEAST_TITLE = 12
LONGEST_RUNNER = 16

_DECISION_STYLES = {
    ContinuationDecision.FORBID_CONTINUATION: "bold red",
    ContinuationDecision.REQUEST_CONTINUATION: "cyan",
    ContinuationDecision.ALLOW_STOP: "green",
    ContinuationDecision.ALLOW_CONTINUATION: "dim",
}


def row(line: Line) -> RenderableType:
    """Return one line of a run: a sign, the text, and the measure at the right edge."""
    if line.kind is Kind.STEP:
        return Padding(Rule(Text(line.text, style="bold"), align="left", style="dim"), (1, 0, 0, 0))
    look = line.kind.value
    gap = "  " if line.head and line.text else ""
    text = Text.assemble((line.head, look.head_style), gap, (line.text, look.text_style))
    if line.note:
        text.append(f"  {line.note}", "yellow")
    grid = Table.grid(expand=True)
    grid.add_column(width=4)
    # A result is worth a glance, so it gets one line; everything else is shown to its end.
    grid.add_column(ratio=1, no_wrap=line.kind is Kind.RESULT, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(Text(f" {look.sign}", style=look.sign_style), text, Text(f"  {line.measure}", style="dim"))
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
    has_runners = any(row.runner != NOTHING for row in rows)
    lines = [Text() for _ in range(len(rows) + 1)]
    for name in SessionRow._fields[: SessionRow._fields.index("rule")]:
        if name == "runner" and not has_runners:
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
                Text.assemble(pad, cell, GAP) if name in ("steps", "age") else Text.assemble(cell, pad, GAP)
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


# The demo


class LiveView:
    """Print what happened and, while it is live, show what happens now below it."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._narrator = Narrator()
        self._spinner = Spinner("dots", style="cyan")
        self._live = (
            Live(console=console, get_renderable=self._activity, transient=True, refresh_per_second=12)
            if live
            else None
        )

    def __enter__(self) -> LiveView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_live()

    def open(self, scenario: Scenario) -> None:
        """Print what is about to be shown."""
        self._console.print(_banner(scenario))
        if self._live is not None:
            self._live.start()

    def __call__(self, event: AgentEvent) -> None:
        for line in self._narrator.lines(event):
            self._console.print(row(line))
        if self._live is not None:
            self._live.refresh()

    def close(self, state: AgentState, hint: str = "") -> None:
        """Print the explanation: the headline, what each rule decided, what would let the run continue."""
        self._end_live()
        explanation = state.explanation
        self._console.print(verdict(explanation, state.execution.usage.total))
        if explanation.evaluations:
            self._console.print(rules_table(explanation))
        if explanation.next_actions:
            self._console.print(Text("To continue", style="bold"))
            for action in explanation.next_actions:
                self._console.print(Padding(Text(str(action)), (0, 0, 0, 2)))
        if hint:
            self._console.print(Text(hint, style="dim"))

    def _activity(self) -> RenderableType:
        self._spinner.update(text=Text(self._narrator.activity, style="cyan"))
        used = bars(self._narrator.headroom, self._narrator.tokens)
        return Padding(Group(self._spinner, used), (1, 0, 0, 1))

    def _end_live(self) -> None:
        """Remove the part that shows what happens now."""
        if self._live is not None:
            self._live.stop()


def show_in_short(console: Console, scenario: Scenario, state: AgentState) -> None:
    """Print a scenario in two lines: its title, and how it ended, in the colour of its status."""
    style = STATUS_STYLES[state.status]
    console.print(Text.assemble((scenario.name, f"bold {style}"), f"  {scenario.title}"))
    console.print(Padding(Text(state.explanation.headline, style="dim"), (0, 0, 1, 2)))


def start_server(console: Console) -> LocalServer:
    """Start the server of the local model, with a bar that moves until it is ready."""
    from whyloop.models.local import LocalServer

    columns = (TextColumn("{task.description}", style="cyan"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("Starting the model", total=None)
        return LocalServer()


def _banner(scenario: Scenario) -> RenderableType:
    text = Text.assemble((scenario.title, "bold"), f"\n{scenario.shows}")
    if scenario.settings:
        text.append("\n\nAgent(model, tools, ", "dim").append(scenario.settings, "cyan").append(")", "dim")
    title = Text(f"whyloop demo {scenario.name}", style="bold cyan")
    return Panel(text, title=title, title_align="left", border_style="cyan", padding=(0, 1))


def svg(scenario: Scenario) -> str:
    """Return the scenario as a terminal shows it, the same on every run."""
    from whyloop.cli.demo.scenarios import play

    console = Console(
        record=True,
        width=DEMO_WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with LiveView(console, live=False) as view:
        view.open(scenario)
        view.close(play(scenario, view))
    picture = console.export_svg(title=f"whyloop demo {scenario.name}", unique_id=f"whyloop-{scenario.name}")
    # Rich would fetch its font from another site.
    return re.sub(r"<!--.*?-->|@font-face \{.*?\}", "", picture, flags=re.DOTALL)
