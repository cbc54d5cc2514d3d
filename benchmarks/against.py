"""The same benchmark on two commits: `make bench-against REF=main`.

A process for each commit takes turns with one for the other, so both meet the same noise. Each round gives a
ratio, and the median of the rounds counts. Times are those of the processor, which other programs disturb
least. Each commit runs the work of its own `benchmarks.work`, which knows the names of its version.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 12
SLOWEST = 1.05
"""The ratio up to which a commit counts as no slower than the other."""
AGENTS = 2_000


async def measured() -> dict[str, float]:
    """Return what this commit's work costs, by the name of each figure."""
    from benchmarks.work import hear, lookup, make_agent
    from whyloop import Agent, Session
    from whyloop.stores import SqliteStore

    async def step(steps: int) -> float:
        agent = make_agent(steps)
        started = time.process_time()
        await agent.run("go")
        return (time.process_time() - started) / steps * 1e6

    async def stored_step(steps: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            async with SqliteStore(Path(folder) / "whyloop.db", durability="process") as store:
                session = await Session.open(store, make_agent(steps))
                started = time.process_time()
                await session.send("go")
                return (time.process_time() - started) / steps * 1e6

    def construction() -> float:
        model = make_agent(1).model
        started = time.process_time()
        for _ in range(AGENTS):
            Agent(model, [lookup], max_steps=20, max_tokens=10_000, timeout=300, event_handler=hear)
        return (time.process_time() - started) / AGENTS * 1e6

    async def kept() -> float:
        agents = [make_agent(10) for _ in range(100)]
        gc.collect()
        tracemalloc.start()
        states = [await agent.run("go") for agent in agents]
        agents.clear()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size / len(states) / 1024

    await step(100)  # Warm up.
    return {
        "a step of a run of 100 steps, µs": statistics.median([await step(100) for _ in range(15)]),
        "a step of a run of 1,000 steps, µs": statistics.median([await step(1000) for _ in range(5)]),
        "a step of a session in SQLite, µs": statistics.median([await stored_step(200) for _ in range(3)]),
        "constructing an agent, µs": construction(),
        "a finished session of 10 steps, KB": await kept(),
    }


def measure(tree: Path) -> dict[str, float]:
    """Return the figures of the commit in this folder, measured in a process of its own."""
    places = os.pathsep.join([str(tree / "src"), str(tree)])
    done = subprocess.run(
        [sys.executable, __file__, "--measure"],
        env={**os.environ, "PYTHONPATH": places},
        cwd=tree,
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(json.loads(done.stdout))


@contextmanager
def checked_out(ref: str) -> Iterator[Path]:
    """Check a commit out into a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), ref)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


def compare(ref: str) -> bool:
    """Measure this tree and another commit in turns; return whether this tree is no slower."""
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    with checked_out(ref) as tree:
        for number in range(ROUNDS):
            order = [(ROOT, ours), (tree, theirs)]
            for place, figures in order if number % 2 else reversed(order):
                figures.append(measure(place))
            print(f"\rround {number + 1} of {ROUNDS}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"This tree beside {ref}: medians of {ROUNDS} rounds, and the middle half of the ratios\n")
    met = True
    for name in ours[0]:
        pairs = [(own[name], other[name]) for own, other in zip(ours, theirs, strict=True)]
        ratios = [own / other for own, other in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        own, other = (statistics.median(side) for side in zip(*pairs, strict=True))
        is_met = middle <= SLOWEST
        met = met and is_met
        spread, verdict = f"{middle:.3f}  ({low:.3f} to {high:.3f})", "ok" if is_met else "MISSED"
        print(f"  {name:<38}{other:>8.1f} → {own:<8.1f}{spread:<26}at most {SLOWEST}  {verdict}")
    return met


def main() -> int:
    """Compare with the commit that is named; the exit code is 1 if this tree is slower."""
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(asyncio.run(measured())))
        return 0
    if len(sys.argv) != 2:
        print("name a commit: make bench-against REF=main", file=sys.stderr)
        return 2
    return 0 if compare(sys.argv[1]) else 1


if __name__ == "__main__":
    sys.exit(main())
