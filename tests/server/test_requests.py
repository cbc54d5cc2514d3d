"""Invalid requests get a clear answer, are never a failure of the server, and are not logged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.server.streams_support import serving
from tests.server.support import Answer, Lab, agent_with, check, path_of
from whyloop.server.requests import LARGEST_BODY
from whyloop.stores import MemoryStore, Store

pytestmark = pytest.mark.usefixtures("nothing_is_logged")


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


async def refused(lab: Lab, path: str, body: bytes, **options: Any) -> Answer:
    """The answer to a body that makes no sense, which changed nothing."""
    before = await lab.store.read("a")
    answer = await lab.client.call("POST", path, body=body, **options)
    assert await lab.store.read("a") == before
    assert len((await lab.store.sessions()).sessions) == 1
    return answer


# Bodies


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"}",
        b" ",
        b"nonsense",
        b"null",
        b"[]",
        b'"text"',
        b"7",
        b"{}{}",
        b"{'text': 'go'}",
        b'{"text": "go",}',
        b'{"text": NaN}',
        b'{"text": "\xed\xa0\x80"}',
        b'{"text": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b"\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
@pytest.mark.parametrize("path", ["/sessions", "/sessions/a/messages", "/sessions/a/approve"])
async def test_a_body_that_is_not_a_json_object_is_refused(lab: Lab, path: str, body: bytes) -> None:
    answer = await refused(lab, path, body)
    assert (answer.status, answer.error) == (400, "bad_request")
    assert answer.message


@pytest.mark.parametrize(
    ("path", "sent", "where"),
    [
        ("/sessions", {"agent_id": 7}, "agent_id"),
        ("/sessions", {"agent_id": ""}, "agent_id"),
        ("/sessions", {"agent_id": "x" * 501}, "agent_id"),
        ("/sessions", {"metadata": None}, "metadata"),
        ("/sessions", {"metadata": [1]}, "metadata"),
        ("/sessions", {"id": "b"}, "unknown field 'id': use agent_id, metadata"),
        ("/sessions/a/messages", {}, "text"),
        ("/sessions/a/messages", {"text": ""}, "text"),
        ("/sessions/a/messages", {"text": None}, "text"),
        ("/sessions/a/messages", {"text": ["go"]}, "text"),
        ("/sessions/a/messages", {"text": "go", "role": "system"}, "role"),
        ("/sessions/a/stop", {"reason": 7}, "reason"),
        ("/sessions/a/stop", {"reason": "x" * 10_001}, "reason"),
        ("/sessions/a/approve", {}, "question_id"),
        ("/sessions/a/approve", {"question_id": ""}, "question_id"),
        ("/sessions/a/approve", {"question_id": 7}, "question_id"),
        ("/sessions/a/approve", {"question_id": "x", "arguments": []}, "arguments"),
        ("/sessions/a/approve", {"question_id": "x", "by": "x" * 201}, "by"),
        ("/sessions/a/approve", {"question_id": "x", "reason": "because"}, "reason"),
        ("/sessions/a/deny", {"question_id": "x", "reason": None}, "reason"),
        ("/sessions/a/resume", {"grant": 3}, "grant"),
        ("/sessions/a/resume", {"grant": {"steps": -1}}, "steps"),
        ("/sessions/a/resume", {"grant": {"steps": 1.5}}, "steps"),
        ("/sessions/a/resume", {"grant": {"steps": True}}, "steps"),
        ("/sessions/a/resume", {"grant": {"tokens": 10**11}}, "tokens"),
        ("/sessions/a/resume", {"grant": {"seconds": 1e300}}, "seconds"),
        ("/sessions/a/resume", {"grant": {"minutes": 1}}, "minutes"),
        ("/sessions/a/resume", {"grant": {"usd": -1}}, "usd"),
        ("/sessions/a/resume", {"grant": {"usd": "much"}}, "usd"),
        ("/sessions/a/resume", {"grant": {"usd": "1e9"}}, "usd"),
        ("/sessions/a/resume", {"grant": {"usd": 1e300}}, "usd"),
    ],
)
async def test_a_field_of_the_wrong_type_is_refused_by_its_name(
    lab: Lab, path: str, sent: object, where: str
) -> None:
    answer = await refused(lab, path, json.dumps(sent).encode())
    assert (answer.status, answer.error) == (400, "bad_request")
    assert where in answer.message


@pytest.mark.parametrize("path", ["/sessions", "/sessions/a/approve"])
@pytest.mark.parametrize("depth", [100, 500, 900, 980, 1000, 5000])
async def test_data_nested_too_deeply_to_be_shown_is_not_stored(lab: Lab, path: str, depth: int) -> None:
    pending = (await lab.get("/sessions/a")).json["pending_calls"][0]["id"]
    name = '"metadata"' if path == "/sessions" else f'"question_id":"{pending}","arguments"'
    answer = await refused(lab, path, b"{%s:%s}" % (name.encode(), nested(depth)))
    assert (answer.status, answer.error) == (400, "bad_request")
    assert "levels deep" in answer.message


async def test_deeply_nested_data_is_stored_and_shown(lab: Lab) -> None:
    body = b'{"agent_id":"deep","metadata":%s}' % nested(90)
    assert (await lab.client.call("POST", "/sessions", body=body)).status == 201
    shown = (await lab.get("/sessions/deep")).json["session"]["metadata"]
    assert json.dumps(shown).count("a") == 90
    assert (await lab.get("/sessions")).status == 200


async def test_a_number_may_be_as_long_as_json_allows(lab: Lab) -> None:
    for digits in (19, 20, 400, 4000, 5000, 100_000):
        body = b'{"metadata": {"n": %s}}' % (b"9" * digits)
        answer = await lab.client.call("POST", "/sessions", body=body)
        assert answer.status in (201, 400), answer
    assert (await lab.get("/sessions")).status == 200


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/xml"]
)
async def test_a_body_that_is_not_declared_as_json_is_refused(lab: Lab, kind: str) -> None:
    """A form of another site can send anything but this."""
    answer = await refused(lab, "/sessions/a/stop", b"{}", headers={"content-type": kind})
    assert (answer.status, answer.error) == (415, "not_json")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_a_body_that_is_declared_as_json_is_read(lab: Lab, kind: str) -> None:
    answer = await lab.client.call("POST", "/sessions", body=b"{}", headers={"content-type": kind})
    assert answer.status == 201


async def test_a_body_is_refused_as_soon_as_it_is_too_large(lab: Lab) -> None:
    read = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        yield b'{"text": "'
        while True:
            read += 100_000
            yield b"x" * 100_000

    told = pieces()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": next(told), "more_body": True}

    heard: list[Any] = []

    async def send(message: object) -> None:
        heard.append(message)

    scope = lab.client.scope("/sessions/a/messages", "", {"content-type": "application/json"})
    await lab.server({**scope, "type": "http", "method": "POST"}, receive, send)
    assert heard[0]["status"] == 413
    assert b"1,000,000 bytes" in heard[1]["body"]
    assert read <= LARGEST_BODY + 100_000


async def test_a_body_of_the_maximum_size_is_accepted(lab: Lab) -> None:
    frame = b'{"text": ""}'
    body = b'{"text": "%s"}' % (b"x" * (LARGEST_BODY - len(frame)))
    assert (await lab.client.call("POST", "/sessions/a/messages", body=body)).status == 202
    await lab.rest()
    too_large = body[:-2] + b'x"}'
    refusal = await lab.client.call("POST", "/sessions/a/messages", body=too_large)
    assert (refusal.status, refusal.error) == (413, "too_large")


# The same over a real connection


async def test_odd_requests_arrive_over_http_as_they_do_here(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab(MemoryStore(), agent_with())
    ids = ["a/b", "ü%2F?#", "x" * 500]
    for agent_id in ids:
        await lab.made(agent_id)
    async with serving(lab.server, seconds=5) as server, aiohttp.ClientSession() as http:

        async def asked(method: str, path: str, **options: Any) -> Answer:
            url = URL(server.address + path, encoded=True)
            async with http.request(method, url, **options) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                answer = Answer(response.status, headers, await response.read())
                if method != "HEAD":
                    assert answer.headers["content-type"] == "application/json"
                return answer

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield b"x" * 100_000

        for agent_id in ids:
            answer = await asked("GET", path_of(agent_id))
            assert answer.json["session"]["agent_id"] == agent_id
        head = await asked("HEAD", path_of("a/b"))
        assert (head.status, head.body) == (200, b"")
        assert (await asked("GET", "/sessions/%FF%FE")).status == 404
        assert (await asked("GET", "//sessions")).status == 404
        assert (await asked("DELETE", "/sessions")).headers["allow"] == "GET, POST"
        assert (await asked("POST", "/sessions", data=BytesIO(b"x" * 2_000_000))).status == 413
        assert (await asked("POST", "/sessions", data=chunks())).status == 413
        assert (await asked("GET", "/sessions?limit=%FF")).status == 400
        assert await _spoken(server.port, b"GET /sessions/\xc3\xbc HTTP/1.1") in (400, 404)
        assert await _spoken(server.port, b"GET * HTTP/1.1") == 404
        check(None, await asked("GET", "/nothing"))


async def _spoken(port: int, line: bytes) -> int:
    """The status that comes back for a line that no client would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(line + f"\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())
    said = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return int(said.split()[1])


async def test_half_a_character_becomes_the_sign_for_one_that_cannot_be_shown(lab: Lab) -> None:
    sent = b'{"agent_id": "half", "metadata": {"a": "x\\ud83dy", "b": "\\ud83d\\ude00"}}'
    answer = await lab.client.call(
        "POST", "/sessions", body=sent, headers={"content-type": "application/json"}
    )
    assert answer.json["session"]["metadata"] == {"a": "x\ufffdy", "b": "\U0001f600"}
    broken = b'{"agent_id": "\\ud83d", "metadata": NaN}'
    answer = await lab.client.call(
        "POST", "/sessions", body=broken, headers={"content-type": "application/json"}
    )
    assert (answer.status, answer.error) == (400, "bad_request")


async def test_a_refusal_says_where_it_is_wrong_and_what_there_is_to_choose_from(lab: Lab) -> None:
    answer = await lab.get("/sessions", query="status=done")
    assert answer.message.startswith("status: invalid enum value 'done': choose from pending, in_progress")
    assert (await lab.get("/sessions", query="limit=0")).message == "limit: expected int >= 1"
    assert (await lab.get("/sessions", query=f"limit={10**40}")).message == "limit: expected int <= 200"
    assert (await lab.get("/sessions", query=f"limit=-{10**40}")).message == "limit: expected int >= 1"
    assert (await lab.get("/sessions", query="limit=x")).message == "invalid limit 'x': use a whole number"
    answer = await lab.get("/sessions", query="waiting=yes")
    assert answer.message == "invalid waiting 'yes': use true or false"
    assert (await lab.post("/sessions/a/deny", {})).message == "this is missing: question_id"


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/sessions", "status, stop_reason"),
        ("/stats", "status, stop_reason"),
        ("/questions", "limit"),
        ("/what-if", "status, stop_reason"),
        ("/sessions/a/what-if", "max_steps, max_tokens, timeout"),
        ("/sessions/a/messages", "after, before, limit"),
        ("/sessions/a/trace", "after, limit, brief"),
    ],
)
async def test_an_unknown_parameter_of_a_list_is_refused_and_not_ignored(
    lab: Lab, path: str, known: str
) -> None:
    await lab.post("/sessions", {"agent_id": "a"})
    answer = await lab.get(path, query="max_step=3")
    assert (answer.status, answer.error) == (400, "bad_request")
    assert answer.message.startswith(f"unknown parameter 'max_step': use {known}")
    answer = await lab.get(path, query="token=secret")  # For the function that admits clients.
    assert (answer.status, "parameter" in answer.body.decode()) != (400, True)


async def test_metadata_that_would_burden_every_list_is_refused(lab: Lab) -> None:
    many = {str(number): number for number in range(51)}
    answer = await lab.post("/sessions", {"metadata": many})
    assert (answer.status, answer.error) == (400, "bad_request")
    answer = await lab.post("/sessions", {"metadata": {"note": "x" * 20_000}})
    assert (answer.status, answer.error) == (413, "too_large")
    wanted = json.dumps({str(number): number for number in range(21)})
    answer = await lab.get("/sessions", query={"metadata": wanted})
    assert (answer.status, "up to 20" in answer.message) == (400, True)


async def test_the_host_of_a_runner_is_not_shown(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    path = await lab.made()
    await store.acquire("a", "host.internal:4711", 12.4)
    answer = await lab.post(f"{path}/messages", {"text": "go"})
    assert (answer.status, answer.error, answer.headers["retry-after"]) == (409, "session_running", "13")
    shown = await lab.get(path)
    assert shown.json["session"]["is_running"] is True
    assert not any(b"host.internal" in each.body for each in (answer, shown, await lab.get("/sessions")))
