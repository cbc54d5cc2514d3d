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
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.sessions.crash_agent import PATTERN, STEPS, Ledger, crash_agent
from whyloop import AgentState, Session
from whyloop.broadcasting import BroadcastConfig, EventFeed
from whyloop.errors import SessionRunningError
from whyloop.events import AgentEvent
from whyloop.stores import Entry, SqliteStore, Store, Summary
from whyloop.wire.envelope import NUMBERED, envelope

# Long enough that no lease lapses here: the next runner finds that the one before it is dead.
LEASE_SECONDS = 3600.0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Lab:
    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder

    def store(self) -> Store:
        if self.address.startswith("postgresql://"):
            server, _, schema = self.address.partition("#")
            from whyloop.stores import PostgresStore

            return PostgresStore(server, schema=schema, max_connections=2)
        return SqliteStore(self.address)

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.folder / f"{name}.txt")

    async def run(self, name: str, kill_at: tuple[str, int] | None = None) -> None:
        """Continue a session until it is completed, deciding as a person would who looks at the ledger."""
        store = self.store()
        if kill_at:
            mortal(store, *kill_at)
        async with store:
            ledger = self.ledger(name)

            def write_sent(event: AgentEvent) -> None:
                told = envelope(event, BroadcastConfig.standard())
                if told is not None and told["event"] in NUMBERED:
                    ledger.write("sent", event.execution_id, event.seq, digest(json.dumps(told)))

            session = await Session.open(
                store,
                crash_agent(ledger),
                name,
                create=True,
                lease_seconds=LEASE_SECONDS,
                handlers=[write_sent],
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
                crashed = session.state.status == "in_progress" and state.execution.recoveries < 2
                state = await (session.recover() if crashed else session.resume())

    async def follow(self, name: str) -> None:
        """Follow a session from another process until it is completed, and write down what arrives."""
        heard = self.folder / f"{name}-heard.jsonl"
        async with self.store() as store, EventFeed(store) as feed, asyncio.timeout(120):
            while name not in await store.versions([name]):
                await asyncio.sleep(0.01)
            with heard.open("w") as file:
                async with aclosing(feed.follow(name)) as following:
                    async for items in following:
                        for item in items:
                            if item.is_numbered:
                                file.write(item.body + "\n")
                                if '"status":"completed"' in item.body:
                                    return

    async def problems(self, name: str, queries: int = 1) -> list[str]:
        """Return everything that is wrong with a session that was killed and then brought to its end."""
        async with self.store() as store, EventFeed(store) as feed:
            stored = await store.read(name)
            state = await store.load(name)
            page = await feed.page(name, limit=10**6)
        told = [item.body for item in page.items if item.is_numbered]
        return [
            *_history_problems(state, stored.summary, queries),
            *self._ledger_problems(name, state),
            *self._event_problems(name, told),
        ]

    def _event_problems(self, name: str, told: list[str]) -> list[str]:
        """Compare what is read back with what the runners sent, and with what a follower received."""
        found: list[str] = []
        numbers: dict[tuple[str, str], str] = {}
        last: Counter[str] = Counter()
        for body in told:
            data = json.loads(body)
            execution_id, seq = data["execution_id"], data["seq"]
            if seq != last[execution_id] + 1:
                found.append(f"envelope {seq} follows {last[execution_id]}")
            last[execution_id] = seq
            numbers[execution_id, str(seq)] = digest(json.dumps(data))
        sent = [tuple(line[1:]) for line in self.ledger(name).lines() if line[0] == "sent"]
        if len(set(sent)) != len(sent):
            found.append("an envelope was sent twice")
        for execution_id, seq, content in sent:
            if numbers.get((execution_id, seq)) != content:
                found.append(f"envelope {seq} was sent and reads differently now")
        heard = self.folder / f"{name}-heard.jsonl"
        if heard.exists() and heard.read_text().splitlines() != told:
            found.append(
                f"a follower received {len(heard.read_text().splitlines())} of {len(told)} envelopes"
            )
        return found

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


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def mortal(store: Store, when: str, number: int) -> None:
    """Let the process die right before or right after the store's so many-th write."""
    append, writes = store.append, 0

    async def counted(agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        nonlocal writes
        writes += 1
        if (when, writes) == ("before", number):
            die()
        stop = await append(agent_id, entries, **rest)
        if (when, writes) == ("after", number):
            die()
        return stop

    store.append = counted  # type: ignore[method-assign]


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
    whole = [_seconds_of(partial(lab.run, f"undisturbed-{number}")) for number in range(3)]
    report: dict[str, Any] = {"sessions": 0, "kills": 0, "asked": 0, "followed": 0, "problems": []}
    while report["kills"] < kills:
        name = f"session-{report['sessions']}"
        report["sessions"] += 1
        # Another process follows every third session, from before it begins to its end.
        follower = forked(partial(lab.follow, name)) if report["sessions"] % 3 == 0 else None
        for _ in range(chance.randint(1, 3)):
            child = forked(partial(lab.run, name))
            time.sleep(chance.random() * min(whole))
            os.kill(child, signal.SIGKILL)
            code = ended(child)
            report["kills"] += code == -signal.SIGKILL
            if code not in (0, -signal.SIGKILL):
                report["problems"].append(f"{name}: a runner ended with {code}")
        _finish(lab, name, report, follower)
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
            code = ended(forked(partial(lab.run, name, (when, number))))
            if code == 0:  # There was no such write any more.
                return report
            if code != -signal.SIGKILL:
                report["problems"].append(f"{name}: the runner ended with {code}")
            report["kills"] += 1
            _finish(lab, name, report)


def _finish(lab: Lab, name: str, report: dict[str, Any], follower: int | None = None) -> None:
    code = ended(forked(partial(lab.run, name)))
    if code != 0:
        report["problems"].append(f"{name}: it could not be brought to its end ({code})")
        return
    if follower is not None:
        report["followed"] += 1
        if ended(follower):
            report["problems"].append(f"{name}: its follower failed")
    found = asyncio.run(lab.problems(name))
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
        found = asyncio.run(lab.problems(name, codes.count(0)))
        report["problems"] += [f"{name}: {problem}" for problem in found]
    return report


async def _created(lab: Lab, name: str) -> None:
    async with lab.store() as store:
        await Session.open(store, crash_agent(lab.ledger(name)), name, create=True)


async def _asked(lab: Lab, name: str) -> None:
    async with lab.store() as store:
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
