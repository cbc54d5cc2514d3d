"""A run on a terminal, as it happens: what is done stays, and below it moves what is being done."""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate
from types import TracebackType
from typing import Self

from rich.cells import get_character_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from whyloop.cli.drawing import SIGN_WIDTH, bars, row
from whyloop.cli.formats import span_text
from whyloop.cli.narration import Narrator
from whyloop.cli.renderer import GAP, Kind, Line
from whyloop.events import AgentEvent, StreamChunkReceived

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
        """Show something below the run for as long as it runs."""
        self._note = text
        if self._live is not None:
            self._live.refresh()

    def _end_answer(self, line: Line) -> None:
        """Print what is left of an answer that has ended."""
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
    """Return the rows that a text fills whatever follows it, and how many of its characters they take."""
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
