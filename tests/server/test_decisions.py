"""People decide about tool calls over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.server.support import Beside, Json, Lab, agent_with
from tests.support import requests_of
from whyloop import AgentState, Hook, ToolCall, ToolContext
from whyloop.server import Access
from whyloop.stores import Store
from whyloop.testing import call, calls
from whyloop.values.state import UNNAMED_PERSON


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
    assert (pending["tool"], pending["arguments"]) == ("pay", {"amount": 7})
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
    assert (decided["verdict"], decided["by"]) == ("edited", UNNAMED_PERSON)
    assert decided["arguments"] == {"amount": 3}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"amount": "three"}, "amount: Expected `int`, got `str`"),
        ({}, "amount is missing"),
        ({"amount": 3, "to": "bob"}, "there is no argument 'to'"),
        ({"amount": None}, "amount"),
    ],
)
async def test_arguments_that_do_not_fit_the_tool_are_refused(
    store: Store, arguments: Json, problem: str
) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"))
    path, [pending] = await waiting(lab)
    before = await store.read("a")
    refused = await lab.post(f"{path}/approve", {"question_id": pending["id"], "arguments": arguments})
    assert (refused.status, refused.error) == (400, "bad_request")
    assert "invalid arguments for pay" in refused.message
    assert problem in refused.message
    assert await store.read("a") == before


async def test_a_server_without_an_agent_takes_arguments_as_they_are(store: Store) -> None:
    await Lab(store, agent_with(call("pay", {"amount": 7}))).asked()
    lab = Lab(store)
    [pending] = (await lab.get("/sessions/a")).json["pending_calls"]
    edited = await lab.post("/sessions/a/approve", {"question_id": pending["id"], "arguments": {}})
    assert (edited.status, edited.json["pending_calls"]) == (200, [])
    [call_] = (await store.load("a")).open_step.calls  # type: ignore[union-attr]
    assert call_.arguments == {}


async def test_edited_arguments_are_not_hooked(store: Store) -> None:
    class AddZero(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            assert isinstance(call.arguments, dict)
            return replace(call, arguments={"amount": call.arguments["amount"] * 10})

    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok", hooks=[AddZero()]))
    path, [pending] = await waiting(lab)
    assert pending["arguments"] == {"amount": 70}
    await lab.post(f"{path}/approve", {"question_id": pending["id"], "arguments": {"amount": 3}})
    await resumed(lab, path)
    assert "paid 3" in results(await store.load("a"))[0]


async def test_a_denied_call_does_not_run_and_the_model_gets_the_reason(store: Store) -> None:
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


async def test_an_undecided_question_stays_open(store: Store) -> None:
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
async def test_a_question_that_is_not_open_is_refused_with_those_that_are(
    store: Store, operation: str
) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"))
    nothing_yet = await lab.post(f"{await lab.made('new')}/{operation}", {"question_id": "x"})
    path, [pending] = await waiting(lab)
    unknown = await lab.post(f"{path}/{operation}", {"question_id": "x"})
    by_call = await lab.post(f"{path}/{operation}", {"question_id": pending["tool_call_id"]})
    for answer, questions in ((nothing_yet, []), (unknown, [pending]), (by_call, [pending])):
        assert (answer.status, answer.error) == (409, "not_pending")
        assert answer.json["error"]["pending_calls"] == questions
    assert (await lab.get(path)).json["pending_calls"] == [pending]


@pytest.mark.parametrize(
    "sent",
    [
        ("approve", {}),
        ("approve", {"arguments": {"amount": 3}}),
        ("deny", {"reason": "too dear"}),
    ],
)
async def test_a_decision_that_is_repeated_changes_nothing(store: Store, sent: tuple[str, Json]) -> None:
    operation, body = sent
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"))
    path, [pending] = await waiting(lab)
    body = {"question_id": pending["id"], **body}
    first = await lab.post(f"{path}/{operation}", {**body, "by": "ann"})
    stored = await store.read("a")
    again = await lab.post(f"{path}/{operation}", {**body, "by": "bob"})
    assert (first.status, again.status) == (200, 200)
    assert (again.json, again.headers["etag"]) == (first.json, first.headers["etag"])
    assert await store.read("a") == stored
    await resumed(lab, path)
    late = await lab.post(f"{path}/{operation}", body)
    assert (late.status, late.json["session"]["status"]) == (200, "completed")
    [decided] = decisions((await lab.get(f"{path}/trace")).json)
    assert decided["by"] == "ann"


async def test_another_decision_on_the_same_question_is_refused(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"))
    path, [pending] = await waiting(lab)
    await lab.post(f"{path}/approve", {"question_id": pending["id"], "by": "ann"})
    for operation, body in (("deny", {}), ("approve", {"arguments": {"amount": 3}})):
        refused = await lab.post(f"{path}/{operation}", {"question_id": pending["id"], **body})
        assert (refused.status, refused.error) == (409, "not_pending")
        assert "was already approved by ann" in refused.message
        assert refused.json["error"]["pending_calls"] == []
    await resumed(lab, path)
    assert results(await store.load("a")) == ["paid 7"]


async def test_a_decision_cannot_reach_another_call_with_the_same_provider_id(store: Store) -> None:
    lab = Lab(
        store, agent_with(call("pay", {"amount": 10}, id="c1"), call("pay", {"amount": 10_000}, id="c1"))
    )
    path, [small] = await waiting(lab)
    approval = {"question_id": small["id"]}
    await lab.post(f"{path}/approve", approval)
    await resumed(lab, path)
    [large] = (await lab.get(path)).json["pending_calls"]
    assert (small["tool_call_id"], large["tool_call_id"]) == ("c1", "c1")
    late = await lab.post(f"{path}/approve", approval)
    assert (late.status, late.json["pending_calls"]) == (200, [large])
    assert (await lab.post(f"{path}/deny", approval)).status == 409
    assert results(await store.load("a")) == ["paid 10"]


async def test_a_decision_that_the_server_records_goes_to_every_transport(store: Store) -> None:
    beside = Beside()
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "ok"), also=[beside])
    path, [pending] = await waiting(lab)
    await lab.post(f"{path}/deny", {"question_id": pending["id"], "reason": "no", "by": "ann"})
    await lab.post(f"{path}/stop", {"reason": "enough"})
    recorded = (await lab.get(f"{path}/events")).json["events"]
    assert beside.numbered == recorded
    assert [each["event"] for each in recorded[-3:]] == [
        "agent.approval.decided",
        "agent.tool.completed",
        "agent.status",
    ]


async def test_a_decision_is_recorded_under_the_user_that_the_server_knows(store: Store) -> None:
    lab = Lab(
        store,
        agent_with(call("pay", {"amount": 7}), "ok"),
        access=lambda connection: Access(
            connection.headers.get("x-user", "bob"), may={"send", "decide", "inspect"}
        ),
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
    agent = agent_with(call("pay", {"amount": 7}), "ok")
    lab = Lab(store, agent)
    path, [pending] = await waiting(lab)
    nameless = Lab(store, agent, access=lambda _: Access(name, may={"send", "decide", "inspect"}))
    answer = await nameless.post(f"{path}/approve", {"question_id": pending["id"]})
    assert (answer.status, answer.error) == (500, "internal")
    assert "use a string for user" in caplog.text
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
