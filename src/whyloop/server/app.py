"""The server: an ASGI app of its own, or mounted in one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, MutableMapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

from whyloop.errors import ConfigurationError

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope as AsgiScope, Send
    from starlette.websockets import WebSocket
except ImportError as error:
    raise ConfigurationError(f'the server needs Starlette: pip install "whyloop[server]" ({error})') from None

from whyloop.broadcasting.adapter import AgentEventEnvelopeAdapter, CanBroadcastAgentEvents
from whyloop.broadcasting.event_log import EventLog
from whyloop.broadcasting.fan_out import FanOut
from whyloop.loop.agent import Agent
from whyloop.server.access import Scope, refuse_origin, scope_of
from whyloop.server.api import Api, AuthorizesChannels, Call, ChooseAgent, Who
from whyloop.server.openapi import document
from whyloop.server.operations import OPERATIONS, EventQuery, Operation
from whyloop.server.problems import BadRequestError, answer, refusal, told_of
from whyloop.server.reading import body_of, query_of
from whyloop.server.routing import match, segments_of
from whyloop.server.streams import event_stream, web_socket
from whyloop.stores.store import Store
from whyloop.wire.broadcast_config import BroadcastConfig


class AgentServer:
    """Sessions of a store over HTTP, and what is told of them as it happens.

    `agent` runs what clients ask for; where sessions need different ones it is a function from a session,
    as it is listed, to its agent. Without an agent the server shows and decides, and runs nothing.

    `scope` says what a client may see: it gets the connection, with whatever your middleware found out
    about it, and returns the metadata that all its sessions have, such as `{"user": "ann"}`. It may raise
    Starlette's `HTTPException`. `who` names the person who approves and denies.

    Envelopes are kept in the store; `also` gets each of them too. For a `PusherBroadcaster` among these the
    server has the route at which subscribers of its private channels ask for leave, `/broadcasting/auth`.
    Pages of other sites are refused unless they are among the `origins`.
    """

    def __init__(
        self,
        store: Store,
        agent: Agent | ChooseAgent | None = None,
        *,
        config: BroadcastConfig | None = None,
        also: Iterable[CanBroadcastAgentEvents] = (),
        scope: Scope | None = None,
        who: Who | None = None,
        origins: Collection[str] = (),
        close_seconds: float = 10.0,
    ) -> None:
        if not isinstance(store, Store):
            raise ConfigurationError(f"a server shows the sessions of a store, not of {store!r:.80}")
        if agent is not None and not isinstance(agent, Agent) and not callable(agent):
            raise ConfigurationError(
                f"a server needs an Agent or a function that finds one, not {agent!r:.80}"
            )
        if isinstance(origins, str):
            raise ConfigurationError(f"origins are a list, such as [{origins!r:.80}], and not one text")
        also = tuple(also)
        log = EventLog(store)
        events = AgentEventEnvelopeAdapter(FanOut(log, *also), config)
        channels = tuple(each for each in also if isinstance(each, AuthorizesChannels))
        self._api = Api(store, _chooser(agent), log, events, who, channels)
        there = {None, "agent" if agent is not None else None, "channels" if channels else None}
        self._operations = tuple(each for each in OPERATIONS if each.needs in there)
        self._scope = scope
        self._origins = origins
        self._close_seconds = close_seconds

    @property
    def events(self) -> EventLog:
        """What is told of the sessions, for whoever wants to follow it beside the server's clients."""
        return self._api.log

    async def close(self) -> None:
        """End what runs and those who follow, and keep what is still to be kept. The store stays open.

        A run ends after its step, or in the middle of it after `close_seconds`; it can be resumed.
        """
        await self._api.runs.close(self._close_seconds)
        await self._api.log.close()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """For the app that this one is mounted in: `FastAPI(lifespan=server.lifespan)`."""
        try:
            yield
        finally:
            await self.close()

    # ASGI

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                request = Request(scope, receive)
                response = await self._responded(request)
                await response(scope, receive, send)
            case "websocket":
                await self._socket(WebSocket(scope, receive, send))
            case "lifespan":
                await self._live(receive, send)

    async def _responded(self, request: Request) -> Response:
        try:
            return await self._response(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return refusal(error)

    async def _response(self, request: Request) -> Response:
        segments = segments_of(request.scope)
        if segments == ("openapi.json",):
            if request.method not in ("GET", "HEAD"):
                raise _not_possible(request.method, ["GET"])
            return answer(_document(self._operations, request.scope.get("root_path", "")))
        operation, found = self._operation(request.method, segments)
        if request.method == "POST":
            refuse_origin(request, self._origins)
        call = Call(
            connection=request,
            within=await scope_of(request, self._scope),
            query=query_of(request, operation.query),
            body=await body_of(request, operation.takes, is_form=operation.is_form),
            **found,
        )
        if operation.has_stream and _wants_stream(request):
            await self._api.check(call)
            after = request.headers.get("last-event-id") or call.query.after
            seen = await self._api.log.seen(call.agent_id, after)
            return event_stream(self._api.log, call.agent_id, seen)
        return answer(await getattr(self._api, operation.name)(call), operation.status)

    def _operation(self, method: str, segments: tuple[str, ...]) -> tuple[Operation, dict[str, str]]:
        allowed = []
        for operation in self._operations:
            found = match(operation.path, segments)
            if found is not None:
                if operation.method == method or (operation.method, method) == ("GET", "HEAD"):
                    return operation, found
                allowed.append(operation.method)
        others = [each for each in OPERATIONS if each.needs == "agent" and each not in self._operations]
        if any(each.method == method and match(each.path, segments) is not None for each in others):
            raise _not_possible(f"this server runs no agent, so {method}", allowed)
        if allowed:
            raise _not_possible(method, allowed)
        raise BadRequestError("there is nothing here: /openapi.json says what there is", 404, "not_found")

    async def _socket(self, websocket: WebSocket) -> None:
        try:
            refuse_origin(websocket, self._origins)
            operation, found = self._operation("GET", segments_of(websocket.scope))
            if not operation.has_stream:
                raise BadRequestError("there is no WebSocket here", 404, "not_found")
            query: EventQuery = query_of(websocket, operation.query)
            call = Call(connection=websocket, within=await scope_of(websocket, self._scope), **found)
            await self._api.check(call)
            seen = await self._api.log.seen(call.agent_id, query.after)
        except Exception as error:
            # Browsers tell a page why a connection was closed, and not why one was refused.
            status, problem = told_of(error)
            await websocket.accept()
            await websocket.close(4000 + status, problem.message.encode()[:120].decode(errors="ignore"))
            return
        await web_socket(websocket, self._api.log, call.agent_id, seen)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message: MutableMapping[str, Any] = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


_document = lru_cache(maxsize=8)(document)


def _wants_stream(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def _not_possible(method: str, allowed: Iterable[str]) -> HTTPException:
    return HTTPException(405, f"{method} is not possible here", {"allow": ", ".join(allowed)})


def _chooser(agent: Agent | ChooseAgent | None) -> ChooseAgent | None:
    if isinstance(agent, Agent):
        return lambda _: agent
    return agent
