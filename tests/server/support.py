"""A server to ask, and a client in this process that holds every answer against the document of the API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jsonschema import Draft202012Validator
from starlette.types import ASGIApp, Message

from tests.support import echo, scripted
from whyloop import Agent, tool
from whyloop.broadcasting import PusherBroadcaster
from whyloop.server import AgentServer
from whyloop.server.openapi import document
from whyloop.server.operations import OPERATIONS
from whyloop.stores import Store
from whyloop.testing import Reply
from whyloop.wire.envelope import NUMBERED

DOCUMENT = document(OPERATIONS)
# What the app around the server may answer, and what nobody plans.
ANYWHERE = (401, 421, 500)
Json = dict[str, Any]
# Every operation, on a session "a" where it is on one, and what it takes.
EVERY: list[tuple[str, str, Json | None]] = [
    ("GET", "/sessions", None),
    ("POST", "/sessions", {}),
    ("GET", "/sessions/a", None),
    ("GET", "/sessions/a/messages", None),
    ("GET", "/sessions/a/trace", None),
    ("GET", "/sessions/a/steps/1", None),
    ("GET", "/sessions/a/executions", None),
    ("GET", "/sessions/a/snapshot", None),
    ("GET", "/sessions/a/what-if", None),
    ("GET", "/sessions/a/events", None),
    ("POST", "/sessions/a/messages", {"text": "go"}),
    ("POST", "/sessions/a/stop", {}),
    ("POST", "/sessions/a/approve", {"question_id": "x"}),
    ("POST", "/sessions/a/deny", {"question_id": "x"}),
    ("POST", "/sessions/a/resume", {}),
    ("POST", "/sessions/a/fork", {}),
    ("PATCH", "/sessions/a/metadata", {"metadata": {"ticket": 42}}),
    ("DELETE", "/sessions/a", None),
]


@tool(needs_approval=True)
async def pay(amount: int, password: str = "") -> str:
    """Pays, if a person agrees."""
    return f"paid {amount}"


def agent_with(*replies: Reply | str | BaseException, **options: Any) -> Agent:
    return scripted(*replies, **{"tools": [echo, pay], **options})


class Answer:
    """What a server answered."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:500]!r}"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The word for what went wrong."""
        word: str = self.json["error"]["type"]
        return word

    @property
    def message(self) -> str:
        words: str = self.json["error"]["message"]
        return words


class Client:
    """Somebody who asks a server, below where it is mounted."""

    def __init__(
        self,
        app: ASGIApp,
        root: str = "",
        headers: Mapping[str, str] | None = None,
        paths: Mapping[str, Any] = DOCUMENT["paths"],
    ) -> None:
        self._app = app
        self._root = root
        self._headers = dict(headers or {})
        self._paths = paths

    def scope(self, path: str, query: Mapping[str, object] | str, headers: Mapping[str, str]) -> Json:
        words = query if isinstance(query, str) else urlencode(query)
        raw = self._root + path
        sent = {"host": "testserver", **self._headers, **headers}
        return {
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "server": ("testserver", 80),
            "client": ("127.0.0.1", 5000),
            "path": unquote(raw),
            "raw_path": raw.encode("latin-1"),
            "root_path": "",
            "query_string": words.encode("latin-1"),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items()],
            "state": {},
        }

    async def call(
        self,
        method: str,
        path: str,
        *,
        send: object = None,
        body: bytes | Iterable[bytes] | None = None,
        query: Mapping[str, object] | str = "",
        headers: Mapping[str, str] | None = None,
        until: bytes | tuple[bytes, ...] | None = None,
    ) -> Answer:
        """Ask, and check the answer; `until` is what a stream is listened to for, one of several."""
        given = dict(headers or {})
        if send is not None:
            body = json.dumps(send).encode()
        if body is not None and not any(name.lower() == "content-type" for name in given):
            given["content-type"] = "application/json"
        pieces = [body] if isinstance(body, bytes) else list(body or ())
        scope = {**self.scope(path, query, given), "type": "http", "method": method}
        exchange = _Exchange(pieces, (until,) if isinstance(until, bytes) else until or ())
        async with asyncio.timeout(10):
            await self._app(scope, exchange.receive, exchange.send)
        answer = Answer(exchange.status, exchange.headers, b"".join(exchange.body))
        if until is None and (path, answer.status) != ("/openapi.json", 200):
            check(_described(self._paths, method, path), answer)
        return answer

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.call("GET", path, **options)

    async def post(self, path: str, send: object = None, **options: Any) -> Answer:
        return await self.call("POST", path, send=send, **options)

    async def delete(self, path: str, **options: Any) -> Answer:
        return await self.call("DELETE", path, **options)

    async def socket(
        self,
        path: str,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        hear: int = 1,
        offer: Iterable[str] = (),
        denies: bool = False,
    ) -> list[Message]:
        """What comes over a WebSocket, up to so many messages or its end."""
        scope = {**self.scope(path, query, headers or {}), "type": "websocket", "subprotocols": [*offer]}
        scope["extensions"] = {"websocket.http.response": {}} if denies else {}
        heard: list[Message] = []
        gone = asyncio.Event()
        told = iter([{"type": "websocket.connect"}])

        async def receive() -> Message:
            for message in told:
                return message
            await gone.wait()
            return {"type": "websocket.disconnect", "code": 1000}

        async def send(message: Message) -> None:
            heard.append(message)
            if sum(each["type"] == "websocket.send" for each in heard) >= hear:
                gone.set()

        async with asyncio.timeout(10):
            await self._app(scope, receive, send)
        return heard


class _Exchange:
    """One request and its answer, as they pass between an app and its server."""

    def __init__(self, pieces: list[bytes], until: tuple[bytes, ...]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self._pieces = pieces or [b""]
        self._until = until
        self._over = asyncio.Event()

    async def receive(self) -> Message:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            return
        latest = b"".join(self.body[-1:]) + message["body"]
        self.body.append(message["body"])
        if any(each in latest for each in self._until):
            self._over.set()


class Lab:
    """A server over a store, and somebody who asks it."""

    def __init__(self, store: Store, agent: Any = None, **options: Any) -> None:
        self.store = store
        self.server = AgentServer(store, agent, **{"public": "access" not in options, **options})
        paths = document(self.server._operations)["paths"]
        self.client = Client(self.server, paths=paths)
        self.get, self.post, self.delete = self.client.get, self.client.post, self.client.delete

    async def made(self, agent_id: str = "a", **metadata: object) -> str:
        """A new session; its path."""
        answer = await self.post("/sessions", {"agent_id": agent_id, "metadata": metadata})
        assert answer.status == 201, answer
        return path_of(agent_id)

    async def asked(self, agent_id: str = "a", text: str = "go", **metadata: object) -> str:
        """A new session in which a question was worked on; its path."""
        path = await self.made(agent_id, **metadata)
        answer = await self.post(f"{path}/messages", {"text": text})
        assert answer.status == 202, answer
        await self.rest()
        return path

    async def rest(self) -> None:
        """Wait until nothing runs."""
        tasks = self.server._api.runs._running
        if tasks:
            await asyncio.wait(set(tasks), timeout=10)
        assert not tasks


class Beside:
    """A transport that keeps what it gets."""

    def __init__(self) -> None:
        self.envelopes: list[Json] = []

    @property
    def numbered(self) -> list[Json]:
        return [each for each in self.envelopes if each["event"] in NUMBERED]

    def broadcast(self, event: Mapping[str, Any]) -> None:
        self.envelopes.append(dict(event))

    def broadcast_batch(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            self.broadcast(event)


def reverb(channel: str = "private-agent.{session_id}") -> PusherBroadcaster:
    """A transport to a server that is never asked."""
    return PusherBroadcaster("1", "key", "secret", base_url="http://127.0.0.1:9", channel=channel)


def path_of(agent_id: str) -> str:
    return f"/sessions/{quote(agent_id, safe='')}"


# The document of the API


def check(described: Json | None, answer: Answer) -> None:
    """The answer is what the document says of an operation, or that there is none."""
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    if answer.status == 204:
        assert described is not None
        assert ("204" in described["responses"], answer.body) == (True, b"")
        return
    media_type = answer.headers["content-type"].partition(";")[0]
    if media_type != "application/json":
        assert described is not None
        assert list(described["responses"][str(answer.status)]["content"]) == [media_type]
        return
    kind = "Refusal"
    if described is None:
        assert answer.status in (404, 405, *ANYWHERE), answer
    elif answer.status not in ANYWHERE:
        assert str(answer.status) in described["responses"], answer
        named = described["responses"][str(answer.status)].get("headers", {})
        assert ("etag" in answer.headers) == ("ETag" in named)
        assert answer.status != 503 or ("retry-after" in answer.headers) == ("Retry-After" in named)
        content = described["responses"][str(answer.status)]["content"]
        kind = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    problems = [error.message[:500] for error in validator(kind).iter_errors(answer.json)]
    assert not problems, (problems, answer)


def _described(paths: Mapping[str, Any], method: str, path: str) -> Json | None:
    name = "get" if method == "HEAD" else method.lower()
    for template, operations in paths.items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) and name in operations:
            found: Json = operations[name]
            return found
    return None


@cache
def validator(kind: str) -> Draft202012Validator:
    """What knows whether data is of one of the document's schemas."""
    schema = {"$ref": f"#/components/schemas/{kind}", "components": DOCUMENT["components"]}
    return Draft202012Validator(schema)
