"""`PATCH /sessions/{id}/metadata`: who may change what, and who sees it."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from tests.server.support import Lab, agent_with
from whyloop import Session
from whyloop.server import Access
from whyloop.server.inputs import LARGEST_METADATA, MOST_LABELS
from whyloop.stores import Store
from whyloop.testing import call
from whyloop.values.transitions import MetadataSet
from whyloop.wire.journal import decode_entries

PATH = "/sessions/a/metadata"


def as_eve(_: object) -> Access:
    return Access("eve", within={"tenant": "acme"}, may={"send", "manage"})


async def a_session(store: Store, **metadata: object) -> None:
    session = await Session.open(store, agent_with("done"), "a", create=True, metadata=metadata)
    await session.send("go")


async def patch(lab: Lab, entries: object, path: str = PATH, **options: Any) -> Any:
    return await lab.client.call("PATCH", path, send={"metadata": entries}, **options)


async def change_of(store: Store) -> MetadataSet:
    (change,) = decode_entries((await store.read("a")).entries)[-1].transitions
    assert isinstance(change, MetadataSet)
    return change


async def test_entries_are_merged_under_the_name_of_the_client(store: Store) -> None:
    await a_session(store, tenant="acme", old=1)
    lab = Lab(store, access=as_eve)
    answer = await patch(lab, {"ticket": 42, "old": None})
    assert (answer.status, answer.json["session"]["metadata"]) == (200, {"tenant": "acme", "ticket": 42})
    assert answer.headers["etag"] == (await lab.get("/sessions/a")).headers["etag"]
    assert (await change_of(store)).by == "eve"
    listed = await lab.get("/sessions", query={"metadata": json.dumps({"ticket": 42})})
    assert [session["agent_id"] for session in listed.json["sessions"]] == ["a"]


async def test_a_client_of_a_public_server_may_name_itself(store: Store) -> None:
    await a_session(store)
    lab = Lab(store)
    answer = await lab.client.call("PATCH", PATH, send={"metadata": {"ticket": 42}, "by": "ann"})
    assert answer.status == 200
    assert (await change_of(store)).by == "ann"


@pytest.mark.parametrize("value", ["other", "acme", None])
async def test_what_decides_which_sessions_a_client_sees_is_refused(store: Store, value: object) -> None:
    await a_session(store, tenant="acme")
    lab = Lab(store, access=as_eve)
    refused = await patch(lab, {"ticket": 42, "tenant": value})
    assert (refused.status, refused.json["error"]["type"]) == (403, "not_authorized")
    assert "'tenant'" in refused.json["error"]["message"]
    assert (await store.load("a")).metadata == {"tenant": "acme"}


async def test_the_session_of_another_client_is_not_found(store: Store) -> None:
    await a_session(store, tenant="other")
    assert (await patch(Lab(store, access=as_eve), {"ticket": 42})).status == 404
    assert (await patch(Lab(store), {"ticket": 42}, "/sessions/missing/metadata")).status == 404


async def test_it_needs_the_right_to_manage(store: Store) -> None:
    await a_session(store)
    lab = Lab(store, access=lambda _: Access("ann", may={"send", "decide", "inspect"}))
    refused = await patch(lab, {"ticket": 42})
    assert refused.status == 403
    assert "'manage'" in refused.json["error"]["message"]


async def test_a_session_that_runs_is_refused(store: Store) -> None:
    await a_session(store)
    lease = await store.acquire("a", "a runner", 60)
    refused = await patch(Lab(store), {"ticket": 42})
    assert (refused.status, refused.json["error"]["type"]) == (409, "session_running")
    await store.release(lease)
    assert (await patch(Lab(store), {"ticket": 42})).status == 200


async def test_it_is_made_once_at_the_version_that_the_client_knows(store: Store) -> None:
    await a_session(store)
    lab = Lab(store)
    tag = (await lab.get("/sessions/a")).headers["etag"]
    headers = {"if-match": tag, "idempotency-key": "k"}
    first = await patch(lab, {"ticket": 42}, headers=headers)
    await store.set_metadata("a", {"ticket": 43})
    again = await patch(lab, {"ticket": 42}, headers=headers)
    assert (first.status, again.status) == (200, 200)
    assert first.headers["etag"] == again.headers["etag"]
    assert (await store.load("a")).metadata == {"ticket": 43}
    assert (await patch(lab, {"ticket": 44}, headers={"if-match": tag})).status == 412
    assert (await patch(lab, {"ticket": 45}, headers=headers)).status == 422


@pytest.mark.parametrize(
    ("entries", "status"),
    [
        ({"note": "x" * LARGEST_METADATA}, 413),
        ({f"{number}": number for number in range(MOST_LABELS)}, 413),
        ({f"{number}": number for number in range(MOST_LABELS + 1)}, 400),
        (["ticket"], 400),
        (None, 400),
    ],
    ids=["long", "many", "too many at once", "a list", "null"],
)
async def test_metadata_that_lists_cannot_hold_is_refused(store: Store, entries: object, status: int) -> None:
    await a_session(store, user="ann")
    assert (await patch(Lab(store), entries)).status == status
    assert (await store.load("a")).metadata == {"user": "ann"}


async def test_the_live_list_shows_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whyloop.server.live.POLL_SECONDS", 0.01)
    # No session was updated in the future: only its version tells that it changed.
    monkeypatch.setattr("whyloop.server.live.LATE", -timedelta(hours=1))
    await a_session(store)

    async def change() -> None:
        for number in count():
            await store.set_metadata("a", {"ticket": number})
            await asyncio.sleep(0.02)

    changing = asyncio.create_task(change())
    await Lab(store).get("/live", query={"list": "true"}, until=b'"metadata":{"ticket":')
    changing.cancel()


async def test_a_paused_run_continues_with_it(store: Store) -> None:
    agent = agent_with(call("pay", {"amount": 5}), "paid")
    session = await Session.open(store, agent, "a", create=True)
    (question,) = (await session.send("pay")).pending_calls
    answer = await patch(Lab(store), {"ticket": 42})
    assert answer.json["session"]["status"] == "paused"
    await session.approve(question.id)
    assert (await session.resume()).metadata == {"ticket": 42}
