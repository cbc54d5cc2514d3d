"""People decide about tool calls over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.support import Json, Lab, agent_with
from tests.support import requests_of
from whyloop import AgentState
from whyloop.stores import Store
from whyloop.testing import call, calls
from whyloop.values.state import SOMEBODY


async def waiting(lab: Lab, agent_id: str = "a") -> tuple[str, list[Json]]:
    """A session in which calls wait for a person: its path, and the calls."""
    path = await lab.asked(agent_id)
    answer = (await lab.get(path)).json
    assert answer["session"]["status"] == "paused"
    return path, answer["pending_calls"]


async def resumed(lab: Lab, path: str) -> Json:
    assert (await lab.post(f"{path}/resume")).status == 202
    await lab.rest()
    shown: Json = (await lab.get(path)).json
    return shown


def results(state: AgentState) -> list[str]:
    return [message.text for message in state.messages if message.is_tool]


def decisions(trace: Json) -> list[Json]:
    return [
        decided for step in trace["steps"] for run in step["tool_calls"] for decided in run["approvals"] or []
    ]


async def test_a_call_waits_is_approved_and_runs(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "it is paid"))
    path, [pending] = await waiting(lab)
    assert (pending["name"], pending["arguments"]) == ("pay", {"amount": 7})
    assert pending["question"]
    shown = (await lab.get(f"{path}/messages")).json["messages"][-1]
    assert (shown["role"], shown["metadata"]["question_id"]) == ("status", pending["id"])
    assert (await lab.get("/sessions", query={"status": "paused"})).json["sessions"]

    approved = await lab.post(f"{path}/approve", {"question_id": pending["id"], "by": "ann"})
    assert (approved.status, approved.json["pending_calls"]) == (200, [])
    assert approved.json["session"]["status"] == "paused"

    done = await resumed(lab, path)
    assert (done["session"]["status"], done["last_response"]) == ("completed", "it is paid")
    assert results(await store.load("a")) == ["paid 7"]
    [decided] = decisions((await lab.get(f"{path}/trace")).json)
    assert (decided["verdict"], decided["by"]) == ("approved", "ann")
    told = (await lab.get(f"{path}/events")).json["events"]
    statuses = [each["data"]["status"] for each in told if each["event"] == "agent.status"]
    assert statuses == ["in_progress", "paused", "in_progress", "completed"]


async def test_a_call_runs_with_the_arguments_that_a_person_gave_it(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"))
    path, [pending] = await waiting(lab)
    edited = await lab.post(f"{path}/approve", {"question_id": pending["id"], "arguments": {"amount": 3}})
    assert edited.status == 200
    await resumed(lab, path)
    assert "paid 3" in results(await store.load("a"))[0]
    [decided] = decisions((await lab.get(f"{path}/trace")).json)
    assert (decided["verdict"], decided["by"]) == ("edited", SOMEBODY)
    assert decided["arguments"] == {"amount": 3}


async def test_no_arguments_at_all_are_arguments_too(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"))
    path, [pending] = await waiting(lab)
    assert (await lab.post(f"{path}/approve", {"question_id": pending["id"], "arguments": {}})).status == 200
    await resumed(lab, path)
    [decided] = decisions((await lab.get(f"{path}/trace")).json)
    assert (decided["verdict"], decided["arguments"]) == ("edited", {})


async def test_a_call_that_is_denied_does_not_run_and_the_model_is_told_why(store: Store) -> None:
    agent = agent_with(call("pay", {"amount": 7}), "then not")
    lab = Lab(store, agent)
    path, [pending] = await waiting(lab)
    sent = {"question_id": pending["id"], "reason": "too dear", "by": "bob"}
    assert (await lab.post(f"{path}/deny", sent)).status == 200
    done = await resumed(lab, path)
    assert done["last_response"] == "then not"
    assert "too dear" in requests_of(agent)[-1].messages[-1].text
    [decided] = decisions((await lab.get(f"{path}/trace")).json)
    assert (decided["verdict"], decided["by"], decided["reason"]) == ("denied", "bob", "too dear")


async def test_what_nobody_has_decided_waits_on(store: Store) -> None:
    lab = Lab(store, agent_with(calls(call("pay", {"amount": 1}), call("pay", {"amount": 2})), "ok"))
    path, pending = await waiting(lab)
    assert [each["arguments"] for each in pending] == [{"amount": 1}, {"amount": 2}]
    await lab.post(f"{path}/approve", {"question_id": pending[0]["id"]})
    after = await resumed(lab, path)
    assert after["session"]["status"] == "paused"
    assert [each["id"] for each in after["pending_calls"]] == [pending[1]["id"]]
    await lab.post(f"{path}/deny", {"question_id": pending[1]["id"]})
    assert (await resumed(lab, path))["session"]["status"] == "completed"


@pytest.mark.parametrize("operation", ["approve", "deny"])
async def test_what_does_not_wait_is_not_decided(store: Store, operation: str) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"))
    nothing_yet = await lab.post(f"{await lab.made('new')}/{operation}", {"question_id": "x"})
    path, [pending] = await waiting(lab)
    unknown = await lab.post(f"{path}/{operation}", {"question_id": "x"})
    await lab.post(f"{path}/approve", {"question_id": pending["id"], "by": "ann"})
    again = await lab.post(f"{path}/{operation}", {"question_id": pending["id"], "by": "bob"})
    for answer in (nothing_yet, unknown, again):
        assert (answer.status, answer.error) == (409, "not_pending")
    await resumed(lab, path)
    [decided] = decisions((await lab.get(f"{path}/trace")).json)
    assert (decided["verdict"], decided["by"]) == ("approved", "ann")


async def test_whom_the_server_knows_it_to_be_decides_whatever_they_say(store: Store) -> None:
    lab = Lab(
        store,
        agent_with(call("pay", {"amount": 7}), "ok"),
        who=lambda connection: connection.headers["x-user"],
    )
    path, [pending] = await waiting(lab)
    sent = {"question_id": pending["id"], "by": "somebody important"}
    await lab.post(f"{path}/deny", sent, headers={"x-user": "ann"})
    await resumed(lab, path)
    [decided] = decisions((await lab.get(f"{path}/trace")).json)
    assert decided["by"] == "ann"


@pytest.mark.parametrize("name", [7, None, object()])
async def test_a_person_without_a_name_decides_nothing(
    store: Store, name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"), who=lambda _: name)
    path, [pending] = await waiting(lab)
    answer = await lab.post(f"{path}/approve", {"question_id": pending["id"]})
    assert (answer.status, answer.error) == (500, "internal")
    assert "instead of a name" in caplog.text
    assert (await lab.get(path)).json["pending_calls"] == [pending]


async def test_a_decision_is_refused_while_the_session_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.stores.store._PATIENCE", 0)
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"))
    path, [pending] = await waiting(lab)
    await store.acquire("a", "another", 30)
    refused = await lab.post(f"{path}/approve", {"question_id": pending["id"]})
    assert (refused.status, refused.error) == (409, "session_running")
