"""The cost of a step: `make bench`.

Machines are noisy, so every number is a ratio within one run: whyloop and the hand-written loop
take turns, each round gives a ratio, and the median of the rounds is what counts.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterable

from benchmarks.bare import BareModel
from benchmarks.peers import installed_peers
from benchmarks.work import make_agent, run_bare, run_whyloop, whyloop_step

LENGTHS = (10, 100, 1000)
SESSIONS = 1000


async def _bare_step(steps: int) -> float:
    model = BareModel(steps)
    started = time.perf_counter()
    await run_bare(model, steps)
    return (time.perf_counter() - started) / steps * 1e6


async def step_cost(steps: int) -> tuple[float, float, float]:
    """Microseconds a step for the bare loop and for whyloop, and the median ratio of the rounds."""
    await run_whyloop(make_agent(steps), steps)  # Warm up, and check that the trace is whole.
    await _bare_step(steps)
    bares, ours, ratios = [], [], []
    for _ in range(max(15, 4000 // steps)):
        bare = (await _bare_step(steps) + await _bare_step(steps)) / 2
        own = await whyloop_step(steps)
        bares.append(bare)
        ours.append(own)
        ratios.append(own / bare)
    return statistics.median(bares), statistics.median(ours), statistics.median(ratios)


async def late_step_ratio() -> float:
    """What the thousandth step costs beside the tenth, within one session."""
    ratios = []
    for _ in range(15):
        agent = make_agent(1100)
        begun = agent.iterate(agent.start("go"))
        times = [time.perf_counter() async for _ in begun]
        costs = [after - before for before, after in itertools.pairwise(times)]
        early, late = statistics.median(costs[5:55]), statistics.median(costs[975:1025])
        ratios.append(late / early)
    return statistics.median(ratios)


async def throughput() -> tuple[float, float]:
    """Steps a second of 1,000 sessions of 10 steps at once, and the median share of the bare loop's rate."""
    ours, shares = [], []
    for _ in range(7):
        models = [BareModel(10) for _ in range(SESSIONS)]
        started = time.perf_counter()
        await asyncio.gather(*(run_bare(model, 10) for model in models))
        bare = time.perf_counter() - started
        agents = [make_agent(10) for _ in range(SESSIONS)]
        started = time.perf_counter()
        await asyncio.gather(*(agent.run("go") for agent in agents))
        own = time.perf_counter() - started
        ours.append(SESSIONS * 10 / own)
        shares.append(bare / own)
    return statistics.median(ours), statistics.median(shares)


async def session_memory() -> float:
    """Kilobytes that a finished session of 10 steps keeps, with its whole trace.

    Its agent is gone by then: the model of a test keeps every request.
    """
    agents = [make_agent(10) for _ in range(SESSIONS)]
    gc.collect()
    tracemalloc.start()
    states = [await run_whyloop(agent, 10) for agent in agents]
    agents.clear()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept / len(states) / 1024


def import_time(statement: str) -> float:
    """Seconds that a fresh interpreter needs for the statement, start-up included."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - started


def import_ratio() -> float:
    """The time of `import whyloop` and an agent beside that of `import asyncio, json`."""
    ratios = []
    for _ in range(15):
        base = import_time("import asyncio, json")
        ratios.append(import_time("import whyloop") / base)
    return statistics.median(ratios)


def report(label: str, value: str, target: str, met: bool) -> bool:
    """One line of the report; returns whether the target was met.

    A target is a ratio to a counterpart that was measured in turns with it, or a number of bytes: a time says
    more about the machine. A figure without a counterpart has no verdict.
    """
    print(f"  {label:<52}{value:>14}   {target:<22}{'ok' if met else 'MISSED'}", flush=True)
    return met


def figure(label: str, value: str) -> None:
    """One line of the report that is not judged."""
    print(f"  {label:<52}{value:>14}", flush=True)


def measured_alone(module: str, lengths: Iterable[int]) -> list[float]:
    """Microseconds a step of one framework at each length, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peers", module, *map(str, lengths)]
    return list(json.loads(subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1]))


def compare_peers() -> bool:
    """Measure the same work by every framework that is installed; returns whether the target was met."""
    found = installed_peers()
    if not found:
        print("\nNo peer is installed beside whyloop; `make bench-peers` installs some and measures them.")
        return True
    print(f"\n  {'microseconds a step (times that of whyloop)':<46}" + "".join(f"{n:>18,}" for n in LENGTHS))
    lowest = [float("inf")] * len(LENGTHS)
    for module, name in [("plain", "whyloop without a listener"), *found]:
        costs: list[list[float]] = [[], [], []]
        ratios: list[list[float]] = [[], [], []]
        for turn in range(3):  # whyloop and the peer take turns, so that both meet the same noise.
            lengths = LENGTHS if turn == 0 else LENGTHS[:2]  # Some need a minute for 1,000 steps.
            own, peer = measured_alone("whyloop", lengths), measured_alone(module, lengths)
            for index in range(len(lengths)):
                costs[index].append(peer[index])
                ratios[index].append(peer[index] / own[index])
        cost, ratio = map(statistics.median, costs), list(map(statistics.median, ratios))
        row = "".join(f"{f'{c:,.0f} ({r:,.1f})':>18}" for c, r in zip(cost, ratio, strict=True))
        print(f"  {name:<46}{row}", flush=True)
        if module != "plain":
            lowest = [min(pair) for pair in zip(lowest, ratio, strict=True)]
    fewest = min(lowest[1:])
    label = "whyloop beside the fastest peer, from 100 steps on"
    return report(label, f"{fewest:.1f} times", "at least 10 times", fewest >= 10)


async def main() -> int:
    """Measure everything and say what was met; the exit code is 1 if a target was missed."""
    print("The cost of a step, with eight criteria, a full trace and six events\n")
    met = []
    for steps in LENGTHS:
        bare, own, ratio = await step_cost(steps)
        label = f"{steps:,} steps: bare {bare:.1f} µs, whyloop {own:.1f} µs a step"
        if steps > 10:
            met.append(report(label, f"{ratio:.2f} x", "at most 5.00 x", ratio <= 5))
        else:
            figure(label, f"{ratio:.2f} x")
    late = await late_step_ratio()
    met.append(report("step 1,000 beside step 10", f"{late:.2f}", "at most 1.20", late <= 1.2))
    speed, share = await throughput()
    label = f"1,000 sessions at once ({speed:,.0f} steps/s) beside bare"
    met.append(report(label, f"{share:.2f} x", "at least 0.28 x", share >= 0.28))
    memory = await session_memory()
    met.append(report("a session of 10 steps keeps", f"{memory:.1f} KB", "at most 25 KB", memory <= 25))
    imports = import_ratio()
    met.append(
        report("import whyloop beside import asyncio, json", f"{imports:.2f}", "at most 1.60", imports <= 1.6)
    )
    met.append(compare_peers())
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
