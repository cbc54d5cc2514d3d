"""The cost of storing a session: `make bench-stores`.

Every ratio is taken within one run, since machines are noisy: the bare insert is made by a listener
of the same agent, in the same loop, and writes the very bytes that whyloop wrote. Without syncing to disk it
writes the two rows of a step in one transaction, where whyloop needs two: a tool call is recorded before it
runs. With syncing it uses as many transactions as whyloop does.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.loop import figure, report
from benchmarks.work import make_agent
from whyloop import Session
from whyloop.broadcasting.feed import Cursor, EventFeed
from whyloop.events import AgentEvent, AgentStepCompleted
from whyloop.stores import Entry, SessionFilter, SqliteStore, Summary
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

Durability = Literal["process", "power"]
SYNCHRONOUS = {"process": "normal", "power": "full"}
ROUNDS = 9
SESSIONS = 100_000
BARE_PAGE = "SELECT * FROM sessions JOIN summaries ON session = number ORDER BY number DESC LIMIT 50"
# Times the rows that are read by hand.
MOST_OPENING, MOST_PAGING, MOST_LISTING, MOST_COUNTING = 4.0, 10.0, 10.0, 6.0
FILTERS: dict[str, dict[str, object]] = {
    "none": {},
    "status, common": {"status": "completed"},
    "status, rare": {"status": "paused"},
    "stop reason": {"stop_reason": "steps_limit"},
    "age": {"started_before": datetime(2026, 1, 1, 12, tzinfo=UTC)},
    "last update": {"updated_before": datetime(2026, 1, 1, 0, 10, tzinfo=UTC)},
    "recent update": {"updated_after": datetime(2026, 1, 2, 3, 46, tzinfo=UTC)},
    "waiting for a person": {"waiting": True},
    "words, common": {"search": "question"},
    "metadata, common": {"metadata": {"team": "support"}},
    "metadata, rare": {"metadata": {"customer": 4711}},
    "status and metadata": {"status": "failed", "metadata": {"team": "sales"}},
    "two of metadata, disjoint": {"metadata": {"team": "sales", "half": "upper"}},
    "all at once": {
        "status": "stopped",
        "stop_reason": "steps_limit",
        "started_after": datetime(2026, 1, 1, 6, tzinfo=UTC),
        "metadata": {"team": "support"},
    },
    "nothing matches": {"status": "failed", "metadata": {"team": "nobody"}},
}


async def stored_steps(folder: Path, durability: Durability, steps: int) -> tuple[float, list[str]]:
    """Microseconds a step of a stored session, and what was stored."""
    store = SqliteStore(folder / f"{durability}-{steps}-{time.monotonic_ns()}.db", durability=durability)
    async with store:
        session = await Session.open(store, make_agent(steps))
        started = time.perf_counter()
        state = await session.send("go")
        seconds = time.perf_counter() - started
        if state.step_count != steps or state.stop_reason != "completed":
            raise RuntimeError(state.explain())
        return seconds / steps * 1e6, list((await store.read(session.agent_id)).entries)


async def inserted_steps(folder: Path, durability: Durability, steps: int, rows: Sequence[str]) -> float:
    """Microseconds a step of the same run with the least that anybody could write by hand.

    A listener puts two rows a step, the very bytes that whyloop stored, into a plain table.
    """
    connection = sqlite3.connect(folder / f"bare-{time.monotonic_ns()}.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    connection.execute(
        "CREATE TABLE rows (session TEXT, number INTEGER, body TEXT, PRIMARY KEY (session, number))"
    )
    session, numbers = "a" * 32, itertools.count()

    def insert(event: AgentEvent) -> None:
        if type(event) is AgentStepCompleted:
            if durability == "process":
                connection.execute("BEGIN IMMEDIATE")
            for _ in range(2):
                number = next(numbers)
                connection.execute("INSERT INTO rows VALUES (?, ?, ?)", (session, number, rows[number]))
            if durability == "process":
                connection.execute("COMMIT")

    seconds = await _run(steps, insert)
    connection.close()
    return seconds


async def plain_steps(steps: int) -> float:
    """Microseconds a step of the same run that is not stored."""

    def ignore(event: AgentEvent) -> None:
        if type(event) is AgentStepCompleted:
            return

    return await _run(steps, ignore)


async def _run(steps: int, listener: Callable[[AgentEvent], None]) -> float:
    agent = make_agent(steps)
    agent.subscribe(listener)
    started = time.perf_counter()
    await agent.run("go")
    return (time.perf_counter() - started) / steps * 1e6


async def step_cost(folder: Path, durability: Durability, steps: int) -> tuple[float, float, float]:
    """Medians of the rounds: the bare insert, storing a step, and the ratio of the two."""
    bares, storing, ratios = [], [], []
    for _ in range(ROUNDS if steps > 100 else 4 * ROUNDS):
        stored, entries = await stored_steps(folder, durability, steps)
        plain = await plain_steps(steps)
        bare = await inserted_steps(folder, durability, steps, entries) - plain
        bares.append(bare)
        storing.append(stored - plain)
        ratios.append((stored - plain) / bare)
    return statistics.median(bares), statistics.median(storing), statistics.median(ratios)


async def late_step_ratio(folder: Path) -> float:
    """What the thousandth stored step costs beside the tenth, within one session."""
    ratios = []
    for number in range(ROUNDS):
        async with SqliteStore(folder / f"late-{number}.db") as store:
            agent = make_agent(1100)
            times: list[float] = []

            def note(event: object, times: list[float] = times) -> None:
                if type(event).__name__ == "AgentStepCompleted":
                    times.append(time.perf_counter())

            agent.subscribe(note)
            await (await Session.open(store, agent)).send("go")
        costs = [after - before for before, after in itertools.pairwise(times)]
        ratios.append(statistics.median(costs[975:1075]) / statistics.median(costs[5:105]))
    return statistics.median(ratios)


async def bytes_a_step(folder: Path, steps: int) -> float:
    """What the file holds for a step beyond the content of its messages, trace included."""
    path = folder / f"bytes-{steps}.db"
    async with SqliteStore(path):
        pass  # Closing it writes the tables from the log to the file.
    empty = path.stat().st_size
    async with SqliteStore(path) as store:
        session = await Session.open(store, make_agent(steps))
        state = await session.send("go")
    content = sum(
        len(message.text.encode()) + sum(len(str(call.arguments)) for call in message.tool_calls)
        for message in state.messages
    )
    return (path.stat().st_size - empty - content) / steps


async def opening(folder: Path, steps: int) -> tuple[float, float]:
    """Milliseconds to open a session of so many steps, and times those that its bare rows take.

    The bare counterpart reads the rows from the file and decodes their JSON. Both in time of the
    processor.
    """
    path = folder / "opening.db"
    async with SqliteStore(path) as store:
        agent_id = (await _ran(store, steps)).agent_id
    times, ratios = [], []
    for _ in range(2 * ROUNDS):
        bare = _read_rows(path, "SELECT body FROM entries", ())
        async with SqliteStore(path) as store:
            started = time.process_time()
            session = await Session.open(store, make_agent(1), agent_id)
            own = (time.process_time() - started) * 1000
            if session.state.step_count != steps:
                raise RuntimeError("it is not all there")
            del session  # Otherwise the next round would measure how long it takes to free this one.
        times.append(own)
        ratios.append(own / bare)
    return statistics.median(times), statistics.median(ratios)


async def paging(folder: Path, steps: int) -> tuple[float, float]:
    """Milliseconds for a page of 100 envelopes from anywhere in a long session, and times its bare rows."""
    path = folder / "paging.db"
    async with SqliteStore(path) as store:
        session = await _ran(store, steps)
        feed, times, ratios = EventFeed(store), [], []
        for number in range(5 * ROUNDS):
            cursor = Cursor(session.state.execution.id, number * 1000 + 17)
            statement = "SELECT body FROM entries ORDER BY place LIMIT ? OFFSET ?"
            bare = _read_rows(path, statement, (66, number))
            started = time.process_time()
            page = await feed.page(session.agent_id, cursor, limit=100)
            own = (time.process_time() - started) * 1000
            times.append(own)
            ratios.append(own / bare)
            if len(page.items) != 100 or page.items[0].seq != cursor.seq + 1:
                raise RuntimeError("the page is not the one that was asked for")
    return statistics.median(times), statistics.median(ratios)


def _read_rows(path: Path, statement: str, values: Sequence[object]) -> float:
    """Return the milliseconds to read rows by hand and decode their JSON, the connection included."""
    started = time.process_time()
    connection = sqlite3.connect(path)
    rows = [msgspec.json.decode(body) for (body,) in connection.execute(statement, values)]
    connection.close()
    if not rows:
        raise RuntimeError(f"there are no rows for {statement} {values}")
    return (time.process_time() - started) * 1000


async def _ran(store: SqliteStore, steps: int) -> Session:
    session = await Session.open(store, make_agent(steps))
    await session.send("go")
    return session


async def fill(store: SqliteStore) -> None:
    """A store with very many sessions of all kinds."""
    started = datetime(2026, 1, 1, tzinfo=UTC)
    kinds = [
        (AgentStatus.COMPLETED, StopReason.COMPLETED),
        (AgentStatus.STOPPED, StopReason.STEPS_LIMIT_REACHED),
        (AgentStatus.FAILED, StopReason.ERROR_FORBADE),
    ]
    for number in range(SESSIONS):
        status, reason = kinds[number % 3]
        if number % 5000 == 0:
            status, reason = AgentStatus.PAUSED, None  # type: ignore[assignment]
            print(f"\r  filling the store: {number:,} of {SESSIONS:,} sessions", end="", flush=True)
            await asyncio.sleep(0.01)  # The log is emptied in a task of the event loop.
        moment = started + timedelta(seconds=number)
        half = "lower" if number < SESSIONS // 2 else "upper"
        team = "sales" if half == "lower" and number % 2 else "support"
        metadata = {"team": team, "half": half, "customer": number}
        await store.create(
            Summary(
                f"{number:032x}",
                status,
                moment,
                moment,
                reason,
                title="A question",
                metadata=metadata,
                pending=int(status is AgentStatus.PAUSED),
                search="a question " * 50,
            ),
            [Entry('{"v":1}')],
        )
    print("\r" + " " * 70, end="\r")


async def listing(store: SqliteStore, path: Path) -> dict[str, tuple[float, float]]:
    """Milliseconds for a page of 50 for each filter, and times those of 50 rows read by hand."""
    found = {}
    for name, wanted in FILTERS.items():
        times, ratios = [], []
        for _ in range(ROUNDS):
            bare = await asyncio.to_thread(_run_bare, path, BARE_PAGE)
            started = time.perf_counter()
            await store.sessions(**wanted)  # type: ignore[arg-type]
            times.append((time.perf_counter() - started) * 1000)
            ratios.append(times[-1] / bare)
        found[name] = statistics.median(times), statistics.median(ratios)
    return found


async def counting(store: SqliteStore, path: Path) -> tuple[float, float]:
    """Milliseconds to count all sessions by kind and day, and times those of a plain count by status."""
    times, ratios = [], []
    for _ in range(ROUNDS):
        statement = "SELECT status, count(*), max(started_at) FROM sessions GROUP BY status"
        bare = await asyncio.to_thread(_run_bare, path, statement)
        started = time.perf_counter()
        await store.tally(SessionFilter(), since=datetime(2026, 1, 1, tzinfo=UTC))
        times.append((time.perf_counter() - started) * 1000)
        ratios.append(times[-1] / bare)
    return statistics.median(times), statistics.median(ratios)


def _run_bare(path: Path, statement: str) -> float:
    """Return the milliseconds of a statement, the connection included."""
    started = time.perf_counter()
    connection = sqlite3.connect(path)
    connection.execute(statement).fetchall()
    connection.close()
    return (time.perf_counter() - started) * 1000


def judged(label: str, ratio: float, most: float) -> bool:
    """Report a ratio to the bare rows."""
    return report(label, f"{ratio:.1f} x", f"at most {most:g} x", ratio <= most)


async def main() -> bool:
    met = True
    with tempfile.TemporaryDirectory(dir=os.environ.get("WHYLOOP_BENCH_FOLDER")) as name:
        folder = Path(name)
        await stored_steps(folder, "process", 100)  # Warm up.
        durabilities: tuple[Durability, ...] = ("process", "power")
        for durability in durabilities:
            print(f'SQLite, durability "{durability}", one tool call a step')
            for steps in (100, 1000) if durability == "process" else (200,):
                bare, storing, ratio = await step_cost(folder, durability, steps)
                label = f"storing a step of {steps:,} (bare insert {bare:.0f} µs)"
                # A short run has the start and the end of a session in it, so it is told and not judged.
                value, most = f"{storing:.0f} µs {ratio:.2f} x", 2.0 if durability == "process" else 1.3
                if steps > 100:
                    met &= report(label, value, f"at most {most:g} x", ratio <= most)
                else:
                    figure(label, value)
        late = await late_step_ratio(folder)
        met &= report("step 1,000 beside step 10", f"{late:.2f} x", "at most 1.25 x", late <= 1.25)
        short, long = await bytes_a_step(folder, 100), await bytes_a_step(folder, 1000)
        met &= report("bytes a step of 100", f"{short:,.0f}", "at most 2,048", short <= 2048)
        met &= report("bytes a step of 1,000", f"{long:,.0f}", "at most 2,048", long <= 2048)
        took, ratio = await opening(folder, 1000)
        met &= judged(f"opening a session of 1,000 steps ({took:.1f} ms)", ratio, MOST_OPENING)
        took, ratio = await paging(folder, 20_000)
        met &= judged(f"100 envelopes of 20,000 steps ({took:.1f} ms)", ratio, MOST_PAGING)
        path = folder / "many.db"
        async with SqliteStore(path) as store:
            await fill(store)
            for kind, (took, ratio) in (await listing(store, path)).items():
                met &= judged(f"50 of {SESSIONS:,}, by {kind} ({took:.1f} ms)", ratio, MOST_LISTING)
            took, ratio = await counting(store, path)
            met &= judged(f"counting {SESSIONS:,} sessions ({took:.0f} ms)", ratio, MOST_COUNTING)
    return met


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
