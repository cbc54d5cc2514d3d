"""A store with very many recorded runs, and `whyloop tune` on it as a process of its own."""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks.work import lookup, script
from msgspec.structs import replace

from whyloop import Agent, Session
from whyloop.stores import Entry, Store
from whyloop.testing import ScriptedModel
from whyloop.values.scalars import new_id

ORIGINALS = 100
# Times the computing of one plain loop that reads and decodes the same rows.
MOST_TIMES = 7.0
# It says itself how much memory it took: the record of a child begins with that of the process before `exec`.
TUNE = """
import re, resource, sys
from pathlib import Path
from whyloop.cli import main

code = main()
own = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss), file=sys.stderr)
sys.exit(code)
"""


class Tuned(NamedTuple):
    """What `whyloop tune` printed, what it took, and the most memory of one of its processes in MB."""

    report: dict[str, Any]
    seconds: float
    computed: float
    """The seconds in which its processes computed, added up."""
    megabytes: float


async def fill(store: Store, count: int) -> None:
    """Store so many runs of 1 to 13 steps: copies of some that were really taken."""
    for number in range(ORIGINALS):
        steps = 1 + number % 13
        agent = Agent(ScriptedModel(script(steps)), [lookup])
        await (await Session.open(store, agent, f"original-{number}", create=True)).send("go")
    for number in range(ORIGINALS, count):
        original = await store.read(f"original-{number % ORIGINALS}")
        summary = replace(original.summary, agent_id=f"copy-{number}", identity=new_id())
        await store.create(summary, [Entry(body) for body in original.entries])


def tune(address: str) -> Tuned:
    started, computed = time.perf_counter(), _computed_by_children()
    command = [sys.executable, "-c", TUNE, "tune", "--json", "--store", address]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    seconds, computed = time.perf_counter() - started, _computed_by_children() - computed
    assert done.returncode == 0, done.stderr[-1000:]
    return Tuned(json.loads(done.stdout), seconds, computed, int(done.stderr.split()[-1]) / 1024)


def _computed_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(name: str, address: str, runs: int) -> tuple[Tuned, float]:
    """Tune a store; return also how many times the time of a bare loop, run before and after, that took."""
    before = _seconds_of_bare_reading(address)
    tuned = tune(address)
    ratio = tuned.computed / ((before + _seconds_of_bare_reading(address)) / 2)
    print(f"\n{name}: {runs:,} runs in {tuned.seconds:.0f} s, at most {tuned.megabytes:.0f} MB in a process;")
    print(f"{tuned.computed:.0f} s of computing, {ratio:.2f} times a bare loop over their entries")
    assert tuned.report["runs"] == runs
    return tuned, ratio


def _seconds_of_bare_reading(address: str) -> float:
    """Return in how many seconds of computing a hand-written loop reads and decodes every entry."""
    started = time.process_time()
    if address.startswith("postgresql:"):
        import psycopg

        with psycopg.connect(address) as postgres, postgres.cursor("bare") as cursor:
            count = _decode(cursor.execute("SELECT body FROM whyloop.entries"))
    else:
        connection = sqlite3.connect(address)
        count = _decode(connection.execute("SELECT body FROM entries"))
        connection.close()
    assert count
    return time.process_time() - started


def _decode(rows: Iterable[tuple[str]]) -> int:
    count = 0
    for (body,) in rows:
        json.loads(body)
        count += 1
    return count
