"""The server: an ASGI app, standalone or mounted in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from whyloop.errors import ConfigurationError, how_to_install

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope as AsgiScope, Send
    from starlette.websockets import WebSocket
except ImportError as error:
    raise ConfigurationError(f"the server needs Starlette: {how_to_install('server')} ({error})") from None

from whyloop.broadcasting.feed import EventFeed
from whyloop.broadcasting.transports import (
    AgentEventEnvelopeAdapter,
    AuthorizesChannels,
    CanBroadcastAgentEvents,
    FanOut,
)
from whyloop.inspector import page_of
from whyloop.logger import Logger
from whyloop.loop.agent import Agent
from whyloop.loop.executions import refuse_missing_deps
from whyloop.server.access import Access, Admission, CheckAccess, Limits, with_token
from whyloop.server.api import Call, ChooseAgent
from whyloop.server.chats import ChatApi
from whyloop.server.live import LiveStream
from whyloop.server.metrics import Metrics
from whyloop.server.openapi import document
from whyloop.server.operations import OPERATIONS, Operation
from whyloop.server.requests import (
    ANY_VERSION,
    BadRequestError,
    answer,
    body_of,
    index_of,
    precondition_of,
    problem_of,
    query_of,
    read_body,
    refusal,
    request_key,
    text_answer,
)
from whyloop.server.runs import Engine
from whyloop.server.streams import accept, event_stream, refuse, until_gone, web_socket
from whyloop.server.views import Tagged
from whyloop.sessions.recovery import Recovery
from whyloop.sessions.session import MakeDeps, refuse_make_deps
from whyloop.stores.store import Store
from whyloop.wire.envelope import BroadcastConfig

_log = Logger()

_READS = ("GET", "HEAD")

Serve = Callable[[WebSocket], Awaitable[None]]


class AgentServer:
    """The sessions of a store over HTTP, and their events as they happen.

    `agent` runs the queries of clients. If sessions need different agents it is a function from a session,
    as it is listed, to its agent. Without an agent the server shows and decides, and runs nothing.

    `access` decides about every request, stream and WebSocket: it gets the connection, with everything that
    your middleware added to it, and returns the `Access` of the client, or None for a 401. It may raise
    Starlette's `HTTPException`. Without it, `public=True` gives every client all rights.

    The transports in `also` get the envelopes of what the server runs and records. For a
    `PusherBroadcaster` among them the server has the route that authorizes subscribers of its private
    channels, `/broadcasting/auth`.

    `origins` are the addresses under which the server is reached, such as "https://app.example.com", and
    those of other sites whose pages may act here. The address of its socket and this machine's own names are
    always among them; every other name and site is refused, unless "*" is among them. `max_streams`,
    `max_runs` and `limits` bound what clients occupy at once: one more is refused at once, with 503 and a
    `Retry-After`.

    With `recover`, sessions continue by themselves while the lifespan of the server lasts: those whose
    runner died, and paused ones whose questions are all decided. One agent continues the sessions of its
    name; a function continues those for which it returns an agent.

    `deps` is a function that returns the deps for each run, by the summary of its session, plain or async.

    With an `engine`, such as a `whyloop.temporal.TemporalEngine`, sessions run there and not in the server.
    Then an `agent` only checks the arguments that people edit, and `also` gets only what the server records.

    The toolsets of an agent stay open for the lifespan of the server. If `agent` is a function, its agents
    open them for each run, unless you enter the agents yourself.

    Args:
        store: The store whose sessions are served. It stays yours to close, after the server.
        agent: The agent, or a function from a session's summary to its agent. Default: none, and nothing
            runs.
        deps: A function from a session's summary to the deps for its run. Default: none.
        config: What envelopes contain; for clients without the right `inspect`, no more than the
            default. Default: `BroadcastConfig.standard()`.
        also: More transports for envelopes. Default: none.
        access: A function of the connection that returns an `Access`, or None. Required unless `public`.
        public: True to give every client all rights. Default: False.
        origins: Addresses under which the server is reached, and sites whose pages may use it. Default: none
            but its own.
        max_streams: The maximum number of simultaneous streams: server-sent events and WebSockets.
            Default: 1000.
        max_runs: The maximum number of simultaneous runs that clients began. Runs of an engine and
            those of `recover` do not count. Default: 200.
        limits: What else clients may occupy. Default: `Limits()`.
        close_seconds: The seconds that runs have to end when the server closes. Default: 10.
        recover: True to continue sessions without a runner. Default: False.
        inspector: True to show the inspector, a web page, at the address of the server. Default: False.
        engine: Where sessions run. Default: in the process of the server.
    """

    def __init__(
        self,
        store: Store,
        agent: Agent[Any, Any] | ChooseAgent | None = None,
        *,
        deps: MakeDeps | None = None,
        config: BroadcastConfig | None = None,
        also: Iterable[CanBroadcastAgentEvents] = (),
        access: CheckAccess | None = None,
        public: bool = False,
        origins: Collection[str] = (),
        max_streams: int = 1000,
        max_runs: int = 200,
        limits: Limits | None = None,
        close_seconds: float = 10.0,
        recover: bool = False,
        inspector: bool = False,
        engine: Engine | None = None,
    ) -> None:
        if not isinstance(store, Store):
            raise ConfigurationError(f"invalid store {store!r:.80}: use a Store, such as SqliteStore(path)")
        if agent is not None and not isinstance(agent, Agent) and not callable(agent):
            raise ConfigurationError(
                f"invalid agent {agent!r:.80}: use an Agent or a function that finds one"
            )
        refuse_make_deps(deps)
        if isinstance(agent, Agent) and engine is None:
            refuse_missing_deps(agent, deps)
        if isinstance(origins, str):
            raise ConfigurationError(
                f"invalid origins {origins!r:.80}: use a list, such as [{origins!r:.80}]"
            )
        if max_streams < 1 or max_runs < 1:
            raise ConfigurationError(
                f"invalid max_streams={max_streams} or max_runs={max_runs}: use numbers greater than zero"
            )
        also = tuple(also)
        events = AgentEventEnvelopeAdapter(FanOut(*also), config) if also else None
        channels = tuple(each for each in also if isinstance(each, AuthorizesChannels))
        self._redaction = (config or BroadcastConfig()).redaction
        feed = EventFeed(store, config)
        choose_agent = (lambda _: agent) if isinstance(agent, Agent) else agent
        metrics = Metrics(also)
        self._api = ChatApi(
            store, choose_agent, feed, events, channels, self._redaction, deps, metrics, engine, max_runs
        )
        has_agent = agent is not None or engine is not None
        there = {None, "agent" if has_agent else None, "channels" if channels else None}
        self._operations = tuple(each for each in OPERATIONS if each.needs in there)
        self._limits = limits or Limits()
        self._admission = Admission(access, origins, self._limits, max_streams, public=public)
        metrics.streams = partial(self._admission.count, "streams")
        self._close_seconds = close_seconds
        self._has_inspector = inspector
        self._agent = agent if isinstance(agent, Agent) and engine is None else None
        self._toolsets = AsyncExitStack()
        self._recovery: Recovery | None = None
        if recover and agent is not None and engine is None:
            self._recovery = Recovery(store, agent, deps=deps, handlers=self._api.handlers)

    @property
    def events(self) -> EventFeed:
        """The envelopes of the sessions, for followers other than the server's clients."""
        return self._api.feed

    async def close(self) -> None:
        """End all runs and streams. The store stays open.

        Runs are stopped, and can be resumed. With `recover`, a run instead ends after its step and stays in
        progress, so that the next server continues it. After `close_seconds`, runs are interrupted.
        """
        leave = self._recovery is not None
        await asyncio.gather(self._end_recovery(), self._api.runs.close(self._close_seconds, leave=leave))
        await self._api.close()
        await self._toolsets.aclose()

    async def _end_recovery(self) -> None:
        if self._recovery is not None:
            await self._recovery.close(self._close_seconds)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Run the server for the lifespan of the app that it is mounted in.

        Use it as `FastAPI(lifespan=server.lifespan)`.

        Args:
            app: The app, which is not used; frameworks pass it.
        """
        await self._open()
        try:
            yield
        finally:
            await self.close()

    async def _open(self) -> None:
        if self._agent is not None:
            try:
                await self._toolsets.enter_async_context(self._agent)
            except Exception:  # Each run tries again, and its trace shows the failure.
                _log.exception("The toolsets of agent %s could not be opened", self._agent.name)
        if self._recovery is not None:
            await self._recovery.__aenter__()

    # ASGI

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._answer(Request(scope, receive), send)
            case "websocket":
                await self._socket(WebSocket(with_token(scope), receive, send))
            case "lifespan":
                await self._live(receive, send)

    async def _answer(self, request: Request, send: Send) -> None:
        """Answer a request; only look for its operation after admitting the client."""
        with ExitStack() as held:
            try:
                held.enter_context(self._admission.counted("requests"))
                response = self._page(request) or await self._public(request)
                response = response or await self._admitted(request, held)
            except ClientDisconnect:
                response = Response(status_code=499)
            except Exception as error:
                response = refusal(error, self._redaction)
            await response(request.scope, request.receive, send)

    def _page(self, request: Request) -> Response | None:
        """Return the inspector, which every client may load, since it has no data."""
        if not self._has_inspector or request.method not in _READS:
            return None
        found = page_of(request, _segments_of(request.scope))
        if found is not None:
            self._admission.refuse_host(request)
        return found

    async def _public(self, request: Request) -> Response | None:
        """Return the answer of an operation that needs no access, since it shows no data."""
        for operation in self._operations:
            is_asked = operation.is_public and request.method in _READS
            if is_asked and _match(operation.path, _segments_of(request.scope)) is not None:
                value = await getattr(self._api, operation.name)()
                return text_answer(value, operation.text)
        return None

    async def _admitted(self, request: Request, held: ExitStack) -> Response:
        """Return the answer of an operation to a client that may ask for it."""
        access = await self._admission.admit(request, acts=request.method not in _READS)
        segments = _segments_of(request.scope)
        if segments == ("openapi.json",):
            if request.method not in _READS:
                raise _not_possible(request.method, ["GET"])
            return answer(_document(self._operations, request.scope.get("root_path", "")))
        operation, found = self._operation(request.method, segments)
        access.require(operation.right)
        call = await self._call(request, access, operation, found)
        if operation.has_stream and "text/event-stream" in request.headers.get("accept", ""):
            held.enter_context(self._admission.counted("streams"))
            after = request.headers.get("last-event-id") or call.query.after
            return event_stream(await self._api.follow(call, after))
        work = getattr(self._api, operation.name)(call)
        value = await (until_gone(work, request.receive) if operation.is_long else work)
        if isinstance(value, LiveStream):
            held.enter_context(self._admission.counted("streams", value.size))
            return value.response()
        if isinstance(value, Response):
            return value
        if operation.text is not None:
            return text_answer(value, operation.text)
        if isinstance(value, Tagged):
            return answer(value.body, operation.status, value.etag)
        return answer(value, operation.status)

    async def _call(
        self, request: Request, access: Access, operation: Operation, found: Mapping[str, str]
    ) -> Call:
        query, body, key = query_of(request, operation.query), None, None
        if operation.takes is not None:
            read = await read_body(request, self._limits.body_seconds)
            body = body_of(request, read, operation.takes, is_form=operation.is_form)
            key = request_key(request, _segments_of(request.scope), read)
        precondition = precondition_of(request) if operation.is_conditional else ANY_VERSION
        index = index_of(found["index"]) if "index" in found else 0
        return Call(access, found.get("agent_id", ""), query, body, key, precondition, index)

    def _operation(self, method: str, segments: tuple[str, ...]) -> tuple[Operation, dict[str, str]]:
        allowed = []
        for operation in self._operations:
            found = _match(operation.path, segments)
            if found is not None:
                if operation.method == method or (operation.method, method) == ("GET", "HEAD"):
                    return operation, found
                allowed.append(operation.method)
        others = [each for each in OPERATIONS if each.needs == "agent" and each not in self._operations]
        if any(each.method == method and _match(each.path, segments) is not None for each in others):
            raise _not_possible(f"this server runs no agent, so {method}", allowed)
        if allowed:
            raise _not_possible(method, allowed)
        raise BadRequestError("unknown path: see /openapi.json", 404, "not_found")

    async def _socket(self, websocket: WebSocket) -> None:
        """Serve a WebSocket; only look for its session after admitting the client."""
        with ExitStack() as held:
            try:
                held.enter_context(self._admission.counted("requests"))
                access = await self._admission.admit(websocket, acts=True)
                operation, found = self._operation("GET", _segments_of(websocket.scope))
                if not operation.has_socket:
                    raise BadRequestError("this path has no WebSocket: see /openapi.json", 404, "not_found")
                access.require(operation.right)
                query = query_of(websocket, operation.query)
                serve = await self._serving(Call(access, found.get("agent_id", ""), query), operation, held)
            except Exception as error:
                # Browsers tell a page why a connection was closed, but not why one was refused.
                status, problem = problem_of(error, self._redaction)
                if status == 503:
                    await refuse(websocket, refusal(error, self._redaction))
                    return
                await accept(websocket)
                await websocket.close(4000 + status, problem.message.encode()[:120].decode(errors="ignore"))
                return
            await serve(websocket)

    async def _serving(self, call: Call, operation: Operation, held: ExitStack) -> Serve:
        """Return the function that serves a WebSocket, if the client may use it."""
        if operation.streams is not None:
            stream: LiveStream = await getattr(self._api, operation.name)(call)
            held.enter_context(self._admission.counted("streams", stream.size))
            return stream.serve
        held.enter_context(self._admission.counted("streams"))
        return partial(web_socket, envelopes=await self._api.follow(call, call.query.after))

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message: MutableMapping[str, Any] = await receive()
            if message["type"] == "lifespan.startup":
                await self._open()
            if message["type"] == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


_document = lru_cache(maxsize=8)(document)


def _not_possible(method: str, allowed: Iterable[str]) -> HTTPException:
    return HTTPException(405, f"{method} is not possible here", {"allow": ", ".join(allowed)})


# Paths

Segments = tuple[str, ...]


def _segments_of(scope: Mapping[str, Any]) -> Segments:
    """Return the segments of a request's path below the mounted app.

    They come from the path as it was sent: a slash in the id of a session is sent as %2F.
    """
    raw = scope.get("raw_path")
    path: bytes = raw or quote(scope["path"]).encode()
    parts = [_text(part) for part in path.partition(b"?")[0].split(b"/")[1:]]
    root = [part for part in scope.get("root_path", "").split("/") if part]
    return tuple(parts[len(root) :] if parts[: len(root)] == root else parts)


def _text(part: bytes) -> str:
    return unquote_to_bytes(part).decode("utf-8", "replace")


def _match(template: str, segments: Segments) -> dict[str, str] | None:
    """Return the values of a template like `/sessions/{agent_id}`, or None."""
    wanted = template.split("/")[1:]
    if len(wanted) != len(segments):
        return None
    found: dict[str, str] = {}
    for want, have in zip(wanted, segments, strict=True):
        if want.startswith("{"):
            if not have:
                return None
            found[want[1:-1]] = have
        elif want != have:
            return None
    return found
