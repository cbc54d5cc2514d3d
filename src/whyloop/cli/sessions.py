"""`whyloop sessions`: the sessions of a store, newest first."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from whyloop.cli.command_lines import short, unique_length
from whyloop.cli.formats import age, before_now
from whyloop.cli.terminal import STATUS_STYLES, is_terminal, terminal, write_error, write_json, write_lines
from whyloop.errors import ConfigurationError
from whyloop.stores.records import Page, Summary
from whyloop.stores.store import PAGE, Store
from whyloop.values.text import clean, shortened

PAGE_OF_ALL = 1000
NOTHING = "-"
LONGEST_ID = 64
LONGEST_RUNNER = 16
LONGEST_REASON = 200
LEAST_TITLE = 12
GAP = "  "

# A terminal shows these columns, and the rule with its reason below each row.
ID, STATUS, STOP_REASON, STEPS, AGE, RUNNER, TITLE, RULE, REASON = range(9)
HEADS = ("ID", "STATUS", "STOP REASON", "STEPS", "AGE", "RUNNER", "TITLE", "RULE", "REASON")
NUMBERS = (STEPS, AGE)

PlainValue = str | int | float | bool | None
Row = tuple[str, ...]


async def list_sessions(store: Store, args: argparse.Namespace) -> int:
    """Print the sessions that meet every condition."""
    page = await _find(store, args)
    if args.json:
        write_json({"sessions": [_document(summary) for summary in page.sessions], "next": page.next})
        return 0
    if page.sessions:
        _show(page.sessions)
    else:
        write_error(
            "No session meets the conditions." if _is_filtered(args) else "There are no sessions yet."
        )
    if page.next:
        write_error(f"There are more: --after {page.next}, or --all")
    return 0


async def _find(store: Store, args: argparse.Namespace) -> Page:
    metadata = _parse_metadata(args.metadata)
    limit = args.limit if args.limit is not None else PAGE_OF_ALL if args.all else PAGE
    sessions: list[Summary] = []
    cursor = args.after
    while True:
        page = await store.sessions(
            status=args.status,
            stop_reason=args.stop_reason,
            started_before=None if args.older_than is None else before_now(args.older_than),
            started_after=None if args.newer_than is None else before_now(args.newer_than),
            metadata=metadata,
            resolved_by=args.rule,
            agent=args.agent,
            limit=limit,
            after=cursor,
        )
        sessions += page.sessions
        cursor = page.next
        if cursor is None or not args.all:
            return Page(tuple(sessions), cursor)


def _is_filtered(args: argparse.Namespace) -> bool:
    conditions = (args.status, args.stop_reason, args.rule, args.agent, args.older_than, args.newer_than)
    return any((*conditions, args.metadata, args.after))


def _document(summary: Summary) -> dict[str, Any]:
    """Return every field of a summary as plain data."""
    return {name: msgspec.to_builtins(getattr(summary, name)) for name in summary.__struct_fields__}


def _parse_metadata(words: Iterable[str]) -> dict[str, PlainValue]:
    """Return the entries that "key=value" words name; a value is JSON or else text."""
    return dict(_entry(clean(word)) for word in words)


def _entry(word: str) -> tuple[str, PlainValue]:
    key, equals, value = word.partition("=")
    if not key or not equals:
        raise ConfigurationError(f"--metadata {shortened(word, 80)}: write key=value")
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return key, value
    if isinstance(parsed, dict | list):
        raise ConfigurationError(
            f"--metadata {shortened(word, 80)}: only text, numbers, true, false and null can be compared"
        )
    return key, parsed


# The table


def _show(sessions: Sequence[Summary]) -> None:
    length = unique_length(summary.agent_id for summary in sessions)
    rows = [_row(summary, length) for summary in sessions]
    if is_terminal():
        _draw(rows)
        return
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    write_lines(
        [
            GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (HEADS, *rows)
        ]
    )


def _row(summary: Summary, length: int) -> Row:
    return (
        shortened(short(summary.agent_id, length), LONGEST_ID),
        summary.status.value,
        summary.stop_reason or NOTHING,
        str(summary.step_count),
        age(summary.started_at),
        shortened(summary.runner or NOTHING),
        shortened(summary.title or NOTHING),
        shortened(summary.resolved_by or NOTHING, 64),
        shortened(summary.reason or NOTHING, LONGEST_REASON),
    )


def _draw(rows: Sequence[Row]) -> None:
    from rich.text import Text

    console = terminal()
    lines = [Text() for _ in (HEADS, *rows)]
    for index in range(RULE):
        if index == RUNNER and all(row[RUNNER] == NOTHING for row in rows):
            continue
        column = [
            Text(HEADS[index].lower(), style="dim"),
            *(Text(row[index], style=_style(index, row)) for row in rows),
        ]
        width = max(text.cell_len for text in column)
        if index == RUNNER:
            width = min(width, LONGEST_RUNNER)
        if index == TITLE:  # The others are shown whole, to be copied and compared.
            width = min(width, max(LEAST_TITLE, console.width - lines[0].cell_len))
        for line, text in zip(lines, column, strict=True):
            text.truncate(width, overflow="ellipsis")
            pad = " " * (width - text.cell_len)
            line.append_text(
                Text.assemble(pad, text, GAP) if index in NUMBERS else Text.assemble(text, pad, GAP)
            )
    indent = " " * (max(len(row[ID]) for row in rows) + len(GAP))
    for number, line in enumerate(lines):
        line.rstrip()
        console.print(line, soft_wrap=True)
        if number and rows[number - 1][RULE] != NOTHING:
            row = rows[number - 1]
            reason = Text(f"{indent}{row[RULE]}: {row[REASON]}", style="dim")
            reason.truncate(console.width, overflow="ellipsis")
            console.print(reason, soft_wrap=True)


def _style(index: int, row: Row) -> str:
    if row[index] == NOTHING or (index == STOP_REASON and row[STOP_REASON] == row[STATUS]):
        return "dim"
    return {ID: "bold", STATUS: STATUS_STYLES[row[STATUS]], RUNNER: "cyan"}.get(index, "")
