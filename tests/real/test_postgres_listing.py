"""How sessions are found in a real PostgreSQL: by one index, which goes along with every change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import combinations, product
from typing import Any

import pytest
from msgspec.structs import replace

from tests.real.postgres import PostgresServer
from whyloop.stores.listing import labels_of, wanted_labels
from whyloop.stores.memory import MemoryStore
from whyloop.stores.records import SessionFilter, Summary
from whyloop.stores.store import Store
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Entry

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

from whyloop.stores.postgres import PostgresStore  # noqa: E402

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)
MANY = 20


@pytest.fixture
async def store(postgres: PostgresServer, schema: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        yield store


def session(agent_id: str = "a", *, minutes: float = 0, **fields: Any) -> Summary:
    moment = START + timedelta(minutes=minutes)
    return Summary(agent_id, fields.pop("status", AgentStatus.PENDING), moment, moment, **fields)


async def pages(store: Store, wanted: SessionFilter, limit: int) -> list[list[str]]:
    """The ids of each page from the first to the last."""
    found, after = [], None
    while True:
        page = await store.find(wanted, limit=limit, after=after)
        found.append([summary.agent_id for summary in page.sessions])
        after = page.next
        if after is None:
            return found


async def indexed(postgres: PostgresServer, schema: str) -> dict[str, set[int]]:
    """The labels of each session that has a row in the index."""
    async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
        rows = await other.execute(f'SELECT agent_id, array_agg(label) FROM "{schema}".labels GROUP BY 1')
        return {agent_id: set(labels) for agent_id, labels in await rows.fetchall()}


async def test_any_filter_finds_page_by_page_what_has_it_all(store: PostgresStore) -> None:
    memory = MemoryStore()
    endings = [
        (AgentStatus.PENDING, None),
        (AgentStatus.FAILED, None),
        (AgentStatus.FAILED, StopReason.ERROR_FORBADE),
        (AgentStatus.STOPPED, StopReason.ERROR_FORBADE),
    ]
    for number, (a, b, c, more) in enumerate(product([1, 2], [1, 2], [1, 2], [0, 2, MANY])):
        status, reason = endings[number % len(endings)]
        own = {"a": a, "b": b, "c": c, **{f"more{extra}": 0 for extra in range(more)}}
        # Some start at the same moment.
        made = session(
            f"{number:02}",
            minutes=number // 3,
            status=status,
            stop_reason=reason,
            metadata=own,
            agent=f"agent {number % 5}",
            resolved_by=[None, "limit", "policy"][number % 3],
        )
        for each in (store, memory):
            await each.create(made, [])
    asked = [dict(some) for size in range(4) for some in combinations([("a", 1), ("b", 2), ("c", 1)], size)]
    statuses, reasons = [None, AgentStatus.FAILED], [None, StopReason.ERROR_FORBADE]
    for metadata in [*asked, {"more0": 0, "a": 2, "b": 1}]:
        for wanted_status, wanted_reason in product(statuses, reasons):
            wanted = SessionFilter(status=wanted_status, stop_reason=wanted_reason, metadata=metadata)
            within = replace(wanted, started_after=START, started_before=START + timedelta(minutes=7))
            decided = replace(wanted, resolved_by="policy")
            named = replace(decided, agent="agent 1", updated_before=START + timedelta(minutes=6))
            latest = replace(wanted, updated_after=START + timedelta(minutes=3))
            for some in (wanted, within, decided, named, latest):
                assert await pages(store, some, 2) == await pages(memory, some, 2), some


async def test_a_status_that_changes_moves_only_what_depends_on_it(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    metadata = {"a": 1, "b": 2, "c": 3}
    await store.create(session(metadata=metadata), [])
    async with await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other:
        question = f'SELECT xmin::text, count(*) FROM "{schema}".labels GROUP BY 1'
        ((first, rows),) = await (await other.execute(question)).fetchall()
        assert rows == 6
        await store.append("a", [], after=0, summary=session(metadata=metadata, title="another"))
        assert await (await other.execute(question)).fetchall() == [(first, 6)]
        failed = session(metadata=metadata, status=AgentStatus.FAILED)
        await store.append("a", [], after=0, summary=failed)
        found = dict(await (await other.execute(question)).fetchall())
    assert found.pop(first) == 5
    assert list(found.values()) == [1], "the label of the status"


async def test_the_index_goes_along_with_every_change(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    await store.create(session("a", metadata={"k": 1}), [])
    await store.create(session("b", metadata={"k": 1}), [])
    changes = [
        session("a", metadata={"k": 2, "l": 1}),
        session("a", minutes=5, metadata={"k": 2}),
        session("a", minutes=6, metadata={f"{n}": n for n in range(MANY)}, status=AgentStatus.FAILED),
        session("a", status=AgentStatus.STOPPED, stop_reason=StopReason.USER_REQUESTED),
    ]
    other = set(labels_of(session("b", metadata={"k": 1})))
    for summary in changes:
        await store.append("a", [], after=0, summary=summary)
        assert await indexed(postgres, schema) == {"a": set(labels_of(summary)), "b": other}
        since = SessionFilter(started_after=summary.started_at - timedelta(seconds=1), status=summary.status)
        assert "a" in (await pages(store, since, 5))[0]
    await store.delete("a")
    assert await indexed(postgres, schema) == {"b": other}


@pytest.mark.parametrize("entries", range(4))
async def test_no_filter_makes_a_table_be_read_from_end_to_end(store: PostgresStore, entries: int) -> None:
    """Not even where it is small: a plan may be kept until it is not."""
    await store.create(session(metadata={"a": 1}), [Entry("x")])
    wanted = SessionFilter(stop_reason=StopReason.COMPLETED, metadata={f"{n}": n for n in range(entries)})
    labels = wanted_labels(wanted)
    given: dict[str, Any] = {
        "since": None,
        "until": None,
        "end": "",
        "limit": 51,
        "moment": None,
        "updated_before": None,
        "updated_after": START,
        "recent": 10,
        "terms": [],
    }
    given |= {"labels": labels, "label": labels[0], "others": labels[1:]}
    indexes = {"page": "labels_pkey", "spans": "labels_pkey"}
    indexes |= {"is_recent": "sessions_updated_at_idx", "recent_page": "sessions_updated_at_idx"}
    for name, index in indexes.items():
        plan = [row[0] for row in await store._connections.fetch(b"EXPLAIN " + store._sql[name], given)]
        assert not any("Seq Scan" in step for step in plan), plan
        assert any(index in step for step in plan), plan


STATEMENTS: dict[str, dict[str, Any]] = {
    "read": {"agent_id": "a", "after": 0, "limit": 10, "moment": None},
    "entries": {"number": 1, "after": 0, "limit": 10},
    "checkpoint": {"agent_id": "a", "execution_id": "x", "seq": 1, "step_count": 1, "message_count": 1},
    "key": {"agent_id": "a", "key": "k"},
    "versions": {"ids": ["a"]},
    "stop_requests": {"tokens": [1]},
    "unattended": {"limit": 10, "moment": None, "labels": [1]},
    "waiting": {"limit": 10, "moment": None, "labels": []},
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_no_other_statement_reads_a_table_from_end_to_end_either(
    store: PostgresStore, name: str
) -> None:
    await store.create(session(metadata={"a": 1}), [Entry("x")])
    statement = b"EXPLAIN " + store._sql[name]
    plan = [row[0] for row in await store._connections.fetch(statement, STATEMENTS[name])]
    assert not any("Seq Scan" in step for step in plan), plan
    assert not any("Sort" in step for step in plan), plan
    assert any("Index" in step for step in plan), plan
