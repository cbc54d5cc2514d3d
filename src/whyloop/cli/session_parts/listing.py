"""Sessions as a table."""

from __future__ import annotations

from collections.abc import Sequence

from whyloop.cli.session_parts.ages import age
from whyloop.cli.session_parts.find import unique_length
from whyloop.cli.session_parts.options import short
from whyloop.cli.terminal import STATUS_STYLES, is_terminal, terminal, write_lines
from whyloop.stores.records import Summary
from whyloop.values.text import shortened

ID, STATUS, REASON, STEPS, AGE, RUNNER, TITLE = range(7)
NUMBERS = (STEPS, AGE)
HEADS = ("ID", "STATUS", "STOP REASON", "STEPS", "AGE", "RUNNER", "TITLE")
NOTHING = "-"
LONGEST_ID = 64
LONGEST_RUNNER = 16
LEAST_TITLE = 12
GAP = "  "


def show_sessions(sessions: Sequence[Summary]) -> None:
    """A table for whoever watches, aligned lines for a pipe."""
    length = unique_length([summary.agent_id for summary in sessions])
    rows = [_row(summary, length) for summary in sessions]
    if is_terminal():
        _draw(rows)
        return
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    write_lines(
        [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (HEADS, *rows)
        ]
    )


def _row(summary: Summary, length: int) -> tuple[str, ...]:
    return (
        shortened(short(summary.agent_id, length), LONGEST_ID),
        summary.status.value,
        summary.stop_reason or NOTHING,
        str(summary.step_count),
        age(summary.started_at),
        shortened(summary.runner or NOTHING),
        shortened(summary.title or NOTHING),
    )


def _draw(rows: Sequence[tuple[str, ...]]) -> None:
    from rich.text import Text

    console = terminal()
    lines = [Text() for _ in (HEADS, *rows)]
    for index, head in enumerate(HEADS):
        if index == RUNNER and all(row[RUNNER] == NOTHING for row in rows):
            continue  # Most of the time nobody runs any of them, and the place is better used.
        column = [
            Text(head.lower(), style="dim"),
            *(Text(row[index], style=_style(index, row)) for row in rows),
        ]
        width = max(text.cell_len for text in column)
        if index == RUNNER:
            width = min(width, LONGEST_RUNNER)
        if index == TITLE:  # It gives way; what is to be copied or compared is shown whole.
            width = min(width, max(LEAST_TITLE, console.width - lines[0].cell_len))
        for line, text in zip(lines, column, strict=True):
            text.truncate(width, overflow="ellipsis")
            pad = " " * (width - text.cell_len)
            line.append_text(
                Text.assemble(pad, text, GAP) if index in NUMBERS else Text.assemble(text, pad, GAP)
            )
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)


def _style(index: int, row: tuple[str, ...]) -> str:
    if row[index] == NOTHING or (index == REASON and row[REASON] == row[STATUS]):
        return "dim"
    return {ID: "bold", STATUS: STATUS_STYLES[row[STATUS]], RUNNER: "cyan"}.get(index, "")
