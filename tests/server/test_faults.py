"""Internal errors are logged, and clients see nothing of them."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import fastapi
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from tests.server.support import EVERY, Answer, Json, Lab, agent_with
from whyloop.errors import ConfigurationError, StoreUnavailableError
from whyloop.server import Access
from whyloop.stores import Entry, MemoryStore, SqliteStore, Store, Summary
from whyloop.testing import call
from whyloop.values.scalars import utc_now
from whyloop.values.state import AgentStatus

ADDRESS = "postgresql://whyloop:hunter2@db.internal:5432/sessions"
each_operation = pytest.mark.parametrize(("method", "path", "sent"), EVERY)


class Down(MemoryStore):
    """A store that cannot be reached."""

    async def _refuse(self, *_: object, **__: object) -> Any:
        raise StoreUnavailableError(f"{ADDRESS} cannot be reached: connection refused")

    create = append = read = acquire = ask_to_stop = find = _refuse


class Broken(MemoryStore):
    """A store that fails in a way that nobody planned."""

    async def _refuse(self, *_: object, **__: object) -> Any:
        raise RuntimeError(f"{ADDRESS} is on fire")

    create = read = find = _refuse


def says_nothing_of_the_inside(answer: Answer) -> bool:
    inside = (b"hunter2", b"db.internal", b"postgresql", b"Traceback", b"RuntimeError", b"/", b"sqlite")
    return not any(word in answer.body for word in inside)


@each_operation
async def test_a_store_that_cannot_be_used_is_tried_again_later(
    method: str, path: str, sent: Json | None, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab(Down(), agent_with())
    answer = await lab.client.call(method, path, send=sent)
    assert (answer.status, answer.error) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    assert says_nothing_of_the_inside(answer)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "db.internal" in record.getMessage()
    assert "hunter2" not in record.getMessage()


@each_operation
async def test_an_unexpected_failure_is_logged(
    method: str, path: str, sent: Json | None, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await Lab(Broken(), agent_with()).client.call(method, path, send=sent)
    assert (answer.status, answer.error) == (500, "internal")
    assert says_nothing_of_the_inside(answer)
    [record] = caplog.records
    assert "is on fire" in caplog.text
    assert "Traceback" in record.getMessage()
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("method", "part", "sent"),
    [(method, path.removeprefix("/sessions/a"), sent) for method, path, sent in EVERY[2:]],
)
async def test_a_session_that_cannot_be_read_is_an_internal_error(
    store: Store, method: str, part: str, sent: Json | None, caplog: pytest.LogCaptureFixture
) -> None:
    now = utc_now()
    await store.create(Summary("a", AgentStatus.PAUSED, now, now), [Entry('{"secret of the house": 1}')])
    answer = await Lab(store, agent_with()).client.call(method, f"/sessions/a{part}", send=sent)
    if method == "DELETE":  # It can be deleted all the same.
        assert answer.status == 204
        return
    assert (answer.status, answer.error) == (500, "internal")
    assert says_nothing_of_the_inside(answer)
    assert b"secret of the house" not in answer.body
    assert len(caplog.records) == 1


async def test_a_session_that_cannot_be_read_does_not_hide_the_others(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    await lab.asked("good")
    now = utc_now()
    await store.create(Summary("bad", AgentStatus.PAUSED, now, now), [Entry("not even JSON")])
    listed = (await lab.get("/sessions")).json["sessions"]
    assert {each["agent_id"] for each in listed} == {"good", "bad"}


async def test_a_damaged_row_is_an_internal_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with SqliteStore(tmp_path / "whyloop.db") as store:
        lab = Lab(store, agent_with("hi"))
        await lab.asked()
        with closing(sqlite3.connect(tmp_path / "whyloop.db", isolation_level=None)) as db:
            db.execute("UPDATE summaries SET summary = '{broken'")
        for path in ("/sessions", "/sessions/a"):
            answer = await lab.get(path)
            assert (answer.status, answer.error) == (500, "internal")
            assert says_nothing_of_the_inside(answer)
    assert len(caplog.records) == 2


def failing(error: Exception) -> Any:
    def fail(_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "options",
    [
        {"agent": failing(ConfigurationError("OPENAI_API_KEY is not set"))},
        {"agent": lambda _: "no agent"},
        {"access": failing(ConfigurationError("OPENAI_API_KEY is not set"))},
        {"access": lambda _: "ann"},
        {"access": failing(KeyError("OPENAI_API_KEY"))},
    ],
)
async def test_an_error_of_the_app_is_not_reported_as_the_clients(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    await Lab(store, agent_with()).made()
    lab = Lab(store, **{"agent": agent_with(), **options})
    for path, sent in (("/sessions", {}), ("/sessions/a/messages", {"text": "go"})):
        answer = await lab.post(path, sent)
        assert (answer.status, answer.error) == (500, "internal")
        assert says_nothing_of_the_inside(answer)
        assert b"OPENAI" not in answer.body
    assert len(caplog.records) == 2
    assert len((await store.sessions()).sessions) == 1


async def test_an_app_that_asks_for_patience_says_for_how_long() -> None:
    busy = HTTPException(503, "Come back later.", {"retry-after": "60"})
    answer = await Lab(MemoryStore(), access=failing(busy)).get("/sessions")
    assert (answer.status, answer.message, answer.headers["retry-after"]) == (503, "Come back later.", "60")


async def test_the_detail_of_an_app_s_refusal_becomes_text() -> None:
    refused = fastapi.HTTPException(401, {"code": 7})
    answer = await Lab(MemoryStore(), access=failing(refused)).get("/sessions")
    assert (answer.status, answer.message) == (401, "{'code': 7}")


async def test_a_person_whom_the_app_cannot_name_is_not_the_fault_of_the_client() -> None:
    def access(connection: HTTPConnection) -> Access:
        raise ConfigurationError("nobody is configured")

    agent = agent_with(call("pay", {"amount": 7}))
    lab = Lab(MemoryStore(), agent)
    path = await lab.asked()
    pending = (await lab.get(path)).json["pending_calls"][0]["id"]
    unknown = Lab(lab.store, agent, access=access)
    assert (await unknown.post(f"{path}/approve", {"question_id": pending})).status == 500
    assert len((await lab.get(path)).json["pending_calls"]) == 1
