"""Rights: each operation needs one, and a client without it gets a 403 that names it and learns nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.server.support import Answer, Client, Json, Lab, agent_with, reverb
from tests.test_docs import blocks_of
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ConfigurationError
from whyloop.server import Access
from whyloop.server.bodies import RIGHTS, Right
from whyloop.server.operations import OPERATIONS, Operation
from whyloop.stores import MemoryStore, Store
from whyloop.testing import ScriptedModel, call, text

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "4-production.md"
SETS = [frozenset(chosen) for size in range(5) for chosen in combinations(RIGHTS, size)]
ASK = {"id": "m1", "role": "user", "content": "Go", "parts": [{"type": "text", "text": "Go"}]}
PRIVATE = "You are a secret agent."


class Case(Struct, frozen=True):
    """A request to an operation, and its status for a client that has all rights which it needs."""

    status: int
    body: Any = None
    query: Any = ""
    also: frozenset[Right] = frozenset()
    """Rights that the body needs besides that of the operation."""
    until: bytes | None = None


def said(question_id: str) -> Json:
    """The answer of a person in a chat of the AI SDK."""
    part = {
        "type": "tool-pay",
        "state": "approval-responded",
        "approval": {"id": question_id, "approved": True},
    }
    return {"id": "a", "messages": [{"id": "m2", "role": "assistant", "parts": [part]}]}


def cases(operation: Operation, question: str) -> list[Case]:
    """A new operation needs an entry here."""
    decide = frozenset[Right]({"decide"})
    resolved = {"interruptId": question, "status": "resolved", "payload": {"approved": True}}
    known: dict[str, list[Case]] = {
        "list_sessions": [Case(200)],
        "get_stats": [Case(200)],
        "get_questions": [Case(200)],
        "get_info": [Case(200)],
        "get_metrics": [Case(200)],
        "get_health": [Case(200)],
        "create_session": [Case(201, {})],
        "get_session": [Case(200)],
        "delete_session": [Case(204)],
        "get_messages": [Case(200)],
        "get_trace": [Case(200)],
        "get_step": [Case(200)],
        "get_executions": [Case(200)],
        "get_snapshot": [Case(200)],
        "get_saved": [Case(200)],
        "get_events": [Case(200)],
        "send_message": [Case(202, {"text": "And now?"})],
        "stop": [Case(200, {})],
        "approve": [Case(200, {"question_id": question})],
        "deny": [Case(200, {"question_id": question})],
        "resume": [
            Case(202, {}),
            Case(202, {"grant": {"steps": 5}}, also=frozenset({"manage"})),
        ],
        "fork": [Case(201, {})],
        "set_metadata": [Case(200, {"metadata": {"ticket": 42}})],
        "get_what_if": [Case(200)],
        "survey_sessions": [Case(200, query={"limit": "max_steps"})],
        "get_live": [Case(200, query={"list": "true", "session": "a"}, until=b"envelope")],
        "authorize_channel": [Case(200, {"socket_id": "1.2", "channel_name": "private-agent.a"})],
        "run_ag_ui": [
            Case(200, {"threadId": "a", "runId": "r", "messages": [ASK]}, until=b"RUN_"),
            Case(200, {"threadId": "a", "runId": "r", "resume": [resolved]}, also=decide, until=b"RUN_"),
        ],
        "run_chat": [
            Case(200, {"id": "a", "messages": [ASK]}, until=b"[DONE]"),
            Case(200, said(question), also=decide, until=b"[DONE]"),
        ],
        "get_chat": [Case(200)],
        "get_chat_stream": [Case(204)],
    }
    return known[operation.name]


def filled(operation: Operation, agent_id: str = "a") -> str:
    return operation.path.replace("{agent_id}", agent_id).replace("{index}", "1")


async def ask(
    client: Client, operation: Operation, case: Case, agent_id: str = "a", **headers: str
) -> Answer:
    path, until = filled(operation, agent_id), case.until
    body = json.loads(json.dumps(case.body).replace('"a"', f'"{agent_id}"'))
    options: Json = {"query": case.query, "headers": headers, "until": until}
    return await client.call(operation.method, path, **({} if body is None else {"send": body}), **options)


async def waiting(store: Store) -> str:
    """Make the session "a" of Ann, with one answer and then an open question; return its id."""
    agent = agent_with("Hello.", call("pay", {"amount": 5}), instructions=PRIVATE)
    lab = Lab(store, agent)
    path = await lab.asked(user="ann")
    await lab.post(f"{path}/messages", {"text": "Pay."})
    await lab.rest()
    await lab.server.close()
    question: str = (await store.load("a")).pending_calls[0].id
    return question


def of_ann(may: frozenset[Right], store: Store, **options: Any) -> Lab:
    access = Access("ann", {"user": "ann"}, may)
    agent = agent_with("Done.", "Done.", instructions=PRIVATE)
    return Lab(store, agent, also=[reverb()], access=lambda _: access, **options)


# The table


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("may", SETS, ids=lambda may: "+".join(sorted(may)) or "nothing")
async def test_each_operation_is_answered_to_clients_with_its_right_alone(
    may: frozenset[Right], operation: Operation
) -> None:
    store = MemoryStore()
    question = await waiting(store)
    for index in range(len(cases(operation, question))):
        store = MemoryStore()
        case = cases(operation, await waiting(store))[index]
        needed = case.also | ({operation.right} if operation.right else set())
        before = await store.read("a")
        lab = of_ann(may, store)
        answer = await ask(lab.client, operation, case)
        if needed <= may:
            assert answer.status == case.status, answer
        else:
            assert (answer.status, answer.error) == (403, "missing_right")
            assert any(repr(right) in answer.message for right in needed - may)
            assert await store.read("a") == before
            assert len((await store.sessions()).sessions) == 1
        await lab.server.close()


@pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if "{agent_id}" in each.path or each.name in ("run_ag_ui", "run_chat")],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("may", SETS, ids=lambda may: "+".join(sorted(may)) or "nothing")
async def test_a_session_that_is_not_within_is_404_whatever_a_client_may(
    may: frozenset[Right], operation: Operation
) -> None:
    store = MemoryStore()
    question = await waiting(store)
    access = Access("bob", {"user": "bob"}, may)
    lab = Lab(store, agent_with("Done."), access=lambda _: access)
    for case in cases(operation, question):
        answer = await ask(lab.client, operation, case)
        is_allowed = case.also | ({operation.right} if operation.right else set()) <= may
        expected = 404 if is_allowed else 403
        if operation.name == "get_chat_stream":  # As for a chat without messages.
            expected = 204
        if operation.name in ("run_ag_ui", "run_chat") and is_allowed:
            assert answer.status in (404, 409)
            continue
        assert answer.status == expected, answer
    assert (await store.load("a")).pending_calls


# What may be given


@pytest.mark.parametrize("may", ["send", "", None, 1, {"read"}, ["send", "Decide"], [["send"]], {"send", 1}])
def test_rights_that_do_not_exist_are_refused_with_those_that_do(may: Any) -> None:
    with pytest.raises(ConfigurationError, match="'send', 'decide', 'inspect', 'manage'"):
        Access("ann", may=may)


def test_a_client_may_send_and_nothing_else_by_default() -> None:
    assert Access("ann").may == frozenset({"send"})
    assert Access("ann", {}, ["decide", "decide"]).may == frozenset({"decide"})
    assert Access("ann", may=()).may == frozenset()


async def test_every_client_of_a_public_server_has_all_rights() -> None:
    assert (await Lab(MemoryStore()).get("/info")).json["may"] == list(RIGHTS)


# What a client reads without the right to inspect


async def envelopes(lab: Lab) -> list[list[Json]]:
    """The envelopes of the session, in each of the ways to read them."""
    end = b'"status":"paused"'
    page = (await lab.get("/sessions/a/events")).json["events"]
    listened = await lab.get("/sessions/a/events", headers={"accept": "text/event-stream"}, until=end)
    live = await lab.get("/live", query={"session": "a"}, until=end)
    heard = await lab.client.socket("/sessions/a/events", hear=len(page))
    lines = [line[6:] for line in listened.body.decode().splitlines() if line.startswith("data: ")]
    lively = [line[6:] for line in live.body.decode().splitlines() if line.startswith("data: ")]
    return [
        page,
        [json.loads(line) for line in lines],
        [json.loads(line)["envelope"] for line in lively],
        [json.loads(each["text"]) for each in heard if each["type"] == "websocket.send"],
    ]


async def test_only_clients_that_inspect_get_more_than_standard_envelopes() -> None:
    store = MemoryStore()
    await waiting(store)
    config = BroadcastConfig.debug()
    customer = of_ann(frozenset(RIGHTS) - {"inspect"}, store, config=config)
    standard = (await Lab(store).get("/sessions/a/events")).json["events"]
    for found in await envelopes(customer):
        assert found == standard
    subscription = {"socket_id": "1.2", "channel_name": "private-agent.a"}
    answer = await customer.post("/broadcasting/auth", subscription)
    assert (answer.status, answer.error) == (403, "missing_right")
    support = of_ann(frozenset({"inspect"}), store, config=config)
    for found in await envelopes(support):
        assert "agent.continuation" in {each["event"] for each in found}
        assert {"amount": 5} in [each["data"].get("args") for each in found]
    assert (await support.post("/broadcasting/auth", subscription)).status == 200
    for lab in (customer, support):
        await lab.server.close()


async def test_without_the_right_to_inspect_no_answer_has_the_instructions() -> None:
    for operation in OPERATIONS:
        store = MemoryStore()
        question = await waiting(store)
        for case in cases(operation, question):
            lab = of_ann(frozenset(RIGHTS) - {"inspect"}, store)
            assert PRIVATE.encode() not in (await ask(lab.client, operation, case)).body, operation.name
            await lab.server.close()
    support = of_ann(frozenset({"inspect"}), store)
    assert PRIVATE.encode() in (await support.get("/sessions/a/steps/1")).body


# Deletions


@pytest.mark.parametrize(("user", "named"), [("ada", "ada"), ("", "an unnamed person")])
async def test_a_deletion_is_one_line_with_the_session_and_the_user(
    user: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "whyloop.server")
    store = MemoryStore()
    await waiting(store)
    lab = Lab(store, access=lambda _: Access(user, may={"manage"}))
    assert (await lab.delete("/sessions/a")).status == 204
    assert (await lab.delete("/sessions/a")).status == 404
    records = [each for each in caplog.records if each.name == "whyloop.server"]
    assert [(each.levelname, each.getMessage()) for each in records] == [
        ("INFO", f"session a was deleted by {named}")
    ]


# The tutorial


@pytest.fixture
def tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of the tutorial, as its page has them."""
    for block in blocks_of(TUTORIAL):
        if block.title in ("desk.py", "web.py"):
            (tmp_path / block.title).write_text(block.source)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("desk", "web"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("desk", "web"):
        sys.modules.pop(name, None)


async def plainly(client: Client, operation: Operation, case: Case) -> Answer:
    """Ask without holding the answer against a document."""
    options: Json = {} if case.body is None else {"send": case.body}
    until = (case.until, b"session_not_found") if case.until else ()
    return await client.call(operation.method, filled(operation), query=case.query, until=until, **options)


async def desk_with_a_refund(open_desk: Any) -> tuple[Store, str]:
    """Make the session "a" of Ann, in which a refund waits for the staff; return its id."""
    store = MemoryStore()
    ann = open_desk(store, "key-of-ann")
    for path, body in (
        ("/sessions", {"agent_id": "a"}),
        ("/sessions/a/messages", {"text": "Hi"}),
        ("/sessions/a/messages", {"text": "Money!"}),
    ):
        assert (await ann.call("POST", path, send=body, until=())).status in (201, 202)
        while (await store.load("a")).status == "in_progress":
            await asyncio.sleep(0)
    return store, (await store.load("a")).pending_calls[0].id


def expected_of_another_customer(operation: Operation, case: Case) -> tuple[int, bytes]:
    """Return the status of a request about the session of another, and what the answer contains."""
    if operation.name == "get_live":
        return 200, b'"session_not_found"'
    if operation.name == "get_chat_stream":
        return 204, b""
    if "{agent_id}" in operation.path or operation.name in ("run_ag_ui", "run_chat"):
        return 404, b"not_found"
    return case.status, b""


@pytest.mark.usefixtures("tutorial")
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("key", "may"),
    [("key-of-ann", {"send"}), ("key-of-bob", {"send"}), ("key-of-ada", {"send", "decide", "inspect"})],
)
async def test_each_route_gives_the_people_of_the_tutorial_what_they_may(
    key: str, may: set[Right], operation: Operation
) -> None:
    import web  # type: ignore[import-not-found]

    def open_desk(store: Store, key: str) -> Client:
        refund = call("refund", {"order": 18, "cents": 25000})
        model = ScriptedModel([text("Hello."), refund, text("Done."), text("Done.")])
        return Client(web.create_app(store, model), "/desk", {"cookie": f"key={key}"})

    _, question = await desk_with_a_refund(open_desk)
    for index in range(len(cases(operation, question))):
        store, question = await desk_with_a_refund(open_desk)
        case = cases(operation, question)[index]
        before = await store.read("a")
        answer = await plainly(open_desk(store, key), operation, case)
        needed, content = case.also | ({operation.right} if operation.right else set()), b""
        if operation.needs == "channels":  # The desk has none.
            status, content = 404, b"unknown path"
        elif not needed <= may:
            status, content = 403, b'"missing_right"'
        elif key == "key-of-bob":
            status, content = expected_of_another_customer(operation, case)
        else:
            status = case.status
        assert answer.status == status, answer
        assert content in answer.body
        if key == "key-of-bob" or not needed <= may:
            assert await store.read("a") == before
