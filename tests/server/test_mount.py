"""The server as a standalone app, and mounted in other apps."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    SimpleUser,
)
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from tests.server.streams_support import serving
from tests.server.support import Client, Json, Lab, agent_with, path_of
from whyloop.server import Access
from whyloop.stores import MemoryStore
from whyloop.testing import call


def lab_with(*replies: Any, **options: Any) -> Lab:
    return Lab(MemoryStore(), agent_with(*(replies or ("hi",))), **options)


async def works(client: Client, lab: Lab, agent_id: str = "a/b ü%") -> None:
    """All that a client does: over a path with parameters, one without, a stream and a WebSocket."""
    assert (await client.post("/sessions", {"agent_id": agent_id})).status == 201
    path = path_of(agent_id)
    assert (await client.post(f"{path}/messages", {"text": "go"})).status == 202
    await lab.rest()
    assert (await client.get(path)).json["session"]["agent_id"] == agent_id
    assert len((await client.get("/sessions")).json["sessions"]) == 1
    stream = await client.get(f"{path}/events", headers={"accept": "text/event-stream"}, until=b"completed")
    assert stream.headers["content-type"].startswith("text/event-stream")
    heard = await client.socket(f"{path}/events")
    assert heard[1]["type"] == "websocket.send"
    assert (await client.get("/nothing")).error == "not_found"
    await lab.server.close()


async def url_of(client: Client) -> str:
    servers: list[Json] = (await client.get("/openapi.json")).json["servers"]
    assert len(servers) == 1
    url: str = servers[0]["url"]
    return url


async def test_the_server_is_a_standalone_app() -> None:
    lab = lab_with()
    client = Client(lab.server)
    assert await url_of(client) == "/"
    await works(client, lab)


async def test_the_server_is_mounted_in_starlette() -> None:
    lab = lab_with()
    app = Starlette(
        routes=[Route("/", lambda _: JSONResponse("home")), Mount("/agents", lab.server)],
        lifespan=lab.server.lifespan,
    )
    client = Client(app, "/agents")
    assert await url_of(client) == "/agents"
    await works(client, lab)


@pytest.mark.parametrize("root", ["/api/v1/agents", "/sessions/sessions", "/a%20b/%C3%BC"])
async def test_the_server_is_mounted_within_mounts(root: str) -> None:
    lab = lab_with()
    app: ASGIApp = lab.server
    for part in ("/a b/ü" if "%" in root else root).split("/")[:0:-1]:
        app = Starlette(routes=[Mount(f"/{part}", app)])
    client = Client(app, root)
    assert await url_of(client) == root
    await works(client, lab)


async def test_the_server_is_mounted_below_a_name() -> None:
    seen: list[str] = []

    def access(connection: HTTPConnection) -> Access:
        seen.append(connection.path_params["tenant"])
        return Access("x", {"tenant": connection.path_params["tenant"]})

    lab = lab_with(access=access)
    app = Starlette(routes=[Mount("/{tenant}/agents", lab.server)])
    assert await url_of(Client(app, "/ann/agents")) == "/ann/agents"
    await works(Client(app, "/ann/agents"), lab)
    assert set(seen) == {"ann"}
    assert (await Client(app, "/bob/agents").get("/sessions")).json["sessions"] == []


async def test_two_servers_live_side_by_side() -> None:
    one, other = lab_with(), lab_with()
    app = Starlette(routes=[Mount("/one", one.server), Mount("/other", other.server)])
    await works(Client(app, "/one"), one)
    assert (await Client(app, "/other").get("/sessions")).json["sessions"] == []


# FastAPI


def guarded(lab: Lab, **options: Any) -> FastAPI:
    """An app that lets nobody in without a key, and tells the server whose it is."""
    app = FastAPI(lifespan=lab.server.lifespan, **options)

    @app.middleware("http")
    async def who(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        name = request.headers.get("x-api-key")
        if name is None:
            return JSONResponse({"detail": "who are you?"}, 401)
        request.state.user = name
        return await go_on(request)

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    app.mount("/agents", lab.server)
    return app


async def test_the_server_is_mounted_in_fastapi_behind_its_middleware() -> None:
    lab = lab_with(access=lambda each: Access(each.state.user, {"user": each.state.user}))
    app = guarded(lab)
    ann = Client(app, "/agents", {"x-api-key": "ann"})
    assert (await ann.post("/sessions", {"agent_id": "a"})).status == 201
    assert (await ann.get("/sessions/a")).json["session"]["metadata"] == {"user": "ann"}
    assert (await Client(app, "/agents", {"x-api-key": "bob"}).get("/sessions/a")).status == 404
    assert await url_of(ann) == "/agents"


async def test_fastapi_closes_the_server_with_itself() -> None:
    lab = lab_with()
    closed: list[bool] = []
    close = lab.server.close

    async def noted() -> None:
        closed.append(True)
        await close()

    lab.server.close = noted  # type: ignore[method-assign]
    async with serving(guarded(lab), seconds=5) as server, aiohttp.ClientSession() as http:
        headers = {"x-api-key": "ann"}
        async with http.get(f"{server.address}/agents/sessions", headers=headers) as response:
            assert (response.status, (await response.json())["sessions"]) == (200, [])
        async with http.get(f"{server.address}/agents/sessions") as response:
            assert response.status == 401
        async with http.get(f"{server.address}/hello", headers=headers) as response:
            assert await response.json() == "hello"
        assert not closed
    assert closed == [True]


# Behind a proxy


class Prefixed:
    """An app as uvicorn serves it with `--root-path`, or a proxy that says where it is."""

    def __init__(self, app: ASGIApp, root: str, strips: bool) -> None:
        self._app, self._root, self._strips = app, root, strips

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = {} if self._strips else {"path": self._root + scope["path"]}
        raw = {} if self._strips else {"raw_path": self._root.encode() + scope["raw_path"]}
        await self._app({**scope, "root_path": self._root, **path, **raw}, receive, send)


@pytest.mark.parametrize("strips", [True, False])
async def test_the_server_knows_the_path_that_a_proxy_has_for_it(strips: bool) -> None:
    lab = lab_with()
    client = Client(Prefixed(lab.server, "/behind/proxy", strips))
    assert await url_of(client) == "/behind/proxy"
    await works(client, lab)


async def test_a_mount_knows_the_path_that_a_proxy_has_for_it() -> None:
    lab = lab_with()
    app = Starlette(routes=[Mount("/agents", lab.server)])
    client = Client(Prefixed(app, "/behind", False), "/agents")
    assert await url_of(client) == "/behind/agents"
    await works(client, lab)


async def test_uvicorn_says_where_the_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_with()
    await lab.made("a/b")
    monkeypatch.setattr(uvicorn, "Config", partial(uvicorn.Config, root_path="/root"))
    async with serving(lab.server, seconds=5) as server, aiohttp.ClientSession() as http:
        async with http.get(f"{server.address}/openapi.json") as response:
            assert (await response.json())["servers"] == [{"url": "/root"}]
        async with http.get(server.address + "/sessions") as response:
            assert len((await response.json())["sessions"]) == 1


async def test_a_path_without_its_raw_form_is_matched() -> None:
    lab = lab_with()

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        await lab.server({**scope, "raw_path": None}, receive, send)

    await works(Client(plain), lab, "a ü%41")


# Who it is


class Basic(AuthenticationBackend):
    """Knows everybody who says a name."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        said = conn.headers.get("authorization")
        if said is None:
            return None
        try:
            name = base64.b64decode(said.removeprefix("Basic ")).decode().partition(":")[0]
        except ValueError:
            raise AuthenticationError("that is no name") from None
        return AuthCredentials(["authenticated"]), SimpleUser(name)


def basic(name: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{name}:x'.encode()).decode()}"}


async def test_whom_the_app_knows_sees_their_own_and_decides_in_their_name() -> None:
    lab = lab_with(
        call("pay", {"amount": 7}),
        "done",
        access=lambda each: Access(
            each.user.display_name, {"user": each.user.display_name}, {"send", "decide", "inspect"}
        ),
    )
    app = Starlette(
        routes=[Mount("/agents", lab.server)],
        middleware=[Middleware(AuthenticationMiddleware, backend=Basic())],
    )
    ann, bob = (Client(app, "/agents", basic(name)) for name in ("ann", "bob"))
    await ann.post("/sessions", {"agent_id": "a"})
    await ann.post("/sessions/a/messages", {"text": "go"})
    await lab.rest()
    [pending] = (await ann.get("/sessions/a")).json["pending_calls"]
    sent = {"question_id": pending["id"], "by": "the boss"}
    assert (await bob.post("/sessions/a/approve", sent)).status == 404
    assert (await ann.post("/sessions/a/approve", sent)).status == 200
    await ann.post("/sessions/a/resume")
    await lab.rest()
    [step, _] = (await ann.get("/sessions/a/trace")).json["steps"]
    assert [each["by"] for each in step["tool_calls"][0]["approvals"]] == ["ann"]
    refused = await bob.socket("/sessions/a/events")
    assert refused[1]["code"] == 4404
    assert (await ann.socket("/sessions/a/events"))[1]["type"] == "websocket.send"
    await lab.server.close()
