"""Kills, freezes and cancels processes that run sessions, and looks at what is left of them.

Run as a program, since it forks: `python -m tests.sessions.crash_lab KIND ADDRESS FOLDER TRIALS SEED`
prints what it found as one JSON document.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from tests.sessions.crash_agent import Ledger, crash_agent
from tests.sessions.crash_findings import KINDS, Finding, digest, findings
from tests.sessions.crash_runner import Frozen, Runner, mortal
from whyloop import Session
from whyloop.broadcasting import EventFeed
from whyloop.errors import (
    ApprovalError,
    KeyUsedError,
    LeaseLostError,
    NotResumableError,
    SessionRunningError,
    StoreUnavailableError,
)
from whyloop.stores import SqliteStore, Store

FROZEN_LEASE = 0.5
# How processes end, beside success and a failure: another runner has the session, or had it meanwhile; the
# file is held, as by a process that was frozen in the middle of a transaction.
RUNNING, OVERTAKEN, HELD = 3, 4, 5
# Of all that is done to runners: how often one is frozen, or cancelled while another program is in its way.
FREEZES, DEPLOYS = 0.2, 0.15


class Lab:
    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder

    def store(self, name: str = "", *, busy_seconds: float = 10.0) -> Store:
        if self.is_postgres:
            from whyloop.stores import PostgresStore

            server, _, schema = self.address.partition("#")
            return PostgresStore(server, schema=schema, max_connections=2)
        waits = int(digest(name), 16) % 3 == 0  # Every third session waits for the disk.
        return SqliteStore(
            self.address, durability="power" if waits else "process", busy_seconds=busy_seconds
        )

    @property
    def is_postgres(self) -> bool:
        return self.address.startswith("postgresql://")

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.folder / f"{name}.txt")

    async def run(self, name: str, *, busy_seconds: float = 10.0, **options: Any) -> None:
        """Run a session to its end."""
        store = self.store(name, busy_seconds=busy_seconds)
        await Runner(store, self.ledger(name), name, **options).run()

    async def run_mortal(self, name: str, when: str, number: int) -> None:
        await Runner(mortal(self.store(name), when, number), self.ledger(name), name).run()

    async def follow(self, name: str) -> None:
        """Follow a session from another process until it is completed, and write down what arrives."""
        async with self.store() as store, EventFeed(store) as feed, asyncio.timeout(120):
            while name not in await store.versions([name]):
                await asyncio.sleep(0.01)
            with self._heard(name).open("w") as file:
                async with aclosing(feed.follow(name)) as following:
                    async for items in following:
                        for item in items:
                            if item.is_numbered:
                                file.write(item.body + "\n")
                                if '"status":"completed"' in item.body:
                                    return

    def hold(self, name: str, pause: float, seconds: float) -> None:
        """Hold what a runner of the session needs to write, after a pause and for some time."""
        time.sleep(pause)
        if self.is_postgres:
            import psycopg

            server, _, schema = self.address.partition("#")
            with psycopg.connect(server) as connection:
                question = f'SELECT FROM "{schema}".sessions WHERE agent_id = %s FOR UPDATE'
                connection.execute(question.encode(), [name])
                time.sleep(seconds)
            return
        other = sqlite3.connect(self.address, isolation_level=None, timeout=5)
        other.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        other.close()

    async def findings(self, name: str, queries: int = 1) -> list[Finding]:
        """Return everything that is wrong with a session that was brought to its end."""
        async with self.store() as store, EventFeed(store) as feed:
            summary, state = (await store.read(name)).summary, await store.load(name)
            page = await feed.page(name, limit=10**6)
        told = [item.body for item in page.items if item.is_numbered]
        return [*findings(state, summary, told, self.ledger(name), self._heard(name), queries=queries)]

    def _heard(self, name: str) -> Path:
        return self.folder / f"{name}-heard.jsonl"


class Report:
    """What was done to the runners, and what was found, by kind."""

    def __init__(self) -> None:
        counts = ("sessions", "kills", "killed", "frozen", "deploys", "asked", "followed", "refused")
        self.counts = dict.fromkeys(counts, 0)
        self.findings: list[tuple[str, str, str]] = []

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def found(self, name: str, kind: str, text: str) -> None:
        self.findings.append((name, kind, text))

    def to_dict(self) -> dict[str, Any]:
        kinds = [kind for _, kind, _ in self.findings]
        found = {kind: kinds.count(kind) for kind in KINDS}
        return {**self.counts, **found, "problems": [": ".join(each) for each in self.findings]}


def forked(work: Callable[[], Coroutine[Any, Any, object] | None]) -> int:
    """Start some work in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if (started := work()) is not None:
            asyncio.run(started)
        code = 0
    except SessionRunningError:
        code = RUNNING
    except (ApprovalError, KeyUsedError, LeaseLostError, NotResumableError):
        code = OVERTAKEN
    except StoreUnavailableError:
        code = HELD
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """How a process ended: its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Trials:
    """Disturb running sessions, up to three times each, at random moments; then bring them to an end."""

    def __init__(self, lab: Lab, chance: random.Random) -> None:
        self._lab, self._chance = lab, chance
        self._report = Report()
        whole = [_seconds_of(partial(lab.run, f"undisturbed-{number}")) for number in range(3)]
        self._seconds = min(whole)

    def run(self, kills: int) -> Report:
        lab, report, chance = self._lab, self._report, self._chance
        while report.counts["kills"] < kills:
            name = f"session-{report.counts['sessions']}"
            report.count("sessions")
            # Another process follows every third session, from before it begins to its end.
            follower = forked(partial(lab.follow, name)) if report.counts["sessions"] % 3 == 0 else None
            for _ in range(chance.randint(1, 3)):
                drawn = chance.random()
                if drawn < FREEZES:
                    self._freeze(name)
                elif drawn < FREEZES + DEPLOYS:
                    self._deploy(name)
                else:
                    self._kill(name)
            _finish(lab, name, report, follower)
        return report

    def _moment(self) -> float:
        return self._chance.random() * self._seconds

    def _kill(self, name: str) -> None:
        child = forked(partial(self._lab.run, name))
        time.sleep(self._moment())
        os.kill(child, signal.SIGKILL)
        code = self._ended(name, child, 0, -signal.SIGKILL)
        self._count("killed", code == -signal.SIGKILL)

    def _freeze(self, name: str) -> None:
        """Stop a runner until its lease has lapsed and another has the session; wake it then."""
        its_end, held_open = os.pipe()
        first = forked(partial(self._lab.run, name, lease_seconds=FROZEN_LEASE))
        os.close(held_open)
        time.sleep(self._moment())
        os.kill(first, signal.SIGSTOP)
        _, status = os.waitpid(first, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            frozen = Frozen(first, its_end)
            time.sleep(1.2 * FROZEN_LEASE)
            second = forked(partial(self._lab.run, name, frozen=frozen, busy_seconds=1.0))
            if self._chance.random() < 0.5:  # Otherwise it is woken for a question, or when all is done.
                time.sleep(self._moment())
                frozen.wake()
            self._ended(name, second, 0, RUNNING, OVERTAKEN, HELD)
            frozen.wake()
            self._ended(name, first, 0, RUNNING, OVERTAKEN)
            self._count("frozen", True)
        os.close(its_end)

    def _deploy(self, name: str) -> None:
        """Cancel a runner up to three times while another program holds what it needs."""
        busy_seconds = self._chance.choice((0.02, 10.0))
        runner = forked(partial(self._lab.run, name, is_deployed=True, busy_seconds=busy_seconds))
        holders = []
        for _ in range(self._chance.randint(1, 3)):
            holders.append(forked(partial(self._lab.hold, name, self._moment() / 2, self._moment())))
            time.sleep(self._moment())
            os.kill(runner, signal.SIGTERM)  # It is not reaped before, so the id is its own.
            self._report.count("deploys")
        self._ended(name, runner, 0, -signal.SIGTERM)  # It may not have begun to listen.
        for holder in holders:
            self._ended(name, holder, 0)

    def _ended(self, name: str, child: int, *expected: int) -> int:
        code = ended(child)
        if code not in expected:
            self._report.found(name, "lost", f"a process ended with {code}")
        return code

    def _count(self, what: str, is_so: bool) -> None:
        self._report.count(what, is_so)
        self._report.count("kills", is_so)


def _seconds_of(work: Callable[[], Coroutine[Any, Any, object]]) -> float:
    started = time.perf_counter()
    assert ended(forked(work)) == 0
    return time.perf_counter() - started


def killed_at_each_boundary(lab: Lab) -> Report:
    """Kill a session before and after each of its writes, then bring it to its end."""
    report, number = Report(), 0
    while True:
        number += 1
        for when in ("before", "after"):
            name = f"{when}-{number}"
            code = ended(forked(partial(lab.run_mortal, name, when, number)))
            if code == 0:  # There was no such write any more.
                return report
            if code != -signal.SIGKILL:
                report.found(name, "lost", f"the runner ended with {code}")
            report.count("kills")
            _finish(lab, name, report)


def _finish(lab: Lab, name: str, report: Report, follower: int | None = None) -> None:
    code = ended(forked(partial(lab.run, name)))
    if code != 0:
        report.found(name, "lost", f"it could not be brought to its end ({code})")
        return
    if follower is not None:
        report.count("followed")
        if ended(follower):
            report.found(name, "lost", "its follower failed")
    for kind, text in asyncio.run(lab.findings(name)):
        report.found(name, kind, text)
    report.count("asked", sum(line[0] == "asked" for line in lab.ledger(name).lines()))


def raced(lab: Lab, trials: int) -> Report:
    """Let two processes run one session at the same moment."""
    report = Report()
    for trial in range(trials):
        name = f"race-{trial}"
        assert ended(forked(partial(_created, lab, name))) == 0
        codes = [ended(child) for child in [forked(partial(_asked, lab, name)) for _ in range(2)]]
        report.count("sessions")
        report.count("refused", codes.count(RUNNING))
        if 0 not in codes or set(codes) - {0, RUNNING}:
            report.found(name, "lost", f"the two ended with {codes}")
        for kind, text in asyncio.run(lab.findings(name, codes.count(0))):
            report.found(name, kind, text)
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
        report = Trials(lab, random.Random(int(seed))).run(int(trials))
    elif kind == "boundaries":
        report = killed_at_each_boundary(lab)
    else:
        report = raced(lab, int(trials))
    print(json.dumps(report.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
