"""Paths, queries and methods, and the answers to unknown ones."""

from __future__ import annotations

import pytest

from tests.server.support import Lab

pytestmark = pytest.mark.usefixtures("nothing_is_logged")


# Queries


@pytest.mark.parametrize(
    ("path", "query", "word"),
    [
        ("/sessions", "limit=0", "limit"),
        ("/sessions", "limit=201", "limit"),
        ("/sessions", "limit=-1", "limit"),
        ("/sessions", "limit=ten", "limit"),
        ("/sessions", "limit=1.0", "limit"),
        ("/sessions", "limit=%2B5", "limit"),
        ("/sessions", "limit=1_0", "limit"),
        ("/sessions", "limit=%D9%A3", "limit"),
        ("/sessions", "limit=null", "limit"),
        ("/sessions", f"limit={'9' * 5000}", "limit"),
        ("/sessions", "limit=1&limit=1", "repeated"),
        ("/sessions", "status=completed&status=failed", "repeated"),
        ("/sessions", "status=done", "status"),
        ("/sessions", "status=null", "status"),
        ("/sessions", "status=%FF", "status"),
        ("/sessions", "stop_reason=why", "stop_reason"),
        ("/sessions", "started_after=yesterday", "started_after"),
        ("/sessions", "started_after=0", "started_after"),
        ("/sessions", "started_after=null", "started_after"),
        ("/sessions", "started_after=2026-01-01T00:00:00", "timezone"),
        ("/sessions", "started_before=2026-01-01T00:00:00+00:00", "started_before"),
        ("/sessions", "after=nowhere", "invalid cursor"),
        ("/sessions/a/events", "limit=0", "limit"),
        ("/sessions/a/events", "limit=1001", "limit"),
        ("/sessions/a/events", "after=-1", "invalid cursor"),
        ("/sessions/a/events", "after=LATEST", "invalid cursor"),
        ("/sessions/a/events", "after=x:", "invalid cursor"),
        ("/sessions/a/events", "after=1.5", "invalid cursor"),
        ("/sessions/a/events", f"after={'9' * 30}", "invalid cursor"),
        ("/sessions/a/events", "after=%D9%A3", "invalid cursor"),
        ("/sessions/a/events", "after=%FF", "invalid cursor"),
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(lab: Lab, path: str, query: str, word: str) -> None:
    answer = await lab.get(path, query=query)
    assert (answer.status, answer.error) == (400, "bad_request")
    assert word in answer.message


@pytest.mark.parametrize("query", ["token=x", "=", "status=&limit=&after=&metadata=", "x"])
async def test_empty_parts_of_a_query_are_ignored_and_unknown_ones_outside_of_lists(
    lab: Lab, query: str
) -> None:
    for path in ("/sessions/a", "/sessions/a/events", *(["/sessions"] if query != "x" else [])):
        assert (await lab.get(path, query=query)).json == (await lab.get(path)).json


@pytest.mark.parametrize("place", ["nowhere", "-1"])
async def test_a_stream_from_nowhere_is_refused_before_it_begins(lab: Lab, place: str) -> None:
    answer = await lab.get(
        "/sessions/a/events", query={"after": place}, headers={"accept": "text/event-stream"}
    )
    assert (answer.status, answer.error) == (400, "bad_request")
    answer = await lab.get(
        "/sessions/a/events", headers={"accept": "text/event-stream", "last-event-id": "nowhere"}
    )
    assert (answer.status, answer.error) == (400, "bad_request")


# Paths and methods


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "//",
        "/session",
        "/Sessions",
        "/sessions/",
        "//sessions",
        "/sessions//",
        "/sessions//messages",
        "/sessions/a/",
        "/sessions/a//messages",
        "/sessions/a/messages/",
        "/sessions/a/nothing",
        "/sessions/a/b",
        "/openapi.json/",
        "/openapi",
        "/%6Fpenapi.json%2F",
    ],
)
async def test_an_unknown_path_is_not_found(lab: Lab, path: str) -> None:
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        answer = await lab.client.call(method, path)
        assert (answer.status, answer.error) == (404, "not_found")


@pytest.mark.parametrize(
    "agent_id",
    ["b", "%", "%zz", "%00", "a%00", "%FF", "%C3", "%ED%A0%80", "%2e%2e", "x" * 501, "x" * 50_000, "\xff"],
)
async def test_a_session_that_cannot_be_is_not_there(lab: Lab, agent_id: str) -> None:
    for part in ("", "/messages", "/trace", "/events"):
        answer = await lab.get(f"/sessions/{agent_id}{part}")
        assert (answer.status, answer.error) == (404, "session_not_found")
    for part, sent in (
        ("stop", {}),
        ("messages", {"text": "go"}),
        ("deny", {"question_id": "x"}),
        ("fork", {}),
    ):
        answer = await lab.post(f"/sessions/{agent_id}/{part}", sent)
        assert (answer.status, answer.error) == (404, "session_not_found")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/sessions", "GET, POST"),
        ("/sessions/a", "GET, DELETE"),
        ("/sessions/nobody", "GET, DELETE"),
        ("/sessions/a/messages", "GET, POST"),
        ("/sessions/a/stop", "POST"),
        ("/sessions/a/events", "GET"),
        ("/openapi.json", "GET"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "QUERY"])
async def test_a_wrong_method_names_the_allowed_ones(lab: Lab, path: str, allowed: str, method: str) -> None:
    answer = await lab.client.call(method, path)
    assert answer.status == 405
    assert answer.headers["allow"] == allowed


async def test_only_what_can_be_read_has_a_head(lab: Lab) -> None:
    assert (await lab.client.call("HEAD", "/sessions/a")).status == 200
    assert (await lab.client.call("HEAD", "/openapi.json")).status == 200
    assert (await lab.client.call("HEAD", "/sessions/b")).status == 404
    assert (await lab.client.call("HEAD", "/sessions/a/stop")).status == 405


async def test_the_head_of_a_stream_comes_to_an_end(lab: Lab) -> None:
    stream = {"accept": "text/event-stream"}
    answer = await lab.client.call("HEAD", "/sessions/a/events", headers=stream, until=b"nothing")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")
