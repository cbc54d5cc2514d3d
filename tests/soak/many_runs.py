"""A store with very many recorded runs, and `whyloop tune` on it as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, NamedTuple

from benchmarks.work import lookup, script
from msgspec.structs import replace

from whyloop import Agent, Session
from whyloop.stores import Entry, Store
from whyloop.testing import ScriptedModel
from whyloop.values.scalars import new_id

ORIGINALS = 100
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
    """What `whyloop tune` printed, the seconds it took, and the most memory of one of its processes in MB."""

    report: dict[str, Any]
    seconds: float
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
    started = time.perf_counter()
    command = [sys.executable, "-c", TUNE, "tune", "--json", "--store", address]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr[-1000:]
    return Tuned(json.loads(done.stdout), seconds, int(done.stderr.split()[-1]) / 1024)
