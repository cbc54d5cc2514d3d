"""Questions over HTTP: runs in the background, stopped and resumed."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from tests.broadcasting.support import until
from tests.server.gate import Gate
from tests.server.support import Client, Json, Lab, agent_with
from whyloop import Session
from whyloop.errors import LeaseLostError, ModelError
from whyloop.stores import Store
from whyloop.testing import call


async def status_of(lab: Lab, path: str) -> tuple[str, str | None]:
    session = (await lab.get(path)).json["session"]
    return session["status"], session["stop_reason"]


async def test_a_question_is_stored_before_it_is_accepted(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    answer = await lab.post(f"{path}/messages", {"text": "Who are you?"})
    assert answer.status == 202
    assert answer.json["session"]["status"] == "in_progress"
    assert answer.json["session"]["is_running"] is True
    assert answer.json["execution_id"]
    assert [message.text for message in (await store.load("a")).messages] == ["Who are you?"]
    gate.open.set()
    await lab.rest()
    assert await status_of(lab, path) == ("completed", "completed")


async def test_a_session_that_runs_is_not_run_twice(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "go"})
    for operation, sent in (("messages", {"text": "and?"}), ("resume", {"grant": {"steps": 1}})):
        refused = await lab.post(f"{path}/{operation}", sent)
        assert (refused.status, refused.error) == (409, "session_running")
    version = (await lab.get(path)).json["session"]["version"]
    resumed = await lab.post(f"{path}/resume")
    assert (resumed.status, resumed.json["session"]["version"]) == (202, version)
    gate.open.set()
    await lab.rest()
    assert len((await store.load("a")).messages) == 2


async def test_of_many_concurrent_questions_one_is_accepted(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    asking = [lab.post(f"{path}/messages", {"text": f"I am {number}"}) for number in range(8)]
    answers = await asyncio.gather(*asking)
    assert sorted(answer.status for answer in answers) == [202] + [409] * 7
    gate.open.set()
    await lab.rest()
    assert len((await store.load("a")).messages) == 2


async def test_a_session_that_another_process_runs_is_not_run_here(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    path = await lab.made()
    lease = await store.acquire("a", "another", 30)
    refused = await lab.post(f"{path}/messages", {"text": "go"})
    assert (refused.status, refused.error) == (409, "session_running")
    assert (await lab.get(path)).json["session"]["is_running"] is True
    await store.release(lease)
    assert (await lab.post(f"{path}/messages", {"text": "go"})).status == 202
    await lab.rest()


async def test_a_run_continues_when_its_client_disconnects(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    asking = asyncio.create_task(lab.post(f"{path}/messages", {"text": "go"}))
    await gate.asked.wait()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    gate.open.set()
    await lab.rest()
    assert await status_of(lab, path) == ("completed", "completed")
    assert not caplog.records


async def test_a_client_that_disconnects_while_it_sends_a_body_is_not_logged_as_an_error(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab(store, agent_with())
    path = await lab.made()
    told: list[Json] = [
        {"type": "http.request", "body": b'{"te', "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Json:
        return told.pop(0)

    async def send(message: object) -> None: ...

    scope = Client(lab.server).scope(f"{path}/messages", "", {"content-type": "application/json"})
    await lab.server({**scope, "type": "http", "method": "POST"}, receive, send)
    assert await status_of(lab, path) == ("pending", None)
    assert not caplog.records


async def test_a_failed_run_is_reported_and_can_be_resumed(store: Store) -> None:
    lab = Lab(store, agent_with(ModelError("the provider fell over", status=400), "better now"))
    path = await lab.asked()
    assert await status_of(lab, path) == ("failed", "error")
    assert "the provider fell over" in (await lab.get(f"{path}/trace")).json["explanation"]
    assert (await lab.get(f"{path}/events")).json["events"][-1]["data"]["status"] == "failed"
    resumed = await lab.post(f"{path}/resume")
    assert resumed.status == 202
    await lab.rest()
    assert (await lab.get(path)).json["last_response"] == "better now"


@pytest.mark.parametrize(
    ("error", "level", "words"),
    [
        (
            LeaseLostError("a", "another"),
            logging.WARNING,
            "a run ended early: session 'a' has been taken over",
        ),
        (RuntimeError("it is on fire"), logging.ERROR, "a run failed"),
    ],
)
async def test_a_run_that_cannot_be_recorded_ends_and_is_in_the_log(
    store: Store,
    error: Exception,
    level: int,
    words: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuses(*_: object, **__: object) -> None:
        raise error

    gate = Gate()
    lab = Lab(store, gate.agent)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "go"})
    with monkeypatch.context() as broken:
        broken.setattr(type(store), "append", refuses)
        gate.open.set()
        await lab.rest()
    await until(lambda: caplog.records)
    [record] = caplog.records
    assert record.levelno == level
    assert words in record.message
    assert (await lab.get(path)).json["session"]["status"] == "in_progress"


# Stopping


async def test_a_run_of_this_server_is_stopped(store: Store) -> None:
    gate = Gate()
    lab = Lab(store, gate.agent_with_tool)
    path = await lab.made()
    await lab.post(f"{path}/messages", {"text": "go"})
    await gate.asked.wait()
    answer = await lab.post(f"{path}/stop", {"reason": "that is enough"})
    assert answer.json == {"stopped": True}
    gate.open.set()
    await lab.rest()
    assert await status_of(lab, path) == ("stopped", "user_requested")
    assert "that is enough" in (await lab.get(f"{path}/trace")).json["explanation"]


async def test_a_run_in_another_process_is_stopped(store: Store) -> None:
    lab = Lab(store)
    gate = Gate()
    session = await Session.open(store, gate.agent_with_tool, "a", create=True)
    running = asyncio.create_task(session.send("go"))
    await gate.asked.wait()
    assert (await lab.post("/sessions/a/stop")).json == {"stopped": True}
    gate.open.set()
    state = await running
    assert state.stop_reason == "user_requested"
    assert "A client asked for it." in state.explain()


async def test_a_paused_session_is_stopped_at_once(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7})))
    path = await lab.asked()
    assert (await lab.post(f"{path}/stop")).json == {"stopped": True}
    assert await status_of(lab, path) == ("stopped", "user_requested")


async def test_without_a_run_there_is_nothing_to_stop(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    assert (await lab.post(f"{await lab.made('new')}/stop")).json == {"stopped": False}
    path = await lab.asked()
    assert (await lab.post(f"{path}/stop")).json == {"stopped": False}
    assert await status_of(lab, path) == ("completed", "completed")


# Resuming


async def test_a_run_at_its_limit_continues_only_with_a_grant(store: Store) -> None:
    lab = Lab(store, agent_with(call("echo"), call("echo"), "done", max_steps=1))
    path = await lab.asked()
    assert await status_of(lab, path) == ("stopped", "steps_limit")
    assert (await lab.post(f"{path}/resume")).status == 202
    await lab.rest()
    assert await status_of(lab, path) == ("stopped", "steps_limit")
    granted = await lab.post(f"{path}/resume", {"grant": {"steps": 3, "tokens": 10, "seconds": 1.5}})
    assert granted.status == 202
    await lab.rest()
    assert await status_of(lab, path) == ("completed", "completed")
    budget = (await store.load("a")).execution.granted
    assert budget is not None
    assert (budget.steps, budget.tokens, budget.seconds) == (3, 10, 1.5)


async def test_a_completed_or_new_session_is_not_resumed(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    for path in (await lab.asked("done"), await lab.made("new")):
        refused = await lab.post(f"{path}/resume")
        assert (refused.status, refused.error) == (409, "not_resumable")


async def test_a_question_that_replaces_another_one_is_answered_as_it_began(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), "done"))
    path = await lab.asked()
    waiting = (await lab.get(path)).json["execution_id"]
    answer = await lab.post(f"{path}/messages", {"text": "something else"})
    shown = answer.json["session"]
    assert (shown["status"], shown["is_running"], shown["step_count"]) == ("in_progress", True, 1)
    assert answer.json["execution_id"] != waiting
    await lab.rest()
    assert await status_of(lab, path) == ("completed", "completed")
