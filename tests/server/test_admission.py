"""Admission: the client, the host and the limits are checked before anything else happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from starlette.types import Message

from tests.server.gate import Gate
from tests.server.support import Lab, agent_with, reverb
from whyloop.errors import ConfigurationError
from whyloop.server import Access, Limits
from whyloop.server.operations import OPERATIONS, Operation
from whyloop.stores import MemoryStore, Store

TABLE = [*OPERATIONS, Operation("openapi", "GET /openapi.json", "Return the document.", None, right=None)]


def user(connection: HTTPConnection) -> Access | None:
    name = connection.headers.get("x-user")
    return None if name is None else Access(name, {"user": name})


def filled(operation: Operation) -> str:
    return operation.path.replace("{agent_id}", "a").replace("{index}", "1")


async def with_a_session(**options: Any) -> Lab:
    """A server with every route that there is, and a session "a"."""
    store = MemoryStore()
    await Lab(store, agent_with()).made()
    return Lab(store, agent_with(), also=[reverb()], **options)


async def never_read() -> Message:
    raise AssertionError("the body of a request was read")


async def status_of(lab: Lab, method: str, path: str, server: object = "", **headers: str) -> int:
    """Ask, and fail if the body is read."""
    scope = {**lab.client.scope(path, "", headers), "type": "http", "method": method}
    if server != "":
        scope["server"] = server
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await lab.server(scope, never_read, send)
    status: int = sent[0]["status"]
    return status


# Who it is


@pytest.mark.parametrize(
    "operation", [each for each in TABLE if not each.is_public], ids=lambda each: each.name
)
async def test_a_stranger_gets_a_401_on_every_route_and_nothing_is_read(operation: Operation) -> None:
    lab = await with_a_session(access=user)
    before = await lab.store.read("a")
    assert await status_of(lab, operation.method, filled(operation)) == 401
    assert await status_of(lab, operation.method, filled(operation), accept="text/event-stream") == 401
    _, closed = await lab.client.socket(filled(operation))
    assert (closed["type"], closed["code"]) == ("websocket.close", 4401)
    assert await lab.store.read("a") == before


@pytest.mark.parametrize(
    "path", ["/", "/nothing", "/sessions/a/nothing", "/docs", "//sessions", "/sessions/"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "x"])
async def test_a_stranger_does_not_learn_which_routes_there_are(method: str, path: str) -> None:
    assert await status_of(await with_a_session(access=user), method, path) == 401


async def test_a_client_that_may_only_read_may_follow(store: Store) -> None:
    await Lab(store, agent_with("hi")).asked()
    lab = Lab(store, access=lambda _: Access("ann", may=()))
    heard = await lab.client.socket("/sessions/a/events")
    assert heard[1]["type"] == "websocket.send"
    await lab.server.close()


async def test_a_401_says_how_to_identify() -> None:
    answer = await Lab(MemoryStore(), access=user).get("/sessions")
    assert (answer.status, answer.error) == (401, "not_authenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


# Names of the server


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("testserver", 200),
        ("TESTSERVER:80", 200),
        ("localhost", 200),
        ("127.0.0.1:80", 200),
        ("[::1]", 200),
        ("app.example.com:443", 200),
        ("app.example.com", 421),
        ("localhost:8000", 421),
        ("testserver:443", 421),
        ("evil.example", 421),
        ("testserver.evil.example", 421),
        ("testserver@evil.example", 421),
        ("testserver/", 421),
        ("[", 421),
        ("localhost:x", 421),
        ("", 421),
    ],
)
async def test_a_name_that_another_site_gave_to_this_server_is_refused(host: str, status: int) -> None:
    store = MemoryStore()
    await Lab(store, agent_with("hi")).asked()
    lab = Lab(store, agent_with(), origins=["https://app.example.com"])
    assert await status_of(lab, "GET", "/sessions", host=host) == status
    heard = await lab.client.socket("/sessions/a/events", headers={"host": host})
    assert heard[1]["type"] == ("websocket.send" if status == 200 else "websocket.close")
    # A page of that name is then the same site to a browser.
    assert await status_of(lab, "GET", "/sessions", host=host, origin=f"http://{host}") == status
    await lab.server.close()


@pytest.mark.parametrize("server", [None, ("/run/app.sock", None)])
@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("evil.example", 421)])
async def test_a_server_without_a_port_answers_to_this_machine_only(
    server: object, host: str, status: int
) -> None:
    assert await status_of(Lab(MemoryStore()), "GET", "/sessions", server, host=host) == status


# How much


async def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    lab = Lab(MemoryStore(), agent_with(), limits=Limits(body_seconds=0.01))
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(10):
        await lab.server(
            {**lab.client.scope("/sessions", "", {}), "type": "http", "method": "POST"}, receive, send
        )
    assert sent[0]["status"] == 408


async def held_open(lab: Lab, path: str) -> tuple[asyncio.Future[None], asyncio.Event]:
    """A stream that has begun, and the event that ends it."""
    begun, gone = asyncio.Event(), asyncio.Event()
    scope = {**lab.client.scope(path, "", {"accept": "text/event-stream"}), "type": "http", "method": "GET"}

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        begun.set()

    task = asyncio.ensure_future(lab.server(scope, receive, send))
    await begun.wait()
    return task, gone


@pytest.mark.parametrize(
    ("limits", "others"),
    [({"max_streams": 2}, 200), ({"limits": Limits(requests=2)}, 503)],
    ids=["streams", "requests"],
)
async def test_one_more_than_the_limit_is_turned_away_until_another_has_ended(
    store: Store, limits: dict[str, Any], others: int
) -> None:
    await Lab(store, agent_with("hi")).asked()
    lab = Lab(store, **limits)
    first, gone = await held_open(lab, "/sessions/a/events")
    second, gone_too = await held_open(lab, "/sessions/a/events")
    refused = await lab.get("/sessions/a/events", headers={"accept": "text/event-stream"})
    assert (refused.status, refused.error, refused.headers["retry-after"]) == (503, "busy", "5")
    # It is refused before it is accepted.
    denied, _ = await lab.client.socket("/sessions/a/events", denies=True)
    assert (denied["type"], denied["status"]) == ("websocket.http.response.start", 503)
    assert (b"retry-after", b"5") in denied["headers"]
    assert [each["type"] for each in await lab.client.socket("/sessions/a/events")] == ["websocket.close"]
    assert (await lab.get("/sessions")).status == others
    gone.set()
    await first
    heard = await lab.client.socket("/sessions/a/events")
    assert heard[1]["type"] == "websocket.send"
    gone_too.set()
    await second
    await lab.server.close()


@pytest.mark.parametrize("options", [{"requests": 0}, {"body_seconds": 0}])
def test_a_limit_of_zero_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="invalid limits"):
        Limits(**options)


@pytest.mark.parametrize("options", [{"max_streams": 0}, {"max_runs": -1}])
def test_no_streams_or_no_runs_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="use numbers greater than zero"):
        Lab(MemoryStore(), **options)


async def test_one_run_more_than_the_limit_is_refused_until_another_has_ended(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent, max_runs=2)
    paths = [await lab.made(name) for name in ("a", "b", "c")]
    for path in paths[:2]:
        assert (await lab.post(f"{path}/messages", {"text": "go"})).status == 202
    before = await store.read("c")
    refused = await lab.post(f"{paths[2]}/messages", {"text": "go"})
    assert (refused.status, refused.error, refused.headers["retry-after"]) == (503, "busy", "5")
    assert await store.read("c") == before
    gate.open.set()
    await lab.rest()
    assert (await lab.post(f"{paths[2]}/messages", {"text": "go"})).status == 202
    await lab.rest()
