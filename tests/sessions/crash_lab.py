"""Kills processes that run sessions, and looks at what is left of them.

Run as a program, since it forks: `python -m tests.sessions.crash_lab KIND ADDRESS FOLDER TRIALS SEED`
prints what it found as one JSON document.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tests.sessions.crash_agent import PATTERN, STEPS, Ledger, crash_agent
from whyloop import AgentState, Session
from whyloop.errors import SessionRunningError
from whyloop.stores import PostgresStore, SqliteStore, Store, Summary
from whyloop.stores.records import Lease

LEASE_SECONDS = 30.0


class LaterClock:
    """The time of somebody who comes later, when the lease of the dead has lapsed."""

    def __init__(self, generation: int) -> None:
        self._later = timedelta(hours=generation)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._later


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Lab:
    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder

    def store(self, generation: int) -> Store:
        clock = LaterClock(generation)
        if self.address.startswith("postgresql://"):
            server, _, schema = self.address.partition("#")
            return PostgresStore(server, schema=schema, clock=clock, max_connections=2)
        return SqliteStore(self.address, clock=clock)

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.folder / f"{name}.txt")

    async def run(self, name: str, generation: int, kill_at: tuple[str, int] | None = None) -> None:
        """Go on with a session until it is completed, deciding as a person would who looks at the ledger."""
        store = self.store(generation)
        if kill_at:
            mortal(store, *kill_at)
        async with store:
            ledger = self.ledger(name)
            session = await Session.open(
                store, crash_agent(ledger), name, create=True, lease_seconds=LEASE_SECONDS
            )
            state = session.state
            if not state.messages:
                state = await session.send("go")
            while state.status != "completed":
                for call in state.pending_calls:
                    arguments = call.arguments
                    assert isinstance(arguments, dict)
                    ledger.write("asked", arguments["number"])
                    if ["work", str(arguments["number"])] in ledger.lines():
                        await session.deny(call.id, "it was carried out")
                    else:
                        await session.approve(call.id)
                state = await session.resume()

    async def problems(self, name: str, generation: int, queries: int = 1) -> list[str]:
        """Everything that is wrong with a session that was killed and then brought to its end."""
        async with self.store(generation) as store:
            stored = await store.read(name)
            state = await store.load(name)
        return [*_history_problems(state, stored.summary, queries), *self._ledger_problems(name, state)]

    def _ledger_problems(self, name: str, state: AgentState) -> list[str]:
        lines = self.ledger(name).lines()
        found = []
        done = Counter(line[1] for line in lines if line[0] == "work")
        found += [f"work {number} was done {times} times" for number, times in done.items() if times != 1]
        keys: dict[str, set[str]] = {}
        for line in lines:
            if line[0] == "safe":
                keys.setdefault(line[1], set()).add(line[2])
        found += [f"safe {number} had the keys {used}" for number, used in keys.items() if len(used) != 1]
        asked = {str(c.arguments["number"]) for m in state.messages for c in m.tool_calls}  # type: ignore[index]
        if set(done) | set(keys) != asked:
            found.append(f"done {sorted(set(done) | set(keys))}, asked for {sorted(asked)}")
        # A process may die between writing a step and telling of it, never the other way round.
        acknowledged = Counter(int(line[1]) for line in lines if line[0] == "acknowledged")
        if unknown := acknowledged - Counter(step.number for step in state.steps):
            found.append(f"the steps {unknown} were acknowledged and are not there")
        return found


def _history_problems(state: AgentState, summary: Summary, queries: int) -> list[str]:
    found = []
    if (state.status, summary.status) != ("completed", "completed"):
        found.append(f"it is {state.status}, listed as {summary.status}")
    if [step.number for step in state.steps] != [*range(1, STEPS + 2), *[1] * (queries - 1)]:
        found.append(f"its steps are {[step.number for step in state.steps]}")
    for index, step in enumerate(state.steps):
        names = PATTERN[index % len(PATTERN)] if index < STEPS else ()
        if tuple(run.name for run in step.tool_calls) != names:
            found.append(f"step {step.number} has the calls {step.tool_calls}")
        if step.outcome is None or len(step.outcome.evaluations) < 6:
            found.append(f"step {step.number} has lost its trace")
        if len(state.messages_of(step)) != 1 + len(names):
            found.append(f"step {step.number} has the messages {state.messages_of(step)}")
    calls = [call.id for message in state.messages for call in message.tool_calls]
    results = [message.tool_call_id for message in state.messages if message.is_tool]
    if calls != results:
        found.append(f"calls {calls} have the results {results}")
    return found


def mortal(store: Store, when: str, number: int) -> None:
    """Let the process die right before or right after the store's so many-th write."""
    append, add_at_once, writes = store.append, store.add_at_once, 0

    async def counted(
        agent_id: str, entries: Sequence[str], *, after: int, lease: Lease | None = None, **rest: Any
    ) -> str | None:
        nonlocal writes
        writes += 1
        if (when, writes) == ("before", number):
            die()
        words = await append(agent_id, entries, after=after, lease=lease, **rest)
        if (when, writes) == ("after", number):
            die()
        return words

    def counted_at_once(lease: Lease, entry: str, after: int) -> bool:
        nonlocal writes
        if (when, writes + 1) == ("before", number):
            die()
        done = add_at_once(lease, entry, after)
        writes += done
        if (when, writes) == ("after", number):
            die()
        return done

    store.append = counted  # type: ignore[method-assign]
    store.add_at_once = counted_at_once  # type: ignore[method-assign]


def forked(work: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Start some work in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        asyncio.run(work())
        code = 0
    except SessionRunningError:
        code = 3
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """How a process ended: its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_random(lab: Lab, kills: int, chance: random.Random) -> dict[str, Any]:
    """Kill running sessions, up to three times each, at moments drawn by lot; then bring them to an end."""
    whole = [_seconds_of(partial(lab.run, f"undisturbed-{number}", 0)) for number in range(3)]
    report: dict[str, Any] = {"sessions": 0, "kills": 0, "asked": 0, "problems": []}
    while report["kills"] < kills:
        name, generation = f"session-{report['sessions']}", 0
        report["sessions"] += 1
        for _ in range(chance.randint(1, 3)):
            child = forked(partial(lab.run, name, generation))
            time.sleep(chance.random() * min(whole))
            os.kill(child, signal.SIGKILL)
            code = ended(child)
            report["kills"] += code == -signal.SIGKILL
            if code not in (0, -signal.SIGKILL):
                report["problems"].append(f"{name}: a runner ended with {code}")
            generation += 1
        _finish(lab, name, generation, report)
    return report


def _seconds_of(work: Callable[[], Coroutine[Any, Any, object]]) -> float:
    started = time.perf_counter()
    assert ended(forked(work)) == 0
    return time.perf_counter() - started


def killed_at_each_boundary(lab: Lab) -> dict[str, Any]:
    """Kill a session before and after each of its writes, then bring it to its end."""
    report: dict[str, Any] = {"kills": 0, "asked": 0, "problems": []}
    number = 0
    while True:
        number += 1
        for when in ("before", "after"):
            name = f"{when}-{number}"
            code = ended(forked(partial(lab.run, name, 0, (when, number))))
            if code == 0:  # There was no such write any more.
                return report
            if code != -signal.SIGKILL:
                report["problems"].append(f"{name}: the runner ended with {code}")
            report["kills"] += 1
            _finish(lab, name, 1, report)


def _finish(lab: Lab, name: str, generation: int, report: dict[str, Any]) -> None:
    code = ended(forked(partial(lab.run, name, generation)))
    if code != 0:
        report["problems"].append(f"{name}: it could not be brought to its end ({code})")
        return
    found = asyncio.run(lab.problems(name, generation + 1))
    report["problems"] += [f"{name}: {problem}" for problem in found]
    report["asked"] += sum(line[0] == "asked" for line in lab.ledger(name).lines())


def raced(lab: Lab, trials: int) -> dict[str, Any]:
    """Let two processes run one session at the same moment."""
    report: dict[str, Any] = {"trials": trials, "refused": 0, "problems": []}
    for trial in range(trials):
        name = f"race-{trial}"
        assert ended(forked(partial(_created, lab, name))) == 0
        codes = [ended(child) for child in [forked(partial(_asked, lab, name)) for _ in range(2)]]
        report["refused"] += codes.count(3)
        if 0 not in codes or set(codes) - {0, 3}:
            report["problems"].append(f"{name}: the two ended with {codes}")
        found = asyncio.run(lab.problems(name, 1, codes.count(0)))
        report["problems"] += [f"{name}: {problem}" for problem in found]
    return report


async def _created(lab: Lab, name: str) -> None:
    async with lab.store(0) as store:
        await Session.open(store, crash_agent(lab.ledger(name)), name, create=True)


async def _asked(lab: Lab, name: str) -> None:
    async with lab.store(0) as store:
        session = await Session.open(store, crash_agent(lab.ledger(name)), name)
        await session.send("go")


def main(kind: str, address: str, folder: str, trials: str = "0", seed: str = "0") -> None:
    lab = Lab(address, Path(folder))
    if kind == "random":
        report = killed_at_random(lab, int(trials), random.Random(int(seed)))
    elif kind == "boundaries":
        report = killed_at_each_boundary(lab)
    else:
        report = raced(lab, int(trials))
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
