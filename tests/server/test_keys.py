"""Requests that are sent again under their `Idempotency-Key` are carried out once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.gate import Gate
from tests.server.support import Answer, Beside, Json, Lab, agent_with, path_of
from whyloop import Agent, AgentState, Session, tool
from whyloop.errors import KeyUsedError
from whyloop.server import Access, requests
from whyloop.server.bodies import RIGHTS
from whyloop.stores import MemoryStore, SqliteStore, Store
from whyloop.stores.records import RequestKey
from whyloop.testing import call


def under(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


def same(first: Answer, again: Answer) -> bool:
    tags = [answer.headers.get("etag") for answer in (first, again)]
    return (first.status, first.body) == (again.status, again.body) and tags[0] == tags[1]


async def stored(store: Store, agent_id: str = "a") -> tuple[str, ...]:
    return (await store.read(agent_id)).entries


async def prepared(store: Store, status: str) -> Lab:
    """A server with a session "a", whose call waits for a person, or which stopped at a limit."""
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "done", "again", "and again", max_steps=1))
    await lab.made()
    if status != "new":
        await lab.post("/sessions/a/messages", {"text": "go"})
        await lab.rest()
    return lab


async def body_for(lab: Lab, operation: str) -> Json:
    if operation in ("approve", "deny"):
        return {"question_id": (await lab.get("/sessions/a")).json["pending_calls"][0]["id"]}
    return {"text": "Who are you?"} if operation == "messages" else {}


OPERATIONS = [
    ("new", "messages"),
    ("paused", "approve"),
    ("paused", "deny"),
    ("paused", "stop"),
    ("paused", "resume"),
    ("paused", "fork"),
]


@pytest.mark.parametrize(("status", "operation"), OPERATIONS)
async def test_a_repeated_request_gets_the_first_answer_again(
    store: Store, status: str, operation: str
) -> None:
    lab = await prepared(store, status)
    body = await body_for(lab, operation)
    path = f"/sessions/a/{operation}"
    first = await lab.post(path, body, headers=under("k1"))
    assert first.status in (200, 201, 202), first
    await lab.rest()
    once, count = await stored(store), len((await store.sessions()).sessions)
    assert same(first, await lab.post(path, body, headers=under("k1")))
    # The session changes, and the first answer stays what it was.
    if operation in ("approve", "deny"):
        await lab.post("/sessions/a/resume")
        await lab.rest()
    await lab.post("/sessions/a/messages", {"text": "and then?"})
    await lab.rest()
    assert same(first, await lab.post(path, body, headers=under("k1")))
    assert (await stored(store))[: len(once)] == once
    assert len((await store.sessions()).sessions) == count


@pytest.mark.parametrize("agent_id", ["mine", None])
async def test_a_session_is_created_once(store: Store, agent_id: str | None) -> None:
    lab = Lab(store, agent_with("hi"))
    body = {"agent_id": agent_id, "metadata": {"user": "ann"}}
    first = await lab.post("/sessions", body, headers=under("k1"))
    path = path_of(first.json["session"]["agent_id"])
    await lab.post(f"{path}/messages", {"text": "What is it?"})
    await lab.rest()
    assert same(first, await lab.post("/sessions", body, headers=under("k1")))
    assert len((await store.sessions()).sessions) == 1
    other = await lab.post("/sessions", {"agent_id": agent_id}, headers=under("k1"))
    assert (other.status, other.error) == (422, "key_reused")
    more = await lab.post("/sessions", {**body, "agent_id": None}, headers=under("k2"))
    assert more.json["session"]["agent_id"] != first.json["session"]["agent_id"]


async def test_the_key_of_one_client_does_not_find_the_session_of_another(store: Store) -> None:
    lab = Lab(store, agent_with(), access=lambda each: Access("x", {"user": each.headers["x-user"]}, RIGHTS))
    made = [
        await lab.post("/sessions", {}, headers={**under("k1"), "x-user": user}) for user in ("ann", "bob")
    ]
    assert [answer.json["session"]["metadata"]["user"] for answer in made] == ["ann", "bob"]
    taken = {"agent_id": made[0].json["session"]["agent_id"]}
    refused = await lab.post("/sessions", taken, headers={**under("k1"), "x-user": "bob"})
    assert refused.status == 422


@pytest.mark.parametrize(("status", "operation"), OPERATIONS)
async def test_a_key_is_for_one_request_only(store: Store, status: str, operation: str) -> None:
    lab = await prepared(store, status)
    body = await body_for(lab, operation)
    assert (await lab.post(f"/sessions/a/{operation}", body, headers=under("k1"))).status < 300
    await lab.rest()
    before = await stored(store)
    others: list[tuple[str, Json]] = [
        ("messages", {"text": "another question"}),
        ("stop", {"reason": "another reason"}),
    ]
    if operation == "fork":  # Its key belongs to the new session.
        others = [("fork", {"step": 1})]
    for path, other in others:
        refused = await lab.post(f"/sessions/a/{path}", other, headers=under("k1"))
        assert (refused.status, refused.error) == (422, "key_reused")
    assert await stored(store) == before


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_of_another_length_is_refused(lab: Lab, key: str) -> None:
    before = await stored(lab.store)
    for path in ("/sessions", "/sessions/a/stop", "/sessions/a/resume"):
        refused = await lab.post(path, {}, headers=under(key))
        assert (refused.status, refused.error) == (400, "bad_request")
        assert "1 to 255 characters" in refused.message
    assert await stored(lab.store) == before


async def test_a_key_may_be_as_long_as_255_characters(lab: Lab) -> None:
    assert (await lab.post("/sessions/a/stop", {}, headers=under("é" * 255))).status == 200


async def test_the_key_is_in_the_transition_that_it_caused(store: Store) -> None:
    lab = await prepared(store, "new")
    body = {"text": "Who are you?"}
    await lab.post("/sessions/a/messages", body, headers=under("a-key-of-mine"))
    await lab.rest()
    assert sum('"key":"a-key-of-mine"' in entry for entry in await stored(store)) == 1
    fork = await lab.post("/sessions/a/fork", {"agent_id": "b"}, headers=under("another-key"))
    assert fork.status == 201
    *copied, forked = (await store.read("b")).entries
    assert '"key":"another-key"' in forked
    assert copied == list(await stored(store))
    await store.add(AgentState(agent_id="c"), key=RequestKey("a-third-key", "digest"))
    assert '"key":"a-third-key"' in (await store.read("c")).entries[0]


async def test_a_repeated_stop_does_not_stop_the_next_run(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "one"})
    await gate.asked.wait()
    first = await lab.post(f"{path}/stop", {"reason": "enough"}, headers=under("k1"))
    await lab.rest()
    assert (first.json, (await store.load("a")).stop_reason) == ({"stopped": True}, "user_requested")
    gate.open.set()
    await lab.post(f"{path}/messages", {"text": "two"})
    again = await lab.post(f"{path}/stop", {"reason": "enough"}, headers=under("k1"))
    other = await lab.post(f"{path}/stop", {"reason": "another"}, headers=under("k1"))
    await lab.rest()
    assert same(first, again)
    assert (other.status, other.error) == (422, "key_reused")
    assert (await store.load("a")).status == "completed"


# At the same time


@pytest.fixture
def two(store: Store, tmp_path: Path) -> tuple[Store, Store]:
    """The same sessions as two processes have them."""
    if isinstance(store, MemoryStore):
        return store, MemoryStore(beside=store)
    return store, SqliteStore(tmp_path / "whyloop.db")


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("status", "operation"), OPERATIONS)
async def test_requests_with_one_key_at_the_same_time_are_carried_out_once(
    two: tuple[Store, Store], servers: int, status: str, operation: str
) -> None:
    lab, beside = await prepared(two[0], status), Beside()
    labs = [Lab(each, lab.server._api._choose_agent, also=[beside]) for each in two[:servers]]
    body = await body_for(lab, operation)
    sent = [
        labs[number % servers].post(f"/sessions/a/{operation}", body, headers=under("k1"))
        for number in range(8)
    ]
    answers = await asyncio.gather(*sent)
    assert all(same(answers[0], answer) for answer in answers), answers
    for each in labs:
        await each.rest()
    assert sum('"key":"k1"' in entry for entry in await stored(two[0])) == (operation != "fork")
    began = [each for each in beside.numbered if each["data"].get("status") == "in_progress"]
    assert len(began) == (operation in ("messages", "resume"))
    await two[1].close()


async def test_a_request_waits_for_the_first_one_of_its_key_in_another_process(
    two: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process has the lease, and its first entry is on its way."""
    gate = Gate()
    lab, beginning, go_on = Lab(two[0], gate.agent), asyncio.Event(), asyncio.Event()
    path, append = await lab.made(), type(two[1]).append

    async def slowly(self: Any, *arguments: Any, **options: Any) -> Any:
        if self is two[1]:
            beginning.set()
            await go_on.wait()
        return await append(self, *arguments, **options)

    monkeypatch.setattr(type(two[1]), "append", slowly)
    other = Lab(two[1], gate.agent)
    first = asyncio.create_task(other.post(f"{path}/messages", {"text": "go"}, headers=under("k1")))
    await beginning.wait()
    monkeypatch.setattr(requests, "MOMENTS", 500)
    again = asyncio.create_task(lab.post(f"{path}/messages", {"text": "go"}, headers=under("k1")))
    await asyncio.sleep(0)
    go_on.set()
    assert same(await first, await again)
    gate.open.set()
    await other.rest()
    assert len((await two[0].load("a")).messages) == 2
    await two[1].close()


async def test_a_session_that_another_request_runs_is_refused_under_a_key_too(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "go"}, headers=under("k1"))
    refused = await lab.post(f"{path}/messages", {"text": "go"}, headers=under("k2"))
    assert (refused.status, refused.error) == (409, "session_running")
    gate.open.set()
    await lab.rest()
    again = await lab.post(f"{path}/messages", {"text": "go"}, headers=under("k2"))
    assert again.status == 202
    await lab.rest()


# After a crash


class Shop:
    """An agent that pays after a person agrees, and counts what it paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def agent(self, *replies: Any) -> Agent:
        @tool(needs_approval=True)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        return agent_with(*replies, tools=[pay])


async def test_a_client_that_retries_its_approve_after_a_crash_pays_once(two: tuple[Store, Store]) -> None:
    shop = Shop()
    agent = shop.agent(call("pay", {"amount": 250}), "paid")
    lab = Lab(two[1], agent)
    path = await lab.asked()
    body = {"question_id": (await lab.get(path)).json["pending_calls"][0]["id"]}
    first = await lab.post(f"{path}/approve", body, headers=under("pay-1"))
    resumed = await lab.post(f"{path}/resume", {}, headers=under("go-1"))
    await lab.rest()
    await two[1].close()  # The process is gone, and the client did not get its answers.
    lab = Lab(two[0], agent)
    assert same(first, await lab.post(f"{path}/approve", body, headers=under("pay-1")))
    assert same(resumed, await lab.post(f"{path}/resume", {}, headers=under("go-1")))
    await lab.rest()
    assert (await lab.post(f"{path}/approve", body)).status == 200
    assert shop.paid == [250]
    assert (await lab.get(path)).json["session"]["status"] == "completed"


async def test_a_key_survives_in_the_store_and_goes_with_its_session(store: Store) -> None:
    session = await Session.open(store, agent_with("hi"), "a", create=True)
    await session.send("go", key=RequestKey("k", "d"))
    with pytest.raises(KeyUsedError):
        await session.send("go", key=RequestKey("k", "other"))
    lab = Lab(store, agent_with("hello"))
    assert (await lab.post("/sessions/a/messages", {"text": "go"}, headers=under("k"))).status == 422
    await lab.delete("/sessions/a")
    await lab.made()
    assert (await lab.post("/sessions/a/messages", {"text": "go"}, headers=under("k"))).status == 202
    await lab.rest()
