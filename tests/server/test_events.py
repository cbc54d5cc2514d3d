"""Events of a session are read page by page and sent to other transports; and servers that run nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.support import Beside, Json, Lab, agent_with
from tests.support import FixedWorld
from whyloop import Agent
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ConfigurationError
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore, Store
from whyloop.testing import FakeClock, ScriptedModel, call

ODD = "a:b/c%3A 1"


class OddNames(FixedWorld):
    """A world in which executions have odd names."""

    def new_id(self) -> str:
        return ODD


async def test_envelopes_are_read_page_by_page(store: Store) -> None:
    lab = Lab(store, agent_with(call("echo", {"value": "x"}), "done"))
    path = await lab.asked()
    whole = (await lab.get(f"{path}/events")).json
    assert whole["has_more"] is False
    found: list[Json] = []
    query: dict[str, object] = {"limit": 2}
    while True:
        page = (await lab.get(f"{path}/events", query=query)).json
        found += page["events"]
        if not page["has_more"]:
            break
        assert len(page["events"]) == 2
        query = {"limit": 2, "after": page["next"]}
    assert found == whole["events"]
    assert page["next"] == whole["next"]
    numbers = [each["seq"] for each in found]
    assert numbers == sorted(set(numbers))


async def test_a_place_is_a_number_or_an_execution_and_a_number(store: Store) -> None:
    lab = Lab(store, agent_with("one", "two"))
    path = await lab.asked()
    await lab.post(f"{path}/messages", {"text": "again"})
    await lab.rest()
    told = (await lab.get(f"{path}/events")).json["events"]
    executions = list(dict.fromkeys(each["execution_id"] for each in told))
    assert len(executions) == 2

    async def after(place: str) -> list[Json]:
        events: list[Json] = (await lab.get(f"{path}/events", query={"after": place})).json["events"]
        return events

    assert await after(f"{executions[0]}:0") == told
    first = [each for each in told if each["execution_id"] == executions[0]]
    assert await after(f"{executions[0]}:{first[1]['seq']}") == told[2:]
    assert await after(str(told[-2]["seq"])) == told[-1:]
    assert await after(f"{executions[1]}:{told[-1]['seq']}") == []
    assert await after("nobody-knows-it:5") == told


@pytest.mark.parametrize("after", ["latest", "99", "here"])
async def test_a_client_at_the_end_gets_all_later_envelopes(store: Store, after: str) -> None:
    lab = Lab(store, agent_with("one", "two", "three"))
    path = await lab.asked()
    place = (await lab.get(f"{path}/messages")).json["after"] if after == "here" else after
    page = (await lab.get(f"{path}/events", query={"after": place})).json
    assert page["events"] == []
    for _ in range(2):
        await lab.post(f"{path}/messages", {"text": "again"})
        await lab.rest()
    told = (await lab.get(f"{path}/events", query={"after": page["next"]})).json["events"]
    assert [each["data"]["status"] for each in told if each["event"] == "agent.status"] == [
        "in_progress",
        "completed",
    ] * 2


async def test_an_execution_of_any_name_can_be_a_place(store: Store) -> None:
    model = ScriptedModel(["hi"])
    lab = Lab(store, Agent(model, world=OddNames(model, FakeClock())))
    path = await lab.asked()
    page = (await lab.get(f"{path}/events", query={"limit": 1})).json
    assert page["events"][0]["execution_id"] == ODD
    rest = (await lab.get(f"{path}/events", query={"after": page["next"]})).json
    whole = (await lab.get(f"{path}/events")).json
    assert page["events"] + rest["events"] == whole["events"]


async def test_other_transports_get_the_same_envelopes_under_the_same_config(store: Store) -> None:
    beside = Beside()
    config = BroadcastConfig.minimal()
    lab = Lab(store, agent_with(call("echo", {"value": "x"}), "done"), also=[beside], config=config)
    events = (await lab.get(f"{await lab.asked()}/events")).json["events"]
    assert events == beside.numbered
    assert {each["event"] for each in beside.envelopes if each not in events} == {"agent.step.started"}
    page = await lab.server.events.page("a")
    assert [item.seq for item in page.items] == [each["seq"] for each in events]


# A server that only shows


async def test_a_server_without_an_agent_shows_and_decides_and_runs_nothing(store: Store) -> None:
    await Lab(store, agent_with(call("pay", {"amount": 7}))).asked()
    lab = Lab(store)
    for path, allowed in (("/sessions", "GET"), ("/sessions/a/messages", "GET"), ("/sessions/a/resume", "")):
        answer = await lab.post(path, {"text": "go"})
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
        assert "this server runs no agent" in answer.message
    paths = (await lab.get("/openapi.json")).json["paths"]
    assert "/sessions/{agent_id}/resume" not in paths
    assert set(paths["/sessions"]) == set(paths["/sessions/{agent_id}/messages"]) == {"get"}
    waiting = (await lab.get("/sessions/a")).json["pending_calls"]
    denied = await lab.post("/sessions/a/deny", {"question_id": waiting[0]["id"]})
    assert (denied.status, denied.json["pending_calls"]) == (200, [])


@pytest.mark.parametrize(
    ("store", "options", "words"),
    [
        ("whyloop.db", {}, "use a Store, such as"),
        (MemoryStore(), {"agent": "me"}, "an Agent or a function"),
        (MemoryStore(), {"origins": "https://example.com"}, "use a list, such as"),
        (MemoryStore(), {"origins": ["example.com"]}, "invalid origin 'example.com'"),
        (MemoryStore(), {"origins": ["https://example.com/a"]}, "invalid origin"),
        (MemoryStore(), {"public": False}, "choose its clients: access=f"),
        (MemoryStore(), {"access": lambda _: None}, "choose its clients"),
        (MemoryStore(), {"access": "ann", "public": False}, "invalid access 'ann'"),
    ],
)
def test_a_server_that_cannot_work_is_refused_at_once(
    store: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        AgentServer(store, **{"public": True, **options})


def test_a_server_needs_an_access_function_or_public() -> None:
    with pytest.raises(ConfigurationError, match="choose its clients"):
        AgentServer(MemoryStore())


async def test_a_trace_is_shown_a_page_at_a_time(store: Store) -> None:
    lab = Lab(store, agent_with(*[call("echo", {"value": str(number)}) for number in range(4)], "done"))
    path = await lab.asked()
    whole = (await lab.get(f"{path}/trace")).json
    assert ([step["number"] for step in whole["steps"]], whole["has_more"]) == ([1, 2, 3, 4, 5], False)
    page = (await lab.get(f"{path}/trace", query={"after": 1, "limit": 2})).json
    assert (page["steps"], page["has_more"]) == (whole["steps"][1:3], True)
    assert (page["next"], page["step_count"]) == (3, 5)
    same = {"steps": 0, "has_more": 0, "next": 0}
    assert {**page, **same} == {**whole, **same}
    last = (await lab.get(f"{path}/trace", query={"after": 5})).json
    assert (last["steps"], last["has_more"], last["next"]) == ([], False, None)
