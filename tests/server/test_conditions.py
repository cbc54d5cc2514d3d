"""The version of a session is its entity tag; changes may be asked for at one version only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from tests.server.gate import Gate
from tests.server.support import Beside, Json, Lab, agent_with, path_of
from whyloop.server.requests import ANY_VERSION, precondition_of
from whyloop.stores import Store, Summary, store as store_module
from whyloop.stores.reading import read_session
from whyloop.testing import call, calls


async def waiting(store: Store) -> tuple[Lab, str, Json]:
    """A server with a session in which two calls wait for a person; its path, and how it is shown."""
    lab = Lab(store, agent_with(calls(call("pay", {"amount": 1}), call("pay", {"amount": 2})), "done"))
    path = await lab.asked()
    answer = await lab.get(path)
    return lab, path, {**answer.json, "etag": answer.headers["etag"]}


def if_match(tag: str) -> dict[str, str]:
    return {"if-match": tag}


async def test_the_tag_names_the_identity_and_the_version(store: Store) -> None:
    lab, path, shown = await waiting(store)
    state = await store.load("a")
    assert shown["etag"] == f'"{state.identity}-{shown["session"]["version"]}"'
    assert shown["session"]["version"] == len((await store.read("a")).entries)
    assert (await lab.client.call("HEAD", path)).headers["etag"] == shown["etag"]


async def test_every_change_has_another_tag_and_every_answer_its_own(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "done"))
    made = await lab.post("/sessions", {"agent_id": "a"})
    tags = [made.headers["etag"], (await lab.post("/sessions/a/messages", {"text": "go"})).headers["etag"]]
    await lab.rest()
    shown = await lab.get("/sessions/a")
    tags.append(shown.headers["etag"])
    question = {"question_id": shown.json["pending_calls"][0]["id"]}
    tags.append((await lab.post("/sessions/a/approve", question)).headers["etag"])
    assert (await lab.get("/sessions/a")).headers["etag"] == tags[-1]
    tags.append((await lab.post("/sessions/a/stop")).headers["etag"])
    assert (await lab.get("/sessions/a")).headers["etag"] == tags[-1]
    assert len(set(tags)) == len(tags)
    assert (await lab.get("/sessions")).headers.get("etag") is None


async def test_a_session_that_is_created_again_has_another_tag(store: Store) -> None:
    lab = Lab(store, agent_with())
    first = (await lab.post("/sessions", {"agent_id": "a"})).headers["etag"]
    assert (await lab.delete("/sessions/a")).status == 204
    again = (await lab.post("/sessions", {"agent_id": "a"})).headers["etag"]
    assert first != again
    assert (await lab.delete("/sessions/a", headers=if_match(first))).status == 412
    assert (await lab.delete("/sessions/a", headers=if_match(again))).status == 204


CHANGES: list[tuple[str, Callable[[Json], Json | None]]] = [
    ("approve", lambda shown: {"question_id": shown["pending_calls"][0]["id"]}),
    ("deny", lambda shown: {"question_id": shown["pending_calls"][0]["id"]}),
    ("resume", lambda shown: {}),
    ("fork", lambda shown: {}),
    ("delete", lambda shown: None),
]


async def change(lab: Lab, path: str, operation: str, body: Json | None, tag: str) -> Any:
    if operation == "delete":
        return await lab.delete(path, headers=if_match(tag))
    return await lab.post(f"{path}/{operation}", body, headers=if_match(tag))


@pytest.mark.parametrize(("operation", "body"), CHANGES)
async def test_a_change_at_another_version_is_refused(
    store: Store, operation: str, body: Callable[[Json], Json | None]
) -> None:
    lab, path, shown = await waiting(store)
    await lab.post(f"{path}/deny", {"question_id": shown["pending_calls"][1]["id"]})
    before = await store.read("a")
    refused = await change(lab, path, operation, body(shown), shown["etag"])
    assert (refused.status, refused.error) == (412, "precondition_failed")
    current = (await lab.get(path)).headers["etag"]
    assert current in refused.message
    assert await store.read("a") == before
    assert len((await store.sessions()).sessions) == 1
    done = await change(lab, path, operation, body(shown), current)
    assert done.status in (200, 201, 202, 204)
    await lab.rest()


@pytest.mark.parametrize("operation", ["fork", "delete"])
async def test_a_change_that_comes_between_the_check_and_the_work_is_seen(
    store: Store, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, path, shown = await waiting(store)
    question, work = shown["pending_calls"][0]["id"], getattr(type(store), operation)

    async def late(store: Store, *given: Any, **named: Any) -> object:
        await store.deny("a", question)
        return await work(store, *given, **named)

    monkeypatch.setattr(type(store), operation, late)
    refused = await change(lab, path, operation, {}, shown["etag"])
    assert (refused.status, refused.error) == (412, "precondition_failed")
    assert (await lab.get(path)).headers["etag"] in refused.message
    assert len((await store.sessions()).sessions) == 1


@pytest.mark.parametrize("tag", ["*", '"x-1", {}', '{},"x-1"', '"a,b", {} ,'])
async def test_one_of_several_tags_is_enough(store: Store, tag: str) -> None:
    lab, path, shown = await waiting(store)
    body = {"question_id": shown["pending_calls"][0]["id"]}
    done = await lab.post(f"{path}/approve", body, headers=if_match(tag.format(shown["etag"])))
    assert done.status == 200


class Editing:
    """An engine that edits calls in the store."""

    agent = "assistant"

    def __init__(self, store: Store) -> None:
        self.store = store

    async def edit(
        self, summary: Summary, question_id: str, arguments: Mapping[str, Any], by: str, key: object
    ) -> None:
        await self.store.edit(summary.agent_id, question_id, arguments, by=by)


async def test_an_engine_gets_a_repeated_edit_at_any_version(store: Store) -> None:
    _, path, shown = await waiting(store)
    lab, body = Lab(store, engine=Editing(store)), {"question_id": shown["pending_calls"][0]["id"]}
    body["arguments"] = {"amount": 3}
    assert (await change(lab, path, "approve", body, '"old"')).status == 412
    assert (await change(lab, path, "approve", body, shown["etag"])).status == 200
    before = await store.read("a")
    assert (await change(lab, path, "approve", body, shown["etag"])).status == 200
    assert await store.read("a") == before


@pytest.mark.parametrize("tag", ["W/{}", "", "x", '""', "{}x", '"*"', "W/*", '"x, *', "x*"])
async def test_a_weak_tag_or_none_at_all_never_matches(store: Store, tag: str) -> None:
    lab, path, shown = await waiting(store)
    body = {"question_id": shown["pending_calls"][0]["id"]}
    refused = await lab.post(f"{path}/approve", body, headers=if_match(tag.format(shown["etag"])))
    assert refused.status == 412


async def test_a_repeated_decision_is_answered_at_every_version(store: Store) -> None:
    lab, path, shown = await waiting(store)
    first, second = ({"question_id": each["id"]} for each in shown["pending_calls"])
    sent = f"{path}/approve", first
    done = await lab.post(*sent, headers=if_match(shown["etag"]))
    again = await lab.post(*sent, headers=if_match(shown["etag"]))
    assert (done.status, again.status) == (200, 200)
    assert again.headers["etag"] == done.headers["etag"]
    other = await lab.post(f"{path}/deny", first, headers=if_match(shown["etag"]))
    assert (other.status, [each["id"] for each in other.json["error"]["pending_calls"]]) == (
        409,
        [second["question_id"]],
    )


async def test_an_unknown_session_is_not_found_with_any_tag(store: Store) -> None:
    lab = Lab(store, agent_with())
    assert (await lab.delete("/sessions/a", headers=if_match('"x-1"'))).status == 404
    assert (await lab.post("/sessions/a/resume", headers=if_match("*"))).status == 404


async def test_of_two_decisions_at_one_version_one_is_recorded(store: Store) -> None:
    lab, path, shown = await waiting(store)
    decisions = [
        lab.post(f"{path}/approve", {"question_id": each["id"]}, headers=if_match(shown["etag"]))
        for each in shown["pending_calls"]
    ]
    answers = await asyncio.gather(*decisions)
    assert sorted(answer.status for answer in answers) == [200, 412]
    assert (await lab.get(path)).json["session"]["pending"] == 1


async def test_the_version_is_checked_where_the_change_is_recorded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another decision comes between the check and the append."""
    lab, path, shown = await waiting(store)
    first, second = (each["id"] for each in shown["pending_calls"])
    read = read_session

    async def reads(*arguments: Any) -> Any:
        found = await read(*arguments)
        monkeypatch.setattr(store_module, "read_session", read)
        await store.approve("a", second)
        return found

    monkeypatch.setattr(store_module, "read_session", reads)
    body = {"question_id": first}
    refused = await lab.post(f"{path}/approve", body, headers=if_match(shown["etag"]))
    assert refused.status == 412
    assert [each.id for each in (await store.load("a")).pending_calls] == [first]


async def test_the_version_is_checked_when_the_run_has_the_lease(store: Store) -> None:
    """Another decision comes after the session was opened and before it runs."""
    lab, path, shown = await waiting(store)
    acquire = store.acquire

    async def acquires(agent_id: str, owner: str, seconds: float, **rest: Any) -> Any:
        await store.approve("a", shown["pending_calls"][0]["id"])
        return await acquire(agent_id, owner, seconds, **rest)

    store.acquire = acquires  # type: ignore[method-assign]
    refused = await lab.post(f"{path}/resume", headers=if_match(shown["etag"]))
    assert refused.status == 412
    shown = (await lab.get(path)).json["session"]
    assert (shown["is_running"], shown["status"]) == (False, "paused")


async def test_a_session_that_continues_by_itself_is_not_at_the_version_of_the_client(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    before = (await lab.get(path)).headers["etag"]
    await lab.post(f"{path}/messages", {"text": "go"})
    assert (await lab.post(f"{path}/resume", headers=if_match(before))).status == 412
    now = (await lab.get(path)).headers["etag"]
    assert (await lab.post(f"{path}/resume", headers=if_match(now))).status == 202
    gate.open.set()
    await lab.rest()


def test_a_request_without_the_header_has_no_precondition() -> None:
    assert precondition_of(HTTPConnection({"type": "http", "headers": []})) is ANY_VERSION


# Forks and deletions


async def test_a_fork_has_the_history_up_to_a_step(store: Store) -> None:
    lab = Lab(store, agent_with(*[call("echo", {"value": str(number)}) for number in range(3)], "done"))
    path = await lab.asked()
    made = await lab.post(f"{path}/fork", {"step": 2, "agent_id": "copy"})
    assert (made.status, made.json["session"]["step_count"]) == (201, 2)
    assert made.json["session"]["metadata"] == {"forked_from": {"agent_id": "a", "step": 2}}
    assert (await lab.get("/sessions/copy")).json == made.json
    trace = (await lab.get("/sessions/copy/trace")).json
    assert [step["tool_calls"][0]["result"] for step in trace["steps"]] == ["0", "1"]
    whole = await lab.post(f"{path}/fork")
    assert whole.json["session"]["step_count"] == 4
    assert whole.json["session"]["agent_id"] not in ("a", "copy")
    assert (await lab.get(path)).json["session"]["step_count"] == 4


async def test_a_fork_asks_again_about_what_waits(store: Store) -> None:
    _, path, shown = await waiting(store)
    beside = Beside()
    lab = Lab(store, also=[beside])
    forked = (await lab.post(f"{path}/fork", {"agent_id": "copy"})).json
    assert [each["arguments"] for each in forked["pending_calls"]] == [{"amount": 1}, {"amount": 2}]
    questions = {each["id"] for each in (*shown["pending_calls"], *forked["pending_calls"])}
    assert len(questions) == 4
    late = await lab.post("/sessions/copy/approve", {"question_id": shown["pending_calls"][0]["id"]})
    assert late.status == 409
    events = (await lab.get("/sessions/copy/events")).json["events"]
    asked, status = ["agent.approval.requested"] * 2, "agent.status"
    assert [each["event"] for each in events[-3:]] == [*asked, status]
    assert [each["seq"] for each in events[-3:]] == [1, 2, 3]
    assert events[-1]["data"]["status"] == "paused"
    assert events[-1]["data"]["resolved_by"] == "ApprovalRequired"
    assert beside.numbered == events[-3:]


async def test_a_fork_after_a_step_that_is_not_there_is_refused(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    path = await lab.asked()
    refused = await lab.post(f"{path}/fork", {"step": 9})
    assert (refused.status, refused.error) == (409, "no_such_step")
    assert "the session has 1 step" in refused.message
    assert len((await store.sessions()).sessions) == 1


@pytest.mark.parametrize("body", [{"step": 0}, {"step": "1"}, {"agent_id": ""}, {"to": "b"}])
async def test_a_fork_that_makes_no_sense_is_refused(store: Store, body: Json) -> None:
    lab = Lab(store, agent_with("hi"))
    path = await lab.asked()
    refused = await lab.post(f"{path}/fork", body)
    assert (refused.status, refused.error) == (400, "bad_request")
    assert len((await store.sessions()).sessions) == 1


async def test_a_fork_does_not_replace_a_session(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    path = await lab.asked()
    await lab.made("b")
    refused = await lab.post(f"{path}/fork", {"agent_id": "b"})
    assert (refused.status, refused.error) == (409, "session_exists")


async def test_a_deleted_session_is_gone(store: Store) -> None:
    lab = Lab(store, agent_with("hi", "hello"))
    path = await lab.asked("a/b")
    gone = await lab.delete(path)
    assert (gone.status, gone.body, "content-type" in gone.headers) == (204, b"", False)
    for part in ("", "/messages", "/trace", "/events"):
        assert (await lab.get(path_of("a/b") + part)).status == 404
    assert (await lab.delete(path)).status == 404


async def test_a_session_that_runs_is_not_deleted(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "go"})
    refused = await lab.delete(path)
    assert (refused.status, refused.error) == (409, "session_running")
    gate.open.set()
    await lab.rest()
    assert (await lab.delete(path)).status == 204


async def test_a_session_whose_workflow_may_be_open_is_not_deleted(store: Store) -> None:
    lab = Lab(store, agent_with("hi", "hello"))
    path = await lab.asked("a")
    opened = await store.record_workflow("a", "temporal:internal", "queue:a")
    refused = await lab.delete(path)
    assert (refused.status, refused.error) == (409, "workflow_open")
    assert b"internal" not in refused.body
    await store.forget_workflow("a", opened.token)
    assert (await lab.delete(path)).status == 204
