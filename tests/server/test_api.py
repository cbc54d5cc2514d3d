"""Sessions are listed, made and read over HTTP."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.server.support import Json, Lab, agent_with, path_of
from tests.support import START, empty_session
from whyloop.stores import MemoryStore, Store
from whyloop.testing import call
from whyloop.values.state import StateInfo

ODD_IDS = [
    "a/b",
    "/",
    "..",
    "%2F",
    "100%",
    "%",
    "a b+c",
    "a?b#c&d=e",
    "ünï/cødé",
    "名前🎈",
    "a\nb",
    "'\"<>",
    "openapi.json",
    "x" * 500,
    "名" * 500,
]


async def seeded(store: Store, count: int, **metadata: object) -> None:
    """Sessions that began a minute after one another."""
    for number in range(count):
        moment = START + timedelta(minutes=number)
        state = replace(
            empty_session(), agent_id=f"s{number}", state_info=StateInfo(started_at=moment, updated_at=moment)
        )
        await store.add(state.with_metadata({"number": number, "even": number % 2 == 0, **metadata}))


async def listed(lab: Lab, **query: object) -> list[str]:
    answer = await lab.get("/sessions", query=query)
    assert answer.status == 200, answer
    return [each["agent_id"] for each in answer.json["sessions"]]


# The list


async def test_sessions_are_listed_newest_first(store: Store) -> None:
    await seeded(store, 3)
    answer = await Lab(store).get("/sessions")
    assert [each["agent_id"] for each in answer.json["sessions"]] == ["s2", "s1", "s0"]
    assert answer.json["next"] is None
    youngest = answer.json["sessions"][0]
    assert (youngest["status"], youngest["title"], youngest["version"]) == ("pending", "", 1)
    assert youngest["started_at"] == "2026-01-16T10:02:00Z"
    assert youngest["metadata"] == {"number": 2, "even": True}


async def test_a_list_is_read_page_by_page_without_gaps(store: Store) -> None:
    await seeded(store, 5)
    lab, found, query = Lab(store), [], {"limit": 2}
    while True:
        page = (await lab.get("/sessions", query=query)).json
        found.append([each["agent_id"] for each in page["sessions"]])
        if page["next"] is None:
            break
        query = {"limit": 2, "after": page["next"]}
    assert found == [["s4", "s3"], ["s2", "s1"], ["s0"]]


async def test_sessions_are_found_by_how_they_stand(store: Store) -> None:
    lab = Lab(store, agent_with("hi", call("pay", {"amount": 7}), RuntimeError("it broke")))
    for agent_id in ("done", "waiting", "broken"):
        await lab.asked(agent_id)
    await lab.made("new")
    assert await listed(lab, status="completed") == ["done"]
    assert await listed(lab, status="paused") == ["waiting"]
    assert await listed(lab, waiting="true") == ["waiting"]
    assert len(await listed(lab, waiting="false")) == 4
    assert (await lab.get("/sessions", query={"waiting": "yes"})).status == 400
    assert await listed(lab, status="failed", stop_reason="error") == ["broken"]
    assert await listed(lab, stop_reason="completed") == ["done"]
    assert await listed(lab, status="pending") == ["new"]
    assert await listed(lab, status="completed", stop_reason="error") == []


async def test_sessions_are_found_by_when_they_began(store: Store) -> None:
    await seeded(store, 4)
    lab = Lab(store)
    second = (START + timedelta(minutes=1)).isoformat()
    assert await listed(lab, started_after=second) == ["s3", "s2"]
    assert await listed(lab, started_before=second) == ["s0"]
    east = "2026-01-16T12:01:00+02:00"
    assert await listed(lab, started_after=east) == ["s3", "s2"]
    assert await listed(lab, started_after="0001-01-01T00:00:00+14:00", limit=1) == ["s3"]
    assert await listed(lab, started_before="9999-12-31T23:59:59-14:00", limit=1) == ["s3"]
    assert await listed(lab, updated_after=second) == ["s3", "s2"]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ('{"number": 1}', ["s1"]),
        ('{"even": true}', ["s2", "s0"]),
        ('{"even": true, "who": "ann"}', ["s2", "s0"]),
        ('{"who": "bob"}', []),
        ('{"even": 1}', []),
        ('{"number": 2.0}', []),
        ("{}", ["s3", "s2", "s1", "s0"]),
        ('{"nothing": null}', ["s3", "s2", "s1", "s0"]),
        ('{"missing": null}', []),
    ],
)
async def test_sessions_are_found_by_their_metadata(store: Store, metadata: str, expected: list[str]) -> None:
    await seeded(store, 4, who="ann", nothing=None)
    assert await listed(Lab(store), metadata=metadata) == expected


@pytest.mark.parametrize("metadata", ["x", "null", "[]", '{"a": {}}', '{"a": [1]}', '{"a": 1', '"a"'])
async def test_metadata_to_look_for_is_an_object_of_plain_values(metadata: str) -> None:
    answer = await Lab(MemoryStore()).get("/sessions", query={"metadata": metadata})
    assert (answer.status, answer.error) == (400, "bad_request")
    assert "plain values" in answer.message


# A new one


async def test_a_new_session_gets_an_id_and_can_be_read(store: Store) -> None:
    lab = Lab(store, agent_with())
    made = await lab.post("/sessions", {"metadata": {"user": "ann", "tags": ["a", "b"]}})
    assert made.status == 201
    session = made.json["session"]
    assert len(session["agent_id"]) == 32
    assert session["metadata"] == {"user": "ann", "tags": ["a", "b"]}
    assert (await lab.get(path_of(session["agent_id"]))).json == made.json
    assert (await store.load(session["agent_id"])).metadata == {"user": "ann", "tags": ["a", "b"]}


async def test_a_session_can_be_made_with_nothing_said(store: Store) -> None:
    lab = Lab(store, agent_with())
    assert (await lab.post("/sessions")).status == 201
    assert (await lab.post("/sessions", {})).status == 201
    assert (await lab.post("/sessions", {"agent_id": None})).status == 201
    assert len(await listed(lab)) == 3


async def test_an_id_is_given_once(store: Store) -> None:
    lab = Lab(store, agent_with())
    await lab.made("a", user="ann")
    again = await lab.post("/sessions", {"agent_id": "a", "metadata": {"user": "bob"}})
    assert (again.status, again.error) == (409, "session_exists")
    assert (await store.load("a")).metadata == {"user": "ann"}


@pytest.mark.parametrize("agent_id", ODD_IDS, ids=range(len(ODD_IDS)))
async def test_an_odd_id_is_an_id_like_any_other(store: Store, agent_id: str) -> None:
    lab = Lab(store, agent_with("hi"))
    path = await lab.asked(agent_id)
    for part in ("", "/messages", "/trace", "/events"):
        answer = await lab.get(path + part)
        assert answer.status == 200, answer
    assert (await lab.get(path)).json["session"]["agent_id"] == agent_id
    assert (await lab.get(f"{path}/events")).json["events"][0]["session_id"] == agent_id
    assert (await lab.post(f"{path}/stop")).json == {"stopped": False}


@pytest.mark.parametrize("agent_id", ["", "x" * 501, "a\x00b", 7, ["a"]])
async def test_an_id_that_no_store_could_keep_is_refused(agent_id: object) -> None:
    lab = Lab(MemoryStore(), agent_with())
    answer = await lab.post("/sessions", {"agent_id": agent_id})
    assert (answer.status, answer.error) == (400, "bad_request")
    assert await listed(lab) == []


async def test_the_agent_of_a_session_is_found_by_how_it_is_listed(store: Store) -> None:
    agents = {"french": agent_with("oui"), "german": agent_with("ja")}
    lab = Lab(store, lambda summary: agents[summary.metadata["language"]])
    for language, said in (("french", "oui"), ("german", "ja")):
        path = await lab.asked(language, language=language)
        assert (await lab.get(path)).json["last_response"] == said


# What it is


async def test_a_session_is_shown_as_it_is_now(store: Store) -> None:
    lab = Lab(store, agent_with(call("echo", {"value": "x"}), "done"))
    answer = await lab.get(await lab.asked("a", "Who are you?"))
    shown: Json = answer.json
    assert shown["session"]["status"] == "completed"
    assert shown["session"]["title"] == "Who are you?"
    assert shown["session"]["step_count"] == 2
    assert shown["session"]["is_running"] is False
    assert (shown["last_response"], shown["pending_calls"]) == ("done", [])
    assert (shown["session"]["agent"], shown["session"]["pending"]) == ("agent", 0)
    assert shown["session"]["resolved_by"] == "ToolCallPresenceCheck"
    assert shown["session"]["reason"]


async def test_a_chat_shows_the_messages_and_calls_of_the_session(store: Store) -> None:
    lab = Lab(store, agent_with(call("echo", {"value": "x"}), "done"))
    shown = (await lab.get(f"{await lab.asked()}/messages")).json
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [message["content"] for message in shown["messages"]][-2:] == ["x", "done"]
    told = (await lab.get("/sessions/a/events")).json
    assert shown["after"] == told["next"]


async def test_a_client_that_follows_after_the_history_misses_nothing(store: Store) -> None:
    lab = Lab(store, agent_with("one", "two"))
    path = await lab.asked()
    read, going_on = store.read, asyncio.Event()

    async def reads(agent_id: str, *, after: int = 0, limit: int | None = None) -> Any:
        found = await read(agent_id, after=after, limit=limit)
        if limit and not going_on.is_set():
            going_on.set()
            await lab.post(f"{path}/messages", {"text": "and now?"})
            await lab.rest()
        return found

    store.read = reads  # type: ignore[method-assign]
    history = (await lab.get(f"{path}/messages")).json
    assert going_on.is_set()
    events = (await lab.get(f"{path}/events", query={"after": history["after"]})).json["events"]
    answered = history["messages"][-1]["content"]
    statuses = [each["data"]["status"] for each in events if each["event"] == "agent.status"]
    assert (answered, statuses) in [("one", ["in_progress", "completed"]), ("two", [])]


async def test_the_trace_explains_why_it_continued_and_why_it_stopped(store: Store) -> None:
    lab = Lab(store, agent_with(call("echo", {"value": "x"}), "done"))
    trace = (await lab.get(f"{await lab.asked()}/trace")).json
    assert (trace["status"], trace["stop_reason"]) == ("completed", "completed")
    assert [step["tool_calls"] != [] for step in trace["steps"]] == [True, False]
    assert trace["steps"][0]["tool_calls"][0]["arguments"] == {"value": "x"}
    state = await store.load("a")
    assert (trace["headline"], trace["explanation"]) == (state.explanation.headline, state.explain())
    assert trace["next_actions"] == []
    assert all(step["outcome"]["evaluations"] for step in trace["steps"])


async def test_the_trace_says_what_would_let_it_continue(store: Store) -> None:
    lab = Lab(store, agent_with(call("nothing"), "done"))
    trace = (await lab.get(f"{await lab.asked()}/trace")).json
    assert trace["headline"].startswith("Failed after 1 step (error). ErrorPolicyCriterion decided: ")
    assert [action["kind"] for action in trace["next_actions"]] == ["change_policy", "resume"]
    assert trace["next_actions"][1]["code"] == "resume(state)"


async def test_a_session_in_which_nothing_was_asked_is_empty(store: Store) -> None:
    lab = Lab(store, agent_with())
    path = await lab.made()
    assert (await lab.get(path)).json["execution_id"] == ""
    empty: Json = {"messages": [], "after": None, "has_more": False, "next": None}
    assert (await lab.get(f"{path}/messages")).json == empty
    assert (await lab.get(f"{path}/trace")).json["steps"] == []
    for after in ("latest", "0", "17", "e:3"):
        page = (await lab.get(f"{path}/events", query={"after": after})).json
        assert page["events"] == []
        assert page["has_more"] is False


async def test_times_have_a_zone(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    shown = (await lab.get(await lab.asked())).json["session"]
    for name in ("started_at", "updated_at"):
        assert datetime.fromisoformat(shown[name]).tzinfo == UTC
