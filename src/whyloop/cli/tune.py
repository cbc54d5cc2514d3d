"""`whyloop tune`: what each value of a limit would have cut and saved, and a recommendation."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from decimal import Decimal
from html import escape
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from whyloop.cli.formats import long_span_text, span_text
from whyloop.cli.renderer import table_lines
from whyloop.cli.store_access import filters_of, open_named_store
from whyloop.cli.terminal import (
    FAILED,
    USAGE_ERROR,
    CommandError,
    progress,
    using_file,
    write_error,
    write_json,
    write_lines,
    write_problems,
)
from whyloop.replay import Curve, Row, Survey, Surveyor, curves_of, read_runs, rules_for
from whyloop.replay.recording import PAGE, read_page
from whyloop.replay.tuning import percent, value_text
from whyloop.rules.limits import Limit
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.price import dollars
from whyloop.values.text import counted, shortened
from whyloop.wire.journal import no_garbage_collection

MOST_ROWS = 16
BAR = 24
_HEADS = ("  VALUE", "RUNS CUT", "COMPLETED", "BEYOND", "STEPS", "TOKENS", "TIME", "COST", "SAVED")
DEFAULT_LIMITS = ("max_steps", "max_tokens", "timeout", "max_cost")


async def tune(store: Store, args: argparse.Namespace) -> int:
    """Print a curve over the values of each limit, and a recommendation."""
    if not 0 < args.keep <= 100:
        raise CommandError(f"invalid --keep {args.keep:g}: use a percentage above 0, up to 100", USAGE_ERROR)
    rules = rules_for(args.limits or DEFAULT_LIMITS)
    with progress("read") as advance:
        found = await _survey(store, args, rules, advance)
    period = f"of the last {long_span_text(args.newer_than.total_seconds())}" if args.newer_than else ""
    curves = curves_of(found, keep=args.keep / 100, period=period)
    if args.html is not None:
        _write_page(args.html, page_of(found, curves))
    if args.json:
        write_json(_document(found, curves))
    else:
        write_lines(_lines(found, curves))
    write_problems(found.problems)
    return 0


def _write_page(path: str, text: str) -> None:
    with using_file("write", path):
        Path(path).write_text(text, encoding="utf-8")
    write_error(f"Charts are in {shortened(path)}")


# Reading, with more than one process if there is more than one page


async def _survey(
    store: Store, args: argparse.Namespace, rules: Sequence[Limit], advance: Callable[..., None]
) -> Survey:
    surveyor, filters = Surveyor(rules), filters_of(args)
    processes = (os.cpu_count() or 1) if args.processes is None else args.processes
    if processes < 1:
        raise CommandError(f"invalid --processes {processes}: use 1 or more", USAGE_ERROR)
    page = await store.sessions(limit=PAGE, **filters)
    if page.next is None or processes == 1:
        async for found in read_runs(store, filters):
            surveyor.add(found)
            advance()
        return surveyor.result()
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_ignore_interrupts) as pool:
        counting = deque([pool.submit(_count, args.store, page.sessions, tuple(rules))])
        try:
            while counting:
                # A few pages ahead, so that no process waits and memory use does not grow.
                while page.next is not None and len(counting) <= 2 * processes:
                    page = await store.sessions(limit=PAGE, after=page.next, **filters)
                    counting.append(pool.submit(_count, args.store, page.sessions, tuple(rules)))
                surveyor.merge(await asyncio.wrap_future(counting.popleft()))
                advance(PAGE)
        except BrokenProcessPool:
            text = "a process that read the store ended unexpectedly: try --processes 1"
            raise CommandError(text, FAILED) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return surveyor.result()


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _count(address: str | None, sessions: Sequence[Summary], rules: Sequence[Limit]) -> Surveyor:
    """Survey a page of sessions in another process."""

    async def work() -> Surveyor:
        surveyor = Surveyor(rules)
        async with open_named_store(address) as store:
            async for found in read_page(store, sessions):
                surveyor.add(found)
        return surveyor

    with no_garbage_collection():  # It saves a fifth of the time; a page leaves hardly any garbage.
        return asyncio.run(work())


# What is printed


def _document(found: Survey, curves: Sequence[Curve]) -> dict[str, Any]:
    return {
        "sessions": found.sessions,
        "runs": found.runs,
        "completed": found.completed,
        "used": found.used.to_dict(),
        "limits": [
            {
                "name": curve.name,
                "knee": curve.knee,
                "recommended": curve.recommended,
                "interval": curve.interval,
                "sentence": curve.sentence,
                "values": [_row_document(row) for row in curve.rows],
            }
            for curve in curves
        ],
        "problem_count": found.problem_count,
        "problems": [asdict(each) for each in found.problems],
    }


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "value": row.rule.limit,
        "cut": row.cut,
        "completed": row.completed,
        "beyond": row.beyond,
        "saved": row.saved.to_dict(),
        "unknown_tokens": row.unknown_tokens,
        "unknown_cost": row.unknown_cost,
    }


def _lines(found: Survey, curves: Sequence[Curve]) -> list[str]:
    runs, sessions = counted(found.runs, "run"), counted(found.sessions, "session")
    lines = [f"{runs} of {sessions}, {found.completed:,} completed."]
    for curve in curves:
        table, left_out = _table_lines(found, curve), _left_out_lines(curve)
        lines += ["", curve.name, *table, "", f"  {curve.sentence}", *left_out]
    if found.problem_count:
        lines += ["", f"{counted(found.problem_count, 'session')} could not be judged."]
    return lines


def _left_out_lines(curve: Curve) -> list[str]:
    """Return what the sums of a table leave out, if it shows them."""
    lines = []
    for verb, name in (("tokens are", "tokens"), ("cost is", "cost")):
        runs = max(getattr(row, f"unknown_{name}") for row in curve.rows)
        if runs and any(getattr(row.saved, name) for row in curve.rows):
            text = f"The saved {verb} unknown in up to {counted(runs, 'run')}; the sums leave them out."
            lines.append(f"  {text}")
    return lines


def _table_lines(found: Survey, curve: Curve) -> list[str]:
    if not curve.rows[0].cut:
        return []
    is_known = {
        "BEYOND": any(row.beyond for row in curve.rows),
        "TOKENS": any(row.saved.tokens for row in curve.rows),
        "TIME": any(row.saved.seconds for row in curve.rows),
        "COST": any(row.saved.cost for row in curve.rows),
    }
    rows = [_HEADS, *[_cells(found, curve, row) for row in shown_rows(curve)]]
    columns = [column for column in zip(*rows, strict=True) if is_known.get(column[0], True)]
    return table_lines(list(zip(*columns, strict=True)))


def _cells(found: Survey, curve: Curve, row: Row) -> tuple[str, ...]:
    share = curve.share(row, found.used)
    bar = (
        ""
        if share is None
        else f"{'█' * round(share * BAR)}{' ' if share * BAR >= 0.5 else ''}{percent(share)}"
    )
    marks = [
        text
        for text, marked in (("recommended", curve.recommended), ("knee", curve.knee))
        if marked is not None and marked == row.rule.limit
    ]
    value, *amounts = cells_of(curve, row)
    return (f"  {value}", *amounts, f"{bar}{f'  ← {chr(44).join(marks)}' if marks else ''}")


def shown_rows(curve: Curve) -> list[Row]:
    """Return the rows to print: some of all, with the knee and the recommended one."""
    rows = curve.rows
    if len(rows) <= MOST_ROWS:
        return list(rows)
    chosen = {round(index * (len(rows) - 1) / (MOST_ROWS - 1)) for index in range(MOST_ROWS)}
    chosen |= {i for i, row in enumerate(rows) if row.rule.limit in (curve.knee, curve.recommended)}
    return [rows[index] for index in sorted(chosen)]


# Charts as SVG, on one page of HTML


WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 32, 16, 36

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2rem auto; padding: 0 1rem; }
body { color: #1b1f24; }
h2 { margin: 2.5rem 0 .25rem; font-size: 1.15rem; }
p.sentence { margin: .25rem 0 1rem; font-weight: 600; }
svg { width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: #59636e; }
.axis { stroke: #d1d9e0; } .saved { stroke: #0969da; } .lost { stroke: #cf222e; stroke-dasharray: 7 4; }
.line { fill: none; stroke-width: 2; } .mark { stroke: #1a7f37; stroke-dasharray: 4 3; }
.knee { stroke: #9a6700; stroke-dasharray: 2 3; }
.key { display: inline-block; width: 2rem; border-top: 2px solid #0969da; vertical-align: middle; }
.key.lost { border-top: 2px dashed #cf222e; margin-left: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: .5rem; }
td, th { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid #eaeef2; }
tr.recommended { background: #dafbe1; }
details { margin-top: .5rem; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; }
  tr.recommended { background: #12361f; } .axis { stroke: #3d444d; } td, th { border-color: #2a3038; } }
""".strip()


def page_of(found: Survey, curves: Sequence[Curve]) -> str:
    """Return a page with a chart for each limit."""
    runs, sessions = counted(found.runs, "run"), counted(found.sessions, "session")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Limits</title>',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Limits</h1>",
        f"<p>{runs} of {sessions}, {found.completed:,} completed.</p>",
    ]
    for curve in curves:
        parts += [f"<h2>{escape(curve.name)}</h2>", f'<p class="sentence">{escape(curve.sentence)}</p>']
        if curve.rows[0].cut:
            parts += [svg_of(found, curve), _html_table(curve)]
    return "\n".join([*parts, "</body></html>", ""])


def svg_of(found: Survey, curve: Curve) -> str:
    """Return the chart of a limit: savings and cut completed runs per value."""
    rows = curve.rows
    saved = [curve.share(row, found.used) or 0.0 for row in rows]
    lost = [row.completed / found.completed if found.completed else 0.0 for row in rows]
    ticks = sorted({round(i * (len(rows) - 1) / 6) for i in range(7)})
    lines = [
        f'<p><span class="key"></span> saved {escape(curve.measure)} '
        '<span class="key lost"></span> completed runs that are cut</p>',
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(curve.sentence)}">',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _y(share)
        lines.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share * 100:.0f} %</text>')
    for index in ticks:
        text = escape(value_text(curve.name, rows[index].rule.limit))
        lines.append(f'<text x="{_x(index, rows):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{text}</text>')
    for value, style in ((curve.knee, "knee"), (curve.recommended, "mark")):
        for index, row in enumerate(rows):
            if value is not None and row.rule.limit == value:
                x = _x(index, rows)
                name = "knee" if style == "knee" else "recommended"
                lines.append(
                    f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
                    f"<title>{name}: {escape(value_text(curve.name, row.rule.limit))}</title></line>"
                    f'<text x="{x + 4:.1f}" y="{TOP + (14 if style == "knee" else 28)}">{name}</text>'
                )
    for shares, style in ((saved, "saved"), (lost, "lost")):
        points = " ".join(f"{_x(i, rows):.1f},{_y(share):.1f}" for i, share in enumerate(shares))
        lines.append(f'<polyline class="line {style}" points="{points}"/>')
    return "\n".join([*lines, "</svg>"])


def _x(index: int, rows: Sequence[Row]) -> float:
    return LEFT + index / max(1, len(rows) - 1) * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return TOP + (1 - min(1.0, max(0.0, share))) * (HEIGHT - TOP - BOTTOM)


def cells_of(curve: Curve, row: Row) -> tuple[str, ...]:
    """Return the cells of a row: a value, the runs that it cuts, and its savings."""
    saved = row.saved
    return (
        value_text(curve.name, row.rule.limit),
        f"{row.cut:,}",
        f"{row.completed:,}",
        f"{row.beyond:,}",
        f"{saved.steps:,}",
        f"{saved.tokens:,}",
        span_text(saved.seconds or 0.0),
        _cost(row),
    )


def _cost(row: Row) -> str:
    """Return the cost that a value would have saved, if any of it is known."""
    if row.cut and row.unknown_cost == row.cut:
        return "unknown"
    return dollars(round(row.saved.cost or Decimal(0), 4))


def _html_table(curve: Curve) -> str:
    heads = ("value", "runs cut", "completed", "beyond", "steps", "tokens", "time", "cost")
    lines = ["<details><summary>All values</summary><table>"]
    lines.append(f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>")
    for row in curve.rows:
        marked = ' class="recommended"' if row.rule.limit == curve.recommended else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in cells_of(curve, row))
        lines.append(f"<tr{marked}>{cells}</tr>")
    return "\n".join([*lines, "</table></details>"])
