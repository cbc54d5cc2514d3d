"""The PostgreSQL store on a real server: the contract of a store, and what only this one has."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.real.postgres import PostgresServer
from whyloop.errors import ConfigurationError, SessionRunningError, SnapshotError, StoreError
from whyloop.loop.world import Clock
from whyloop.stores.records import Checkpoint, Entry, RequestKey, SessionFilter, Summary
from whyloop.testing.store_checks import Check
from whyloop.testing.store_conformance import CHECKS
from whyloop.values.state import AgentStatus

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install "whyloop[postgres]"')
pytest.importorskip("psycopg_pool", reason='these tests need a pool: pip install "whyloop[postgres]"')

from whyloop.stores.postgres import (  # noqa: E402
    SLICE,
    Appends,
    PostgresStore,
)
from whyloop.stores.postgres_connection import Connections  # noqa: E402

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SESSION = Summary("a", AgentStatus.PENDING, NOW, NOW)


def journal(*bodies: str) -> list[Entry]:
    return [Entry(body) for body in bodies]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_the_contract(check: Check, postgres: PostgresServer, schema: str) -> None:
    async def open_store(clock: Clock) -> PostgresStore:
        return PostgresStore(postgres.address(), schema=schema, clock=clock)

    await check(open_store)


async def test_leases_go_by_the_clock_of_the_server(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        await store.create(SESSION, journal("first"))
        lapsed = await store.acquire("a", "one", 0.000001)
        held = await store.acquire("a", "two", 60)
        with pytest.raises(SessionRunningError, match="two") as caught:
            await store.acquire("a", "three", 60)
        assert 50 < caught.value.seconds <= 60
        assert lapsed.token < held.token
        assert (await store.read("a")).summary.runner == "two"


def test_it_serves_one_event_loop_after_another(postgres: PostgresServer, schema: str) -> None:
    store = PostgresStore(f"{postgres.address()}?application_name={schema}", schema=schema, max_connections=3)

    async def write(version: int) -> None:
        await store.append("a", journal(f"{version}"), after=version)

    async def read() -> tuple[str, ...]:
        async with store:
            return (await store.read("a")).entries

    asyncio.run(store.create(SESSION, journal("first")))
    for version in range(1, 6):
        asyncio.run(write(version))
        with psycopg.connect(postgres.address()) as other:
            question = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            assert other.execute(question, [schema]).fetchone()[0] <= 3
    assert asyncio.run(read()) == ("first", "1", "2", "3", "4", "5")


async def test_two_event_loops_at_once_need_two_stores(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        await store.create(SESSION, journal("first"))
        with pytest.raises(StoreError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, store.append("a", journal("second"), after=1))
        assert (await store.read("a")).entries == ("first",)


async def test_a_closed_store_raises(postgres: PostgresServer, schema: str) -> None:
    store = PostgresStore(postgres.address(), schema=schema)
    await store.create(SESSION, [])
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="was closed: make a new one"):
        await store.read("a")
    unused = PostgresStore(postgres.address(), schema=schema)
    await unused.close()
    with pytest.raises(StoreError, match="was closed: make a new one"):
        await unused.read("a")


async def test_more_calls_than_connections_wait_for_one(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema, max_connections=2) as store:
        await asyncio.gather(
            *(store.create(replace(SESSION, agent_id=f"{n}"), journal(f"{n}")) for n in range(50))
        )
        stored = await asyncio.gather(*(store.read(f"{n}") for n in range(50)))
    assert [session.entries for session in stored] == [(f"{n}",) for n in range(50)]


class Gated(Connections):
    """Connections on which every statement waits for a gate."""

    def __init__(self) -> None:
        super().__init__("postgresql://127.0.0.1/none", "none", 1, 1, 1)
        self.gate = asyncio.Event()

    async def fetch(
        self, statement: bytes, parameters: Mapping[str, Any], *, prepare: bool | None = None
    ) -> list[tuple[Any, ...]]:
        await self.gate.wait()
        return [("done",) for _ in json.loads(parameters["changes"])]


async def test_an_append_at_the_moment_when_the_last_batch_is_done_is_sent_too() -> None:
    gated = Gated()
    appends = Appends(gated, b"", None)

    async def append_late() -> None:
        await gated.gate.wait()
        await appends.append(b"3")

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for change in (b"1", b"2"):  # One round of the event loop each, and so a batch each.
            tasks.create_task(appends.append(change))
            for _ in range(5):
                await asyncio.sleep(0)
        tasks.create_task(append_late())
        await asyncio.sleep(0)
        gated.gate.set()


async def test_many_writers_at_once_leave_no_gap(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        await store.create(SESSION, [])
        for version in range(5):
            attempts = [store.append("a", journal(f"{n}"), after=version) for n in range(8)]
            results = await asyncio.gather(*attempts, return_exceptions=True)
            assert results.count(None) == 1
        async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
            found = await other.execute(f'SELECT seq FROM "{schema}".entries ORDER BY seq')
            assert await found.fetchall() == [(1,), (2,), (3,), (4,), (5,)]


@pytest.mark.parametrize("agent_id", ["a\x00b", "x" * 501, "\ud800"], ids=["NUL", "too long", "half"])
async def test_an_id_that_the_database_cannot_hold_is_refused(
    postgres: PostgresServer, schema: str, agent_id: str
) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        with pytest.raises(ConfigurationError, match="invalid session id"):
            await store.create(replace(SESSION, agent_id=agent_id), [])
        with pytest.raises(ConfigurationError, match="invalid session id"):
            await store.read(agent_id)


async def test_the_longest_id_and_labels_fit_into_an_index(postgres: PostgresServer, schema: str) -> None:
    # Characters that do not repeat, since an index would hold more of those that do.
    longest = "".join(chr(0x20000 + 37 * n % 20011) for n in range(500))
    metadata = {longest[:198]: longest[198:396], "long": longest}
    summary = replace(SESSION, agent_id=longest, metadata=metadata)
    async with PostgresStore(postgres.address(), schema=schema) as store:
        await store.create(summary, [])
        page = await store.find(SessionFilter(metadata=metadata), limit=1, after=None)
        assert page.sessions == (summary,)


async def test_a_nul_in_any_text_comes_back(postgres: PostgresServer, schema: str) -> None:
    text = "\x00 \\0 \\\\0 \\"
    names = ["title", "parent_agent_id", "identity", "agent", "resolved_by", "reason", "cost"]
    summary = replace(SESSION, metadata={text: text}, **dict.fromkeys(names, text))
    checkpoint = Checkpoint(text, 1, 2, 3, "{}")
    async with PostgresStore(postgres.address(), schema=schema) as store:
        await store.create(summary, [Entry("{}", checkpoint)], key=RequestKey("\\0", text))
        lease = await store.acquire("a", text, 60)
        await store.ask_to_stop("a", text)
        assert (await store.read("a")).summary == replace(summary, version=1, runner=text)
        assert await store.renew(lease) == text
        assert await store.stop_requests([lease]) == {lease.token: text}
        assert await store.versions(["a", text]) == {"a": (text, 1)}
        assert await store.checkpoint("a", execution_id=text) == (0, checkpoint)
        assert await store.key("a", "\\0") == (text, 1)
        assert await store.key("a", "\x00") is None
        with pytest.raises(StoreError, match="NUL"):
            await store.append("a", journal("JSON has no \x00"), after=1, lease=lease)
        with pytest.raises(StoreError, match="surrogate"):
            await store.append("a", journal("\ud800"), after=1, lease=lease)


async def test_a_long_journal_is_read_in_slices(postgres: PostgresServer, schema: str) -> None:
    bodies = [f"{number}" for number in range(2 * SLICE + 10)]
    async with PostgresStore(postgres.address(), schema=schema) as store:
        await store.create(SESSION, journal(*bodies))
        for after, limit in (
            (0, None),
            (0, SLICE),
            (5, SLICE + 1),
            (3, 2 * SLICE),
            (SLICE, 7),
            (len(bodies), 3),
        ):
            found = await store.read("a", after=after, limit=limit)
            end = None if limit is None else after + limit
            assert list(found.entries) == bodies[after:end]
            assert found.summary.version == len(bodies)


async def test_a_status_from_the_future_is_not_taken_for_another(
    postgres: PostgresServer, schema: str
) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        await store.create(SESSION, [])
        async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
            future = "replace(summary, 'pending', 'dreaming')"
            await other.execute(f'UPDATE "{schema}".summaries SET summary = {future}')
        with pytest.raises(SnapshotError, match=r"'dreaming'.*upgrade whyloop"):
            await store.read("a")


async def test_a_connection_is_what_the_store_needs_whatever_the_defaults(
    postgres: PostgresServer, schema: str
) -> None:
    defaults = (
        "-c synchronous_commit=off -c default_transaction_isolation=serializable -c TimeZone=Asia/Tokyo"
    )
    address = psycopg.conninfo.make_conninfo(postgres.address(), options=defaults)
    connections = Connections(address, schema, 1, 1, 2.5)
    settings = ("synchronous_commit", "default_transaction_isolation", "TimeZone", "statement_timeout")
    try:
        found = [await connections.fetch(f"SHOW {name}".encode(), {}) for name in settings]
    finally:
        await connections.close()
    assert [rows[0][0] for rows in found] == ["on", "read committed", "UTC", "2500ms"]


@pytest.mark.parametrize(
    "address", ["postgresql://user:se@cret@host/name", "postgresql://user:secret@[/name"]
)
def test_an_address_that_cannot_be_read_is_refused_without_the_password(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresStore(address)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [{"max_connections": 0}, {"min_connections": 11}, {"timeout": 0}, {"schema": ""}, {"schema": "it's"}],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        PostgresStore("postgresql://127.0.0.1/name", **settings)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_pool"])
def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    for name in [name for name in sys.modules if name.startswith("whyloop.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigurationError, match=r'pip install "whyloop\[postgres\]"'):
        importlib.import_module("whyloop.stores.postgres")
