"""An event loop that serves a long session is hardly later than one that only reads and decodes its rows."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.server.responsive import Heartbeat, Lag, fill, measure
from whyloop.cli.services import freeze_startup
from whyloop.stores import SqliteStore

STEPS = 20_000
ROWS_AT_ONCE = 32  # Between two turns of the event loop, as in a program that takes care.
# Of 99 beats in 100: times the lag while a bare loop reads and decodes the rows, and drops them.
MOST_TYPICAL = 3.0
# Of the latest beat: times the lag while the loop keeps what it decoded, as a saved page or a what-if does.
# Nearly all of it is a full garbage collection.
MOST_WORST = 0.5

pytestmark = pytest.mark.soak(suite="load")


async def lag_of_bare_reading(path: Path, *, keep: bool) -> Lag:
    """Return how late the event loop is while a hand-written loop reads and decodes all rows."""
    kept, count = list[Any](), 0
    connection = sqlite3.connect(path)
    async with Heartbeat(only_own=True) as heart:
        rows = connection.execute("SELECT body FROM entries ORDER BY place")
        while portion := rows.fetchmany(ROWS_AT_ONCE):
            decoded = [json.loads(body) for (body,) in portion]
            count += len(decoded)
            if keep:
                kept += decoded
            await asyncio.sleep(0)
    connection.close()
    assert count > STEPS
    return heart.lag


def _together(lags: Iterable[Lag]) -> Lag:
    return Lag([beat for lag in lags for beat in lag.beats])


async def test_twenty_thousand_steps_hold_up_hardly_more_than_reading_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "whyloop.db"
    async with SqliteStore(path) as store:
        await fill(store, STEPS)
        freeze_startup()  # As in a process that serves sessions.
        before = [await lag_of_bare_reading(path, keep=keep) for keep in (False, True)]
        lags = await measure(store, STEPS, only_own=True)
        after = [await lag_of_bare_reading(path, keep=keep) for keep in (False, True)]
        gc.unfreeze()
    dropping, keeping = map(_together, zip(before, after, strict=True))
    together = _together(lags.values())
    print(*[f"\n{lag}: {name}" for name, lag in lags.items()], f"\n{together}: together")
    print(f"{dropping}: bare, dropping\n{keeping}: bare, keeping")
    typical, worst = together.p99 / dropping.p99, together.worst / keeping.worst
    print(f"{typical:.2f} (p99) and {worst:.2f} (at most) times the lag of a bare loop")
    assert typical <= MOST_TYPICAL
    assert worst <= MOST_WORST
