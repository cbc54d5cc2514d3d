"""`whyloop tune`: what each value of a limit would have cut and saved, and which to choose."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from whyloop.cli.charts import cells_of, page_of
from whyloop.cli.formats import long_span_text
from whyloop.cli.output import FAILED, USAGE_ERROR, CommandError, write_error, write_json, write_lines
from whyloop.cli.sessions import aligned, filters_of
from whyloop.cli.store_access import open_named_store
from whyloop.cli.what_if import Advance, progress, write_problems
from whyloop.replay import Curve, Row, Survey, Surveyor, curves_of, read_runs, rules_for
from whyloop.replay.reading import PAGE, read_page
from whyloop.replay.tuning import percent
from whyloop.rules.limits import Limit
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.text import counted, shortened
from whyloop.wire.journal import no_garbage_collection

MOST_ROWS = 16
BAR = 24
DEFAULT_LIMITS = ("max_steps", "max_tokens", "timeout", "max_cost")


async def tune(store: Store, args: argparse.Namespace) -> int:
    """Print a curve over the values of each limit, and a recommendation."""
    if not 0 < args.keep <= 100:
        raise CommandError(f"invalid keep {args.keep:g}: use a percentage above 0, up to 100", USAGE_ERROR)
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
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{shortened(path)} cannot be written: {error.strerror}", FAILED) from None
    write_error(f"Charts are in {shortened(path)}")


# Reading, with more than one process if there is more than one page


async def _survey(store: Store, args: argparse.Namespace, rules: Sequence[Limit], advance: Advance) -> Survey:
    surveyor, filters = Surveyor(rules), filters_of(args)
    processes = (os.cpu_count() or 1) if args.processes is None else args.processes
    if processes < 1:
        raise CommandError(f"invalid --processes {processes}: use a number from 1 on", USAGE_ERROR)
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
                # A few pages ahead, so that no process waits and the memory does not grow.
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

    with no_garbage_collection():  # A fifth less time; a page leaves hardly any.
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
                "sentence": curve.sentence,
                "values": [_row_document(row) for row in curve.rows],
            }
            for curve in curves
        ],
        "problem_count": found.problem_count,
        "problems": [{"agent_id": each.agent_id, "reason": each.reason} for each in found.problems],
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
        lines += ["", curve.name, *_table(found, curve), "", f"  {curve.sentence}"]
    if found.problem_count:
        lines += ["", f"{counted(found.problem_count, 'session')} could not be judged."]
    return lines


def _table(found: Survey, curve: Curve) -> list[str]:
    heads: tuple[str, ...] = (
        "  VALUE",
        "RUNS CUT",
        "COMPLETED",
        "BEYOND",
        "STEPS",
        "TOKENS",
        "TIME",
        "COST",
        "SAVED",
    )
    if not curve.rows[0].cut:
        return []
    rows = [_cells(found, curve, row) for row in shown_rows(curve)]
    for name, is_known in (
        ("BEYOND", any(row.beyond for row in curve.rows)),
        ("TOKENS", any(row.saved.tokens for row in curve.rows)),
        ("TIME", any(row.saved.seconds for row in curve.rows)),
        ("COST", any(row.saved.cost for row in curve.rows)),
    ):
        if not is_known:  # A column that says nothing.
            column = heads.index(name)
            heads = heads[:column] + heads[column + 1 :]
            rows = [row[:column] + row[column + 1 :] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [aligned(row, widths) for row in (heads, *rows)]


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
