"""The PostgreSQL store on a real server: the contract of a store, and its own features."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from random import randbytes
from typing import Any

import pytest
from msgspec.structs import replace

from tests.real.postgres import PostgresServer
from tests.real.postgres_proxy import Lost, Proxy
from whyloop.errors import (
    ConfigurationError,
    SessionNotFoundError,
    SessionRunningError,
    SnapshotError,
    StoreError,
)
from whyloop.loop.world import Clock
from whyloop.stores.records import RequestKey, SessionFilter, Summary
from whyloop.testing.store_checks import Check
from whyloop.testing.store_conformance import CHECKS
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Checkpoint, Entry

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

from whyloop.stores.postgres import (  # noqa: E402
    SLICE,
    Appends,
    PostgresStore,
    _Answer,
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
        self, statement: bytes, parameters: Mapping[str, Any], **options: Any
    ) -> list[tuple[Any, ...]]:
        await self.gate.wait()
        return [("done",) for _ in json.loads(parameters["changes"])]


def answered(row: tuple[Any, ...]) -> _Answer:
    return _Answer(row[0], 0, None, "", 0)


async def test_an_append_at_the_moment_when_the_last_batch_is_done_is_sent_too() -> None:
    gated = Gated()
    appends = Appends(gated, b"", None)

    async def append_late() -> None:
        await gated.gate.wait()
        await appends.append(b"3", answered)

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for change in (b"1", b"2"):  # One round of the event loop each, and so a batch each.
            tasks.create_task(appends.append(change, answered))
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


async def test_a_connection_has_the_settings_of_the_store_under_any_defaults(
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
        connections.close()
    assert [rows[0][0] for rows in found] == ["on", "read committed", "UTC", "1875ms"]


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


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("whyloop.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r'pip install "\.\[postgres\]"'):
        importlib.import_module("whyloop.stores.postgres")


# Durable leases and claims

OWN_CONNECTIONS = """
SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND application_name = %s
"""

WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"


async def asked(postgres: PostgresServer, question: str, *given: Any) -> Any:
    """Return the first column of what the server answers to another program."""
    async with await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other:
        row = await (await other.execute(question, given)).fetchone()
        return row and row[0]


async def test_a_durable_lease_needs_no_lock(postgres: PostgresServer, schema: str) -> None:
    address = f"{postgres.address()}?application_name={schema}"
    async with PostgresStore(address, schema=schema) as store:
        await store.create(SESSION, journal("first"))
        lease = await store.acquire("a", "the workflow", 60, durable=True)
        await store.renew(lease)
        assert await asked(postgres, OWN_CONNECTIONS, schema) == 0
        assert await asked(postgres, f'SELECT lease_lock FROM "{schema}".sessions') is None
        await store.renew(replace(lease, durable=False))
        assert await asked(postgres, f'SELECT lease_lock FROM "{schema}".sessions') is None
        await store.release(lease)
        await store.acquire("a", "a runner", 60)
        assert await asked(postgres, OWN_CONNECTIONS, schema) == 1


async def test_a_stop_request_outlives_the_caller_that_acquires_a_durable_lease(
    postgres: PostgresServer, schema: str
) -> None:
    address = f"{postgres.address()}?application_name={schema}"
    async with PostgresStore(address, schema=schema) as store, asyncio.timeout(10):
        await store.create(SESSION, journal("first"))
        first = await store.acquire("a", "the workflow", 60, durable=True)
        await store.ask_to_stop("a", "enough")
        async with await psycopg.AsyncConnection.connect(postgres.address()) as other:
            await other.execute(f'SELECT FROM "{schema}".sessions FOR UPDATE')
            acquiring = asyncio.create_task(store.acquire("a", "the workflow", 60, durable=True))
            while not await asked(postgres, WAITING, schema):
                await asyncio.sleep(0.01)
            acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        last = await store.acquire("a", "the workflow", 60, durable=True)
        assert last.token == first.token + 2
        assert await store.renew(last) == "enough"


async def test_behind_a_pooler_a_lease_of_a_runner_is_not_durable(
    postgres: PostgresServer, schema: str
) -> None:
    async with (
        Proxy(postgres.port, pooler=True) as proxy,
        PostgresStore(postgres.address(port=proxy.port), schema=schema) as store,
    ):
        await store.create(SESSION, journal("first"))
        await store.acquire("a", "the workflow", 60)
        assert await asked(postgres, f'SELECT lease_lock FROM "{schema}".sessions') is None
        with pytest.raises(SessionRunningError, match="the workflow"):
            await store.acquire("a", "the workflow", 60, durable=True)


@pytest.mark.parametrize("lost", Lost)
async def test_a_durable_lease_is_acquired_once_on_a_lossy_network(
    postgres: PostgresServer, schema: str, lost: Lost
) -> None:
    async with (
        Proxy(postgres.port) as proxy,
        PostgresStore(postgres.address(port=proxy.port), schema=schema) as store,
    ):
        await store.create(SESSION, journal("first"))
        first = await store.acquire("a", "the workflow", 60, durable=True)
        await store.ask_to_stop("a", "enough")
        proxy.cut = lost
        second = await store.acquire("a", "the workflow", 60, durable=True)
        assert proxy.cuts == 1
        assert second.token == first.token + 1
        assert await store.renew(second) == "enough"


@pytest.mark.parametrize(
    ("lost", "size", "after"),
    [
        (Lost.QUESTION, 10, 0),
        (Lost.ANSWER, 10, 0),
        (Lost.QUESTION, 1_000_000, 0),
        (Lost.QUESTION, 1_000_000, 5),
    ],
)
async def test_a_claim_is_kept_once_on_a_lossy_network(
    postgres: PostgresServer, schema: str, lost: Lost, size: int, after: int
) -> None:
    data = randbytes(size)
    async with (
        Proxy(postgres.port) as proxy,
        PostgresStore(postgres.address(port=proxy.port), schema=schema) as store,
    ):
        await store.create(SESSION, journal("first"))
        proxy.cut, proxy.after = lost, after
        key = await store.keep_claim("a", data)
        assert proxy.cuts == 1
        assert await store.claim("a", key) == data
        assert await asked(postgres, f'SELECT sum(octet_length(data)) FROM "{schema}".claims') == size


async def test_no_claim_outlives_a_session_that_is_deleted_at_the_same_time(
    postgres: PostgresServer, schema: str
) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        for _ in range(20):
            await store.create(SESSION, journal("first"))
            keeping = [store.keep_claim("a", b"%d" % number) for number in range(3)]
            results = await asyncio.gather(
                keeping[0], store.delete("a"), *keeping[1:], return_exceptions=True
            )
            assert {type(result) for result in results} <= {str, type(None), SessionNotFoundError}
            assert await asked(postgres, f'SELECT count(*) FROM "{schema}".claims') == 0


async def test_a_damaged_claim_is_named(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema) as store:
        await store.create(SESSION, journal("first"))
        key = await store.keep_claim("a", b"data")
        await asked(postgres, f"""UPDATE "{schema}".claims SET data = 'other' RETURNING 1""")
        with pytest.raises(StoreError, match=f"claim {key} of session 'a' is not what was stored: restore"):
            await store.claim("a", key)
