"""A PostgreSQL server that is away or refuses the store: when the error comes, and what it says to do."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from tests.real.postgres import PostgresServer
from tests.support import scripted
from whyloop import Session, tool
from whyloop.errors import ConfigurationError, StoreConfigurationError, StoreError, StoreUnavailableError
from whyloop.server.requests import problem_of
from whyloop.stores.records import Summary
from whyloop.testing import call
from whyloop.testing.store_checks import START
from whyloop.values.state import AgentStatus
from whyloop.wire.journal import Entry

psycopg = pytest.importorskip("psycopg", reason='these tests need a driver: pip install ".[postgres]"')

from whyloop.stores.postgres import LONGEST_BATCH, MOST_BATCHES, PostgresStore  # noqa: E402
from whyloop.stores.postgres_connection import _Pool  # noqa: E402

pytestmark = pytest.mark.slow

TIMEOUT = 3.0
# An error that comes later than this waited twice; a busy machine may take its time too.
TOO_LATE = 1.8 * TIMEOUT


@contextmanager
def frozen(postgres: PostgresServer) -> Iterator[None]:
    """Stop all processes of a server for a while, as if its machine hung."""
    assert postgres._process is not None
    main = postgres._process.pid
    listed = subprocess.run(["pgrep", "-P", str(main)], capture_output=True, text=True, check=True)
    ids = [main, *map(int, listed.stdout.split())]
    for pid in ids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in ids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def killed(postgres: PostgresServer) -> Iterator[None]:
    postgres.kill()
    try:
        yield
    finally:
        postgres.start()


Away = Callable[[PostgresServer], Any]
away = pytest.mark.parametrize("away", [killed, frozen], ids=lambda away: away.__name__)


async def refused_in_time(work: Any) -> StoreError:
    """Return the error of a call, which came in time."""
    begun = time.monotonic()
    with pytest.raises(StoreUnavailableError) as caught:
        await work
    assert time.monotonic() - begun < TOO_LATE
    return caught.value


@away
async def test_a_run_ends_in_time_when_the_server_goes_away(
    postgres: PostgresServer, schema: str, away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    begun = 0.0
    async with PostgresStore(postgres.address(), schema=schema, timeout=TIMEOUT, min_connections=4) as store:
        leaving = away(postgres)

        @tool
        async def leave() -> str:
            nonlocal begun
            leaving.__enter__()
            begun = time.monotonic()
            return "gone"

        # Its lease is renewed every second, so a renewal waits for the server too.
        session = await Session.open(store, scripted(call("leave"), tools=[leave]), lease_seconds=3)
        try:
            with pytest.raises(StoreUnavailableError, match="Stored sessions are safe"):
                await session.send("go")
            assert time.monotonic() - begun < TOO_LATE
            await refused_in_time(session.send("again"))
            await refused_in_time(store.read(session.agent_id))
            await refused_in_time(store.sessions())
        finally:
            leaving.__exit__(None, None, None)
        assert (await store.load(session.agent_id)).status == "in_progress"
    assert {record.name for record in caplog.records} <= {"whyloop"}
    own = [record for record in caplog.records if "no connection for locks" in record.message]
    assert len(own) <= 1


@away
async def test_appends_behind_many_others_are_errors_in_time_too(
    postgres: PostgresServer, schema: str, away: Away
) -> None:
    count = (MOST_BATCHES + 2) * LONGEST_BATCH
    async with PostgresStore(postgres.address(), schema=schema, timeout=TIMEOUT) as store:
        for number in range(count):
            await store.create(Summary(f"{number}", AgentStatus.PENDING, START, START), [])
        with away(postgres):
            appends = [store.append(f"{number}", [Entry("x")], after=0) for number in range(count)]
            begun = time.monotonic()
            errors = await asyncio.gather(*appends, return_exceptions=True)
            assert time.monotonic() - begun < TOO_LATE
        assert {type(error) for error in errors} == {StoreUnavailableError}


async def test_who_waits_for_a_connection_in_use_is_told_so(postgres: PostgresServer, schema: str) -> None:
    address = postgres.address()
    async with PostgresStore(address, schema=schema, timeout=0.5, max_connections=1) as store:
        await store.sessions()
        taken = await store._connections._pool.take()  # type: ignore[union-attr]
        with pytest.raises(StoreUnavailableError, match="all connections of this store are in use"):
            await store.sessions()
        store._connections._pool.give_back(taken)  # type: ignore[union-attr]
        await store.sessions()


async def test_connections_that_are_not_used_are_closed_but_for_the_fewest() -> None:
    class Idle:
        def __init__(self) -> None:
            self.pgconn = self
            self.transaction_status = psycopg.pq.TransactionStatus.IDLE
            self.is_open = True

        def finish(self) -> None:
            self.is_open = False

    made: list[Idle] = []

    async def connect() -> Any:
        made.append(Idle())
        return made[-1]

    pool: Any = _Pool(connect, 1, 3)
    for each in [await pool.take() for _ in range(3)]:
        pool.give_back(each)
    assert pool._closing is not None
    pool._close_oldest()
    assert [each.is_open for each in made] == [False, False, True]
    assert await pool.take() is made[2]
    broken = await pool.take()
    broken.transaction_status = psycopg.pq.TransactionStatus.ACTIVE
    pool.give_back(broken)
    assert not made[3].is_open
    pool.close()
    pool.give_back(made[2])
    assert not any(each.is_open for each in made)
    with pytest.raises(StoreError, match="this store was closed"):
        await pool.take()


# Refusals that no other attempt can mend

ROLE, DATABASE = "Check the user and the password", "Create the database"
# What servers answer to a connection: SQLSTATE, text, and the beginning of the advice; None to try again.
REFUSALS = {
    "password": ("28P01", 'password authentication failed for user "ann"', ROLE),
    "peer": ("28000", 'Peer authentication failed for user "ann"', ROLE),
    "hba": (
        "28000",
        'no pg_hba.conf entry for host "1.2.3.4", user "ann", database "a", no encryption',
        ROLE,
    ),
    "role": ("28000", 'role "ann" does not exist', ROLE),
    "login": ("28000", 'role "ann" is not permitted to log in', ROLE),
    "database": ("3D000", 'database "shop" does not exist', DATABASE),
    "closed": ("55000", 'database "shop" is not currently accepting connections', DATABASE),
    "right": ("42501", 'permission denied for database "shop"', "Let the role of the store own the schema"),
    "option": ("42704", 'unrecognized configuration parameter "speed"', "Correct the options"),
    "value": ("22023", 'invalid value for parameter "TimeZone": "Mars"', "Correct the options"),
    "starting": ("57P03", "the database system is starting up", None),
    "stopping": ("57P03", "the database system is shutting down", None),
    "full": ("53300", "sorry, too many clients already", None),
    "reserved": ("53300", "remaining connection slots are reserved for roles with SUPERUSER", None),
    "memory": ("53200", "out of memory", None),
    "another language": ("57P03", "das Datenbanksystem startet", None),
}


@asynccontextmanager
async def answering(*packets: bytes) -> AsyncIterator[str]:
    """Answer each connection with the same bytes; return the address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (length := int.from_bytes(await reader.readexactly(4))) == 8:
            await reader.readexactly(length - 4)  # It asks for TLS, or for GSSAPI.
            writer.write(b"N")
        await reader.readexactly(length - 4)
        writer.writelines(packets)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql://ann:sesame@127.0.0.1:{port}/shop"


def error_packet(state: str, text: str) -> bytes:
    fields = b"".join(
        kind + value.encode() + b"\0" for kind, value in ((b"S", "FATAL"), (b"C", state), (b"M", text))
    )
    return b"E" + (len(fields) + 5).to_bytes(4) + fields + b"\0"


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refused_connection_says_whether_to_try_again(name: str) -> None:
    state, text, advice = REFUSALS[name]
    async with answering(error_packet(state, text)) as address, PostgresStore(address, timeout=2) as store:
        with pytest.raises(StoreError) as caught:
            await store.sessions()
    found = str(caught.value)
    assert text.replace('"', "") in found.replace('"', "")
    assert "sesame" not in found
    if advice is None:
        assert isinstance(caught.value, StoreUnavailableError)
        assert "Try again" in found
    else:
        assert isinstance(caught.value, StoreConfigurationError)
        assert f". {advice}" in found
        assert "ry again" not in found


async def test_another_service_at_the_address_is_recognized() -> None:
    async with (
        answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        PostgresStore(address, timeout=2) as store,
    ):
        with pytest.raises(StoreConfigurationError, match="Another service has this port"):
            await store.sessions()


@pytest.mark.parametrize(
    ("code", "kind"),
    [(socket.EAI_NONAME, StoreConfigurationError), (socket.EAI_AGAIN, StoreUnavailableError)],
)
async def test_an_unknown_host_is_told_from_a_resolver_that_is_down(
    code: int, kind: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getaddrinfo(*_: object, **__: object) -> Any:
        reasons = {socket.EAI_NONAME: "Name or service not known"}
        raise socket.gaierror(code, reasons.get(code, "Temporary failure in name resolution"))

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    async with PostgresStore("postgresql://ann@db.example/shop", timeout=2) as store:
        with pytest.raises(StoreError) as caught:
            await store.sessions()
    assert type(caught.value) is kind


async def in_database(postgres: PostgresServer, *statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.address(), autocommit=True) as other:
        for statement in statements:
            await other.execute(statement)


async def test_a_missing_role_or_database_is_a_mistake_of_the_configuration(
    postgres: PostgresServer,
) -> None:
    address = postgres.address()
    for wrong, advice in (
        (address.replace("postgres@", "nobody-here@"), r'role "nobody-here" does not exist\. Check the user'),
        (postgres.address("nowhere"), r'database "nowhere" does not exist\. Create the database'),
    ):
        async with PostgresStore(wrong, timeout=TIMEOUT) as store:
            with pytest.raises(StoreConfigurationError, match=advice) as caught:
                await store.sessions()
        assert isinstance(caught.value, ConfigurationError)
        assert problem_of(caught.value)[0] == 500  # The clients of a server made no mistake.


async def test_a_role_without_rights_is_told_which_it_needs(postgres: PostgresServer, schema: str) -> None:
    await in_database(postgres, "DROP ROLE IF EXISTS weak", "CREATE ROLE weak LOGIN")
    weak = postgres.address().replace("postgres@", "weak@")
    async with PostgresStore(weak, schema=schema, timeout=TIMEOUT) as store:
        with pytest.raises(StoreConfigurationError, match="Let the role of the store own the schema"):
            await store.sessions()


async def test_tables_that_were_removed_are_named(postgres: PostgresServer, schema: str) -> None:
    async with PostgresStore(postgres.address(), schema=schema, timeout=TIMEOUT) as store:
        await store.sessions()
        await in_database(postgres, f'DROP TABLE "{schema}".labels')
        with pytest.raises(StoreConfigurationError, match="The tables of this store were removed"):
            await store.sessions()


async def test_a_role_that_was_locked_out_is_not_tried_for_ever(
    postgres: PostgresServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    await in_database(postgres, "DROP ROLE IF EXISTS keeper", "CREATE ROLE keeper LOGIN SUPERUSER")
    address = postgres.address().replace("postgres@", "keeper@")
    async with PostgresStore(address, schema=schema, timeout=TIMEOUT) as store:
        await store.create(Summary("a", AgentStatus.PENDING, START, START), [])
        await store.acquire("a", "one", 60)
        task = store._own._task
        assert task is not None
        with caplog.at_level(logging.WARNING):
            await in_database(
                postgres,
                "ALTER ROLE keeper NOLOGIN",
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'keeper'",
            )
            await asyncio.wait([task])
            with pytest.raises(StoreConfigurationError, match="is not permitted to log in"):
                await store.read("a")
        assert [record.name for record in caplog.records] == ["whyloop"]
        await in_database(postgres, "ALTER ROLE keeper LOGIN")
        assert (await store.read("a")).summary.version == 0
    await in_database(postgres, f'DROP SCHEMA "{schema}" CASCADE', "DROP ROLE keeper")
