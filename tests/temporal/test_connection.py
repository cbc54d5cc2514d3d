"""A Temporal server that does not answer, one that refuses, and a failed workflow have different errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import pytest
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from tests.real.soketi import free_ports
from tests.server.support import pay
from tests.support import scripted
from whyloop.errors import ConfigurationError, StoreError, StoreUnavailableError
from whyloop.sessions.session import Session
from whyloop.stores import Entry, MemoryStore, RequestKey, Summary
from whyloop.temporal import Accepted, TemporalRecovery, TemporalSession, WhyloopPlugin
from whyloop.temporal.connection import connection_error, engine_of, is_open, reaching
from whyloop.temporal.payloads import Start
from whyloop.temporal.recovery import AT_ONCE, wake
from whyloop.testing import call
from whyloop.values.state import AgentStatus

REFUSALS = {
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.ALREADY_EXISTS,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.OUT_OF_RANGE,
    RPCStatusCode.UNIMPLEMENTED,
    RPCStatusCode.UNAUTHENTICATED,
}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def client(store: MemoryStore) -> Client:
    """A client that connects with its first call, to a port where nothing listens."""
    (port,) = free_ports(1)
    return await Client.connect(f"127.0.0.1:{port}", lazy=True, plugins=[WhyloopPlugin(store)])


@pytest.mark.parametrize("status", [each for each in RPCStatusCode if each is not RPCStatusCode.OK])
async def test_a_call_that_temporal_refuses_is_told_from_one_that_it_does_not_answer(
    client: Client, status: RPCStatusCode
) -> None:
    with pytest.raises(StoreError, match="why it failed") as raised, reaching(client):
        raise RPCError("Why it failed.", status, b"")
    assert isinstance(raised.value, StoreUnavailableError) is (status not in REFUSALS)
    assert isinstance(raised.value.__cause__, RPCError)
    assert client.service_client.config.target_host in str(raised.value)


async def test_only_a_refusal_about_rights_advises_to_check_them(client: Client) -> None:
    advice = "Check the namespace, and the rights of this client in it"
    refused = connection_error(client, RPCError("Not yours.", RPCStatusCode.PERMISSION_DENIED, b""))
    assert str(refused).endswith(f"not yours. {advice}")
    too_many = connection_error(client, RPCError("Too many signals.", RPCStatusCode.INVALID_ARGUMENT, b""))
    assert str(too_many).endswith("in namespace 'default': too many signals")


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (WorkflowUpdateRPCTimeoutOrCancelledError(), "it did not answer in time"),
        (RuntimeError('Failed client connect: Error { "Connection refused" }'), "connection refused"),
    ],
)
async def test_other_forms_of_a_lost_connection(client: Client, error: Exception, problem: str) -> None:
    address = client.service_client.config.target_host
    found = connection_error(client, error)
    assert type(found) is StoreUnavailableError
    assert str(found) == f"Temporal could not be reached at {address}: {problem}. Try again later"


@pytest.mark.parametrize(
    "error",
    [
        WorkflowFailureError(cause=ApplicationError("the disk is full")),
        WorkflowUpdateFailedError(ApplicationError("the disk is full")),
        RuntimeError("a mistake"),
        StoreError("the disk is full"),
    ],
)
async def test_errors_of_workflows_are_passed_on(client: Client, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, reaching(client):
        raise error
    assert raised.value is error


CALLS: dict[str, Callable[[TemporalSession], Awaitable[object]]] = {
    "send": lambda session: session.send("Hi"),
    "resume": lambda session: session.resume(),
    "approve": lambda session: session.approve("q"),
    "deny": lambda session: session.deny("q"),
    "edit": lambda session: session.edit("q", {}),
    "request_stop": lambda session: session.request_stop("enough"),
    "wait": lambda session: session.wait(Accepted("x", 1)),
    "is_open": lambda session: is_open(session.client, "w"),
    "wake": lambda session: wake(session.client, session.summary),
}


@pytest.mark.parametrize("name", CALLS)
async def test_each_call_without_a_connection(client: Client, store: MemoryStore, name: str) -> None:
    session = await TemporalSession.open(client, store, "a")
    with pytest.raises(StoreUnavailableError, match="Temporal could not be reached at 127"):
        await CALLS[name](session)


async def test_a_session_that_could_not_be_woken_is_found_by_the_next_look(
    client: Client, store: MemoryStore
) -> None:
    session = await Session.open(store, scripted(call("pay", {"amount": 5}), tools=[pay], name="a"))
    (question,) = (await session.send("Pay 5")).pending_calls
    await store.approve(session.agent_id, question.id)
    recovery = TemporalRecovery(client, store, ["a"])
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await recovery.look()


async def test_a_workflow_that_could_not_be_ended_is_found_by_the_next_look(
    client: Client, store: MemoryStore
) -> None:
    session = await TemporalSession.open(client, store, "a")
    await store.record_workflow(session.agent_id, engine_of(client), "w")
    recovery = TemporalRecovery(client, store, ["a"])
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await recovery.look()


async def test_a_session_that_temporal_refuses_to_wake_does_not_keep_the_others(
    client: Client, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    woken = []

    async def start_workflow(run: object, start: Start, **_: object) -> None:
        woken.append(start.agent_id)
        if start.agent_id == "full":
            raise RPCError("Too many signals.", RPCStatusCode.INVALID_ARGUMENT, b"")

    monkeypatch.setattr(client, "start_workflow", start_workflow)
    for agent_id in ("full", "other"):
        agent = scripted(call("pay", {"amount": 5}), tools=[pay], name="a")
        session = await Session.open(store, agent, agent_id, create=True)
        (question,) = (await session.send("Pay 5")).pending_calls
        await store.approve(agent_id, question.id)
    recovery = TemporalRecovery(client, store, ["a"])
    assert await recovery.look() == ["other"]
    assert await recovery.look() == []
    assert sorted(woken) == ["full", "other"]
    assert "session 'full' cannot be woken: Temporal at 127.0.0.1" in caplog.text


async def test_sessions_of_other_agents_do_not_hide_those_that_are_to_be_woken(
    client: Client, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start_workflow(run: object, start: Start, **_: object) -> None: ...

    monkeypatch.setattr(client, "start_workflow", start_workflow)
    now = store.now()
    for number in range(2 * AT_ONCE + 1):
        agent = "other" if number < 2 * AT_ONCE else "a"
        running = Summary(f"{agent} {number}", AgentStatus.IN_PROGRESS, now, now, agent=agent)
        await store.create(running, [])
        now += timedelta(seconds=1)
    assert await TemporalRecovery(client, store, ["a"]).look() == [f"a {2 * AT_ONCE}"]


def test_names_of_agents_in_one_text_are_refused(client: Client, store: MemoryStore) -> None:
    with pytest.raises(ConfigurationError, match="invalid agents 'cashier': use a collection of names"):
        TemporalRecovery(client, store, "cashier")


class OvertakenStore(MemoryStore):
    """A store in which another process always creates a session a moment earlier."""

    async def create(
        self, summary: Summary, entries: Sequence[Entry], *, key: RequestKey | None = None
    ) -> None:
        await super().create(summary, entries)
        await super().create(summary, entries, key=key)


async def test_a_session_that_another_client_has_just_created_is_opened(client: Client) -> None:
    opened = await TemporalSession.open(client, OvertakenStore(), "shop", "a", create=True)
    assert (opened.agent_id, opened.version) == ("a", 1)


# A server that does not answer; the call is still on its way to the interpreter when that ends.
EXIT = """
import asyncio, socket, sys, time
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig
from whyloop.stores import MemoryStore
from whyloop.temporal import WhyloopPlugin

async def begin():
    address, runtime = f"127.0.0.1:{silent.getsockname()[1]}", Runtime(telemetry=TelemetryConfig())
    plugin = WhyloopPlugin(MemoryStore())
    client = await Client.connect(address, lazy=True, runtime=runtime, plugins=[plugin])
    call = asyncio.ensure_future(client.service_client.check_health())
    await asyncio.sleep(0.1)
    return call

silent = socket.create_server(("127.0.0.1", 0))
loop = asyncio.new_event_loop()
call = loop.run_until_complete(begin())
sys.setswitchinterval(1000)  # No other thread runs any more.
call.cancel()
loop.call_soon(loop.stop)
loop.run_forever()
end = time.monotonic() + 0.3
while time.monotonic() < end:
    pass
"""


def test_a_process_exits_although_a_call_was_cancelled_at_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", EXIT],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
