"""Access: which clients may see which sessions, and from which pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from tests.server.support import EVERY, Client, Lab, agent_with
from whyloop.server import Access
from whyloop.server.bodies import RIGHTS
from whyloop.stores import Entry, MemoryStore, Store
from whyloop.stores.records import Stored
from whyloop.testing import Reply, call
from whyloop.wire.journal import Checkpoint

ANN, BOB = {"x-user": "ann"}, {"x-user": "bob"}


def user(connection: HTTPConnection) -> Access | None:
    name = connection.headers.get("x-user")
    return None if name is None else Access(name, {"user": name}, RIGHTS)


async def later(connection: HTTPConnection) -> Access | None:
    return user(connection)


def nobody(connection: HTTPConnection) -> Access | None:
    raise HTTPException(401, "Say who you are.", {"www-authenticate": 'Bearer realm="agents"'})


async def shared(store: Store, access: Any = user) -> Lab:
    """A session "a" of Ann, in which a tool call waits, and a session "b" of Bob."""
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "done", "again"), access=access)
    assert (await lab.post("/sessions", {"agent_id": "a"}, headers=ANN)).status == 201
    assert (await lab.post("/sessions", {"agent_id": "b"}, headers=BOB)).status == 201
    await lab.post("/sessions/a/messages", {"text": "go"}, headers=ANN)
    await lab.rest()
    return lab


@pytest.mark.parametrize("access", [user, later])
async def test_a_client_sees_its_own_sessions_only(store: Store, access: Any) -> None:
    lab = await shared(store, access)
    for headers, own in ((ANN, "a"), (BOB, "b"), ({"x-user": "eve"}, None)):
        listed = (await lab.get("/sessions", headers=headers)).json["sessions"]
        assert [each["agent_id"] for each in listed] == ([own] if own else [])
        for agent_id in ("a", "b"):
            answer = await lab.get(f"/sessions/{agent_id}", headers=headers)
            assert answer.status == (200 if agent_id == own else 404)


async def test_a_client_cannot_look_for_sessions_of_others(store: Store) -> None:
    lab = await shared(store)
    for metadata, found in (('{"user": "ann"}', []), ('{"user": "bob"}', ["b"]), ('{"user": null}', [])):
        page = (await lab.get("/sessions", query={"metadata": metadata}, headers=BOB)).json
        assert [each["agent_id"] for each in page["sessions"]] == found
        assert page["next"] is None


@pytest.mark.parametrize(("method", "path", "sent"), EVERY[2:])
async def test_a_session_of_others_is_as_if_it_were_not_there(
    store: Store, method: str, path: str, sent: Any
) -> None:
    lab = await shared(store)
    before = await store.read("a")
    answer = await lab.client.call(method, path, send=sent, headers=BOB)
    missing = await lab.client.call(method, path.replace("s/a", "s/c"), send=sent, headers=BOB)
    assert answer.status == missing.status == 404
    assert answer.body.replace(b"'a'", b"'c'") == missing.body
    assert answer.headers == missing.headers
    assert await store.read("a") == before


async def test_a_broken_session_of_others_is_as_if_it_were_not_there(store: Store) -> None:
    lab = await shared(store)
    await store.append("a", [Entry("not even JSON")], after=(await store.read("a")).summary.version)
    for part in ("", "/messages", "/trace"):
        assert (await lab.get(f"/sessions/a{part}", headers=BOB)).status == 404


@pytest.mark.parametrize("agent_id", ["a", "c"])
async def test_streams_of_others_are_as_if_they_were_not_there(store: Store, agent_id: str) -> None:
    lab = await shared(store)
    path = f"/sessions/{agent_id}/events"
    answer = await lab.get(path, headers={**BOB, "accept": "text/event-stream"})
    assert (answer.status, answer.error) == (404, "session_not_found")
    accepted, closed = await lab.client.socket(path, headers=BOB)
    assert accepted["type"] == "websocket.accept"
    assert (closed["type"], closed["code"]) == ("websocket.close", 4404)
    assert closed["reason"] == f"session {agent_id!r} not found in this store"


async def test_a_client_that_may_see_a_session_may_follow_it(store: Store) -> None:
    lab = await shared(store)
    heard = await lab.get(
        "/sessions/a/events", headers={**ANN, "accept": "text/event-stream"}, until=b'"paused"'
    )
    assert (heard.status, heard.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    said = await lab.client.socket("/sessions/a/events", headers=ANN)
    assert [each["type"] for each in said][:2] == ["websocket.accept", "websocket.send"]
    await lab.server.close()


async def test_a_new_session_gets_the_metadata_of_its_client(store: Store) -> None:
    lab = Lab(store, agent_with(), access=user)
    sent = {"agent_id": "a", "metadata": {"user": "bob", "colour": "red"}}
    made = await lab.post("/sessions", sent, headers=ANN)
    assert made.json["session"]["metadata"] == {"user": "ann", "colour": "red"}
    assert (await lab.get("/sessions/a", headers=BOB)).status == 404


async def test_of_several_things_all_are_to_be_equal(store: Store) -> None:
    def access(connection: HTTPConnection) -> Access:
        name = connection.headers["x-user"]
        return Access(name, {"user": name, "tenant": 1})

    await Lab(store, agent_with()).made("theirs", user="ann", tenant=2)
    await Lab(store, agent_with()).made("text", user="ann", tenant="1")
    await Lab(store, agent_with()).made("truth", user="ann", tenant=True)
    await Lab(store, agent_with()).made("nobodys", user="ann")
    lab = Lab(store, agent_with(), access=access)
    assert (await lab.post("/sessions", {"agent_id": "own"}, headers=ANN)).status == 201
    listed = (await lab.get("/sessions", headers=ANN)).json["sessions"]
    assert [each["agent_id"] for each in listed] == ["own"]
    for agent_id in ("theirs", "text", "truth", "nobodys"):
        assert (await lab.get(f"/sessions/{agent_id}", headers=ANN)).status == 404


@pytest.mark.parametrize(("method", "path", "sent"), EVERY)
async def test_an_unknown_client_gets_a_401(method: str, path: str, sent: Any) -> None:
    store = MemoryStore()
    await Lab(store, agent_with()).made()
    lab = Lab(store, agent_with(), access=nobody)
    for agent_id in ("a", "b"):
        answer = await lab.client.call(method, path.replace("s/a", f"s/{agent_id}"), send=sent)
        assert (answer.status, answer.message) == (401, "Say who you are.")
        assert answer.headers["www-authenticate"] == 'Bearer realm="agents"'
    assert len((await store.sessions()).sessions) == 1


async def test_an_unknown_client_receives_nothing() -> None:
    store = MemoryStore()
    await Lab(store, agent_with("hi")).asked()
    lab = Lab(store, access=nobody)
    answer = await lab.get("/sessions/a/events", headers={"accept": "text/event-stream"})
    assert answer.status == 401
    _, closed = await lab.client.socket("/sessions/a/events")
    assert (closed["code"], closed["reason"]) == (4401, "Say who you are.")


# Pages


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://testserver", "testserver", True),
        ("https://testserver", "testserver", False),
        ("http://TestServer", "testSERVER", True),
        ("http://localhost", "localhost", True),
        ("http://localhost:8000", "localhost", False),
        ("https://app.example.com", "testserver", True),
        ("http://localhost:8001", "localhost:8000", False),
        ("http://testserver:8000", "testserver", False),
        ("https://evil.example", "testserver", False),
        ("https://app.example.com.evil.example", "testserver", False),
        ("https://app.example.co", "testserver", False),
        ("http://testserver.evil.example", "testserver", False),
        ("http://testserver@evil.example", "testserver", False),
        ("null", "testserver", False),
        ("null", "", False),
        ("", "", False),
        ("testserver", "testserver", False),
        ("http://[", "testserver", False),
        ("\xff\x00" * 500, "testserver", False),
    ],
)
async def test_only_pages_of_known_sites_act(
    origin: str, host: str, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    lab = Lab(store, agent_with("hi"), origins=["https://app.example.com"])
    await lab.asked()
    headers = {"origin": origin, "host": host}
    answer = await lab.post("/sessions", headers=headers)
    assert answer.status == (201 if allowed else 403)
    heard = await lab.client.socket("/sessions/a/events", headers=headers)
    assert heard[1]["type"] == ("websocket.send" if allowed else "websocket.close")
    if not allowed:
        assert (answer.error, heard[1]["code"]) == ("origin", 4403)
        assert len((await store.sessions()).sessions) == 1
    assert not caplog.records
    await lab.server.close()


@pytest.mark.parametrize("origins", [["*"], {"https://evil.example"}])
async def test_pages_of_other_sites_act_if_they_are_named(origins: Any) -> None:
    lab = Lab(MemoryStore(), agent_with(), origins=origins)
    client = Client(lab.server, headers={"origin": "https://evil.example"})
    assert (await client.post("/sessions", {"agent_id": "a"})).status == 201
    assert (await client.post("/sessions/a/stop")).status == 200
    assert (await client.get("/sessions")).status == 200


async def test_every_operation_that_does_something_is_refused_to_pages_of_other_sites(lab: Lab) -> None:
    before = await lab.store.read("a")
    for method, path, sent in EVERY:
        answer = await lab.client.call(method, path, send=sent, headers={"origin": "https://evil.example"})
        assert answer.status == (200 if method == "GET" else 403)
    assert await lab.store.read("a") == before


class Replacing(MemoryStore):
    """A store in which another client's session takes the place of one, after so many readings."""

    def __init__(self, others: Sequence[str]) -> None:
        super().__init__()
        self._others = others
        self.left: int | None = None

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Stored:
        found = await super().read(agent_id, after=after, limit=limit)
        await self._count(agent_id)
        return found

    async def checkpoint(self, agent_id: str, **wanted: Any) -> tuple[int, Checkpoint] | None:
        found = await super().checkpoint(agent_id, **wanted)
        await self._count(agent_id)
        return found

    async def _count(self, agent_id: str) -> None:
        if self.left is not None:
            self.left -= 1
            if not self.left:
                await self.delete(agent_id)
                await self.import_lines(self._others)


async def lines_of(user: str) -> list[str]:
    """Return a session "a" of a user that waits for an answer, as an exported file."""
    said: list[Reply | str] = [call("echo", {"value": user}), f"said by {user}"]
    replies = [*said, *said, call("pay", {"amount": 1})]
    lab = Lab(MemoryStore(), agent_with(*replies))
    path = await lab.asked("a", f"asked by {user}", user=user)
    for _ in range(2):
        assert (await lab.post(f"{path}/messages", {"text": f"asked by {user} again"})).status == 202
        await lab.rest()
    return [line async for line in lab.store.export()]


STREAM = {"accept": "text/event-stream"}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/sessions/a", {}),
        ("/sessions/a/messages", {}),
        ("/sessions/a/messages?after=1&limit=1", {}),
        ("/sessions/a/trace", {}),
        ("/sessions/a/trace?limit=1", {}),
        ("/sessions/a/executions", {}),
        ("/sessions/a/steps/2", {}),
        ("/sessions/a/snapshot", {}),
        ("/sessions/a/saved.html", {}),
        ("/sessions/a/what-if?max_steps=1", {}),
        ("/sessions/a/events", {}),
        ("/sessions/a/events?after=1", {}),
        ("/sessions/a/events?after=latest", {}),
        ("/sessions/a/events", STREAM),
        ("/sessions/a/events?after=1", STREAM),
        ("/live?session=a", STREAM),
        ("/live?session=a&after=1", STREAM),
        ("/questions", {}),
        ("/vercel/a/messages", {}),
        ("/vercel/a/stream", {}),
    ],
)
async def test_a_session_that_gets_the_id_of_a_deleted_one_is_never_shown_to_its_reader(
    path: str, headers: dict[str, str]
) -> None:
    own, others = await lines_of("ann"), await lines_of("ben")
    path, _, query = path.partition("?")
    statuses = []
    for number in range(1, 100):
        store = Replacing(others)
        await store.import_lines(own)
        lab = Lab(store, agent_with(), access=lambda _: Access("ann", {"user": "ann"}, RIGHTS))
        store.left = number
        until = (b'"paused"', b"event: ended") if headers else None
        found = await lab.client.call("GET", path, query=query, headers=headers, until=until)
        assert b"ben" not in found.body, (number, found)
        statuses.append(found.status)
        if store.left > 0:
            break
        await lab.server.close()
    assert statuses[0] == (404 if path.startswith("/sessions") and not headers else statuses[0])
    assert statuses[-1] in (200, 204), "a session that stays is shown"


# Tokens of pages


@pytest.mark.parametrize(
    ("offered", "is_known"),
    [
        (["whyloop", "bearer.b2YgYSBwYWdlPz4"], True),
        (["whyloop", "bearer.b3RoZXI"], False),
        (["whyloop", "bearer.%%%"], False),
        (["whyloop"], False),
        ([], False),
    ],
)
async def test_the_token_of_a_page_comes_as_a_protocol_of_its_web_socket(
    offered: list[str], is_known: bool
) -> None:
    def access(connection: HTTPConnection) -> Access | None:
        return Access("") if connection.headers.get("authorization") == "Bearer of a page?>" else None

    lab = Lab(MemoryStore(), agent_with("hi"), access=access)
    accepted, heard, *_ = await lab.client.socket("/live", query="list=true", offer=offered)
    assert accepted["subprotocol"] == ("whyloop" if offered else None)
    assert (heard["type"], heard.get("code")) == (
        ("websocket.send", None) if is_known else ("websocket.close", 4401)
    )
