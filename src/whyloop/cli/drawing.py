"""Runs and sessions on a terminal, drawn with Rich, finished or as they happen; text is never markup."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Self

from rich import box
from rich.cells import get_character_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from whyloop.cli.formats import span_text
from whyloop.cli.narration import Headroom, Narrator, headroom_of
from whyloop.cli.renderer import GAP, LABEL_WIDTH, NOTHING, Kind, Line, SessionRow
from whyloop.cli.terminal import STATUS_STYLES
from whyloop.events import AgentEvent, StreamChunkReceived
from whyloop.values.continuation import ContinuationDecision
from whyloop.values.explanation import REASON_LENGTH, Explanation
from whyloop.values.explanation_text import PARTIAL, step_rows, steps_title, when_asked
from whyloop.values.model import Usage
from whyloop.values.next_action import NAME_LENGTH
from whyloop.values.price import dollars
from whyloop.values.state import AgentState
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
    # A result is only worth a glance, so it gets one line; everything else is shown in full.
    grid.add_column(ratio=1, no_wrap=line.kind is Kind.RESULT, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    sign = Text(f" {look.sign}" if has_sign else "", style=look.sign_style)
    grid.add_row(sign, text, Text(f"{GAP}{line.measure}", style="dim"))
    return Padding(grid, (1, 0, 0, 0)) if line.kind in (Kind.QUERY, Kind.WAITED) else grid


def bars(headroom: Sequence[Headroom], usage: Usage) -> RenderableType:
    """Return a bar for each limit, and the tokens and the cost if they have no limit."""
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
    """Return a row for each rule; the rule that decided is marked."""
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
    """Print how a run ended: the headline, the limits, and each rule's decision."""
    console.print(verdict(explanation, usage))
    _draw_rules(console, explanation)


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
    _draw_rules(console, explanation)
    draw_notes(console, notes)


def _draw_rules(console: Console, explanation: Explanation) -> None:
    if explanation.evaluations:
        console.print(rules_table(explanation))
    if explanation.partial:
        console.print(Text(PARTIAL, style="dim"))


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
    """Print a line for each session, and below it the deciding rule and its reason."""
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
        # A command to copy is never broken into several lines.
        console.print(Text(note, style="bold yellow" if number == 1 else ""), soft_wrap=True)


LEAST_WIDTH = 10
REFRESHES_PER_SECOND = 12
# A wait that is longer than this is shown in seconds.
NOTICEABLE_WAIT = 3.0


class LiveView:
    """Print what happened and, while it is live, show what happens now below it.

    An answer is printed row by row as it streams in, however long it is. `hidden` are the kinds of lines to
    leave out, and `idle` is what to show while nothing runs.
    """

    def __init__(
        self,
        console: Console,
        *,
        live: bool = True,
        hidden: Collection[Kind] = (),
        has_bars: bool = True,
        idle: str = "",
    ) -> None:
        self._console = console
        self._hidden = hidden
        self._has_bars = has_bars
        self._idle = idle
        self._narrator = Narrator()
        if idle:
            self._narrator.activity = ""
        self._spinner = Spinner("dots", style="cyan")
        self._note = ""
        self._printed = 0
        self._last_event_at = console.get_time()
        self._live = (
            Live(
                console=console,
                get_renderable=self._current,
                transient=True,
                refresh_per_second=REFRESHES_PER_SECOND,
            )
            if live
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the part that shows what happens now."""
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: AgentEvent) -> None:
        self._last_event_at = self._console.get_time()
        for line in self._narrator.lines(event):
            if line.kind is Kind.ANSWER:
                self._end_answer(line)
            elif line.kind not in self._hidden:
                self._console.print(row(line))
        if self._live is not None:
            self._print_rows()
            # Text may come faster than a terminal can draw; the next refresh shows all of it.
            if not isinstance(event, StreamChunkReceived):
                self._live.refresh()

    def note(self, text: str) -> None:
        """Show a note below the run for as long as it runs."""
        self._note = text
        if self._live is not None:
            self._live.refresh()

    async def result_of(self, task: asyncio.Future[AgentState]) -> AgentState:
        """Return the state at the end of a run."""
        return await task

    def _end_answer(self, line: Line) -> None:
        """Print the rest of an answer that has ended."""
        rest, started = line.text[self._printed :], self._printed > 0
        self._printed = 0
        if rest or line.note:
            self._console.print(row(line._replace(text=rest), has_sign=not started))

    def _print_rows(self) -> None:
        """Print the rows of an answer that no further text can change."""
        rows, length = full_rows(self._narrator.text[self._printed :], self._text_width)
        if rows:
            is_first = not self._printed
            self._printed += length
            self._console.print(row(Line(Kind.ANSWER, "\n".join(rows)), has_sign=is_first))

    @property
    def _text_width(self) -> int:
        return max(LEAST_WIDTH, self._console.width - SIGN_WIDTH - len(GAP))

    def _current(self) -> RenderableType:
        """Return what happens now, and how much of each limit is used."""
        narrator = self._narrator
        if narrator.text:
            text = Text(f" {narrator.text[self._printed :]}")
        elif activity := narrator.activity or self._idle:
            text = Text(f" {activity}", style="cyan")
            waited = self._console.get_time() - self._last_event_at
            if narrator.activity and waited >= NOTICEABLE_WAIT:
                text.append(f"  {span_text(float(int(waited)))}", style="dim")
        else:
            return Text()
        self._spinner.update(text=text)
        parts: list[RenderableType] = [self._spinner]
        if self._note:
            parts.append(Text(self._note, style="yellow"))
        if self._has_bars:
            parts.append(bars(narrator.headroom, narrator.usage))
        above = 0 if narrator.text else 1  # The text continues the rows that are printed.
        return Padding(Group(*parts), (above, 0, 0, 1))


def full_rows(text: str, width: int) -> tuple[list[str], int]:
    """Return the rows that a text certainly fills, and how many characters they take."""
    rows: list[str] = []
    start = 0
    while True:
        piece, newline, _ = text[start : start + width + 1].partition("\n")
        cells = accumulate(map(get_character_cell_size, piece))
        fitting = sum(end <= width for end in cells)
        if fitting < len(piece):
            end = piece.rfind(" ", 0, fitting + 1) + 1 or fitting
        elif newline or len(piece) > width:
            end = len(piece) + len(newline)
        else:
            return rows, start
        rows.append(piece[:end].rstrip())
        start += end
