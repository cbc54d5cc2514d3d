"""`whyloop serve` and `whyloop worker`: commands that run sessions until a signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from whyloop.cli.agents import (
    agent_options,
    agent_or_name,
    find_agent,
    find_agents,
    find_deps,
    refuse_without_temporal,
)
from whyloop.cli.command import MODEL_VARIABLE, TEMPORAL_WORKER, TOKEN_VARIABLE
from whyloop.cli.terminal import USAGE_ERROR, CommandError, write_error
from whyloop.errors import ConfigurationError, how_to_install
from whyloop.events import (
    AgentEvent,
    AgentExecutionFailed,
    AgentExecutionFinished,
    AgentStatusChanged,
    AgentStepCompleted,
)
from whyloop.loop.agent import Agent
from whyloop.sessions.recovery import AT_ONCE, Recovery
from whyloop.stores.store import Store
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus
from whyloop.values.text import short_id, shortened

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from whyloop.server.access import Access
    from whyloop.server.app import AgentServer

REASON_LENGTH = 300
_AFTER_THE_END = (AgentExecutionFailed, AgentExecutionFinished)
SECONDS_TO_END = 5  # For requests that are being answered.
SHORTEST_TOKEN = 16
MOST_CONNECTIONS = 2000
BACKLOG = 2048
# For the first line and the headers of a request. A body has a limit of its own.
SECONDS_FOR_HEADERS = 10.0
SECONDS_TO_DRAIN = 30.0  # For the calls of a worker of Temporal.


async def serve(store: Store, args: argparse.Namespace) -> int:
    """Serve the sessions of a store until a signal."""
    from whyloop.server.app import AgentServer

    _uvicorn()
    found, token, engine = _agent(args), _token(args), None
    agent = found if isinstance(found, Agent) else None
    if isinstance(found, str):
        from whyloop.cli.fleet import open_engine

        engine = await open_engine(store, found, args)
        agent = find_agent(args.agent) if ":" in args.agent else None
    access: dict[str, Any] = {"public": True}
    if token is not None or args.read_only:
        access = {"access": _access(token, read_only=args.read_only)}
    server = AgentServer(
        store,
        agent,
        deps=find_deps(args.deps),
        recover=agent is not None,
        engine=engine,
        origins=args.origin or (),
        inspector=True,
        max_streams=args.max_streams,
        max_runs=args.max_runs,
        **access,
    )
    listening = listen(args.host, args.port)
    host, port = listening.getsockname()[:2]
    if token is None and not _is_loopback(host):
        listening.close()
        raise CommandError(
            f"{args.host!r} can be reached from other machines, so clients need a token: set "
            f"${TOKEN_VARIABLE} to a secret of {SHORTEST_TOKEN} characters or more",
            USAGE_ERROR,
        )
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    write_error(f"{address}/  (open it in a browser; the API: /openapi.json)")
    _announce_store(args)
    if engine is not None:
        write_error(f"The workers of Temporal at {shortened(args.temporal)} run the sessions.")
    elif agent is None:
        write_error("It shows sessions and runs none: name an --agent or a --model for that.")
    if token is not None:
        write_error("The page asks for the token. Other clients send it: Authorization: Bearer …")
    freeze_startup()
    await serve_until_signal(server, listening)
    return 0


async def serve_until_signal(server: AgentServer, listening: socket.socket) -> None:
    """Serve clients at a socket until a signal, then end their streams and runs."""
    uvicorn = _uvicorn()

    class EndingStreams(uvicorn.Server):  # type: ignore[misc, name-defined]
        """A server that closes its streams first, since uvicorn waits for them before its shutdown."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await server.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        server,
        http=_limited,  # A function that returns a protocol serves as well as its class.
        log_level="warning",
        timeout_graceful_shutdown=SECONDS_TO_END,
    )
    # Once it has shut down, uvicorn sends the process the signal again: a SIGTERM would end it here, before
    # the caller closes the store.
    default = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        await EndingStreams(config).serve([listening])
    finally:
        signal.signal(signal.SIGTERM, default)


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigurationError(f"the server needs an extra: {how_to_install('server')} ({error})") from None
    return uvicorn


def freeze_startup() -> None:
    """Exclude loaded objects from garbage collections, which pause all sessions.

    There are 50,000 such objects. A full collection visits each: 40 ms instead of 5.
    """
    gc.collect()
    gc.freeze()


def _announce_store(args: argparse.Namespace) -> None:
    """Report a new store: its path may be mistyped."""
    if args.created is not None:
        write_error(f"Created {shortened(str(args.created), 300)}, because it did not exist.")


def _agent(args: argparse.Namespace) -> Agent[Any, Any] | str | None:
    is_described = agent_options(args) or os.environ.get(MODEL_VARIABLE)
    return agent_or_name(args) if is_described else None


# Access


def _token(args: argparse.Namespace) -> str | None:
    token: str | None = args.token if args.token is not None else os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise CommandError(
            f"the token is too short: use a secret of {SHORTEST_TOKEN} characters or more", USAGE_ERROR
        )
    return token


def _access(token: str | None, *, read_only: bool) -> Callable[[HTTPConnection], Access | None]:
    """Return the function that admits clients with the token, if there is one.

    Browsers cannot send headers with an EventSource, so the token may also be in the query.
    """
    from whyloop.server.access import Access
    from whyloop.server.bodies import RIGHTS

    granted = Access("", may={"inspect"} if read_only else RIGHTS)

    def access(connection: HTTPConnection) -> Access | None:
        if token is None:
            return granted
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = connection.query_params.get("token", "")
        return granted if compare_digest(given.strip().encode(), token.encode()) else None

    return access


def _is_loopback(host: str) -> bool:
    """Return whether the address of a socket can only be reached from this machine."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


# Connections


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise CommandError(
            f"cannot listen on {host}:{port}: {reason}. Choose another --host or --port"
        ) from None
    # An event loop does this for sockets that it makes itself; without it every answer takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _limited(**options: Any) -> Any:
    """Return uvicorn's protocol, which closes surplus and slow connections.

    Uvicorn itself waits for the headers of a request for as long as its client likes.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    protocol: Any = AutoHTTPProtocol(**options)
    loop = asyncio.get_running_loop()

    def check_number() -> None:
        if len(protocol.connections) > MOST_CONNECTIONS and protocol.transport is not None:
            protocol.transport.abort()
        loop.call_later(SECONDS_FOR_HEADERS, check_progress, protocol.cycle)

    def check_progress(before: object) -> None:
        if protocol not in protocol.connections:  # It is closed, or a WebSocket now.
            return
        cycle = protocol.cycle
        is_waiting = cycle is None or cycle.response_complete
        if is_waiting and cycle is before and protocol.timeout_keep_alive_task is None:
            protocol.transport.close()
            return
        loop.call_later(SECONDS_FOR_HEADERS, check_progress, cycle)

    loop.call_later(0, check_number)  # It is connected by then.
    return protocol


# Workers


async def work(store: Store, args: argparse.Namespace) -> int:
    """Continue sessions until a signal."""
    if args.at_once is not None and args.at_once < 1:
        raise ConfigurationError(f"invalid --at-once {args.at_once}: use 1 or more")
    if args.temporal is None:
        refuse_without_temporal(args, TEMPORAL_WORKER)
    agents, make_deps = find_agents(args.agents), find_deps(args.deps)
    if args.temporal is not None:
        from whyloop.cli.fleet import work_for_temporal

        args.drain = SECONDS_TO_DRAIN if args.drain is None else args.drain
        return await work_for_temporal(store, args, agents, make_deps)
    progress = WorkerProgress(write_error)
    stopping = asyncio.Event()
    on_signals(stopping)
    freeze_startup()
    write_error(f"Looking for sessions of {', '.join(shortened(name, 64) for name in agents)}.")
    _announce_store(args)
    async with Recovery(store, agents, deps=make_deps, handlers=[progress], at_once=args.at_once or AT_ONCE):
        await stopping.wait()
        write_error("Stopping: each run ends after its step.")
    progress.finish()
    return 0


class WorkerProgress:
    """Write a line when a session continues, and one when it ends, pauses or is left."""

    def __init__(self, write_line: Callable[[str], object]) -> None:
        self._write_line = write_line
        self._steps: dict[str, int] = {}

    def __call__(self, event: AgentEvent) -> None:
        agent_id = event.agent_id
        if isinstance(event, _AFTER_THE_END):
            return
        if agent_id not in self._steps:
            self._steps[agent_id] = 0
            self._write_line(f"{_name(agent_id)}  continues")
        if isinstance(event, AgentStepCompleted):
            self._steps[agent_id] = event.step_number
        if isinstance(event, AgentStatusChanged) and event.status is not AgentStatus.IN_PROGRESS:
            del self._steps[agent_id]
            self._write_line(f"{_name(agent_id)}  {_end_text(event)}")

    def finish(self) -> None:
        """Write a line about each session that was left in progress."""
        for agent_id, step in self._steps.items():
            self._write_line(f"{_name(agent_id)}  left after step {step}: another worker continues it")
        self._steps.clear()


def _end_text(event: AgentStatusChanged) -> str:
    """Return how a run ended: "stopped (steps_limit) by StepsLimit: Limit reached…"."""
    reason = f" ({event.stop_reason})" if event.stop_reason not in (None, StopReason.COMPLETED) else ""
    by = f" by {shortened(event.resolved_by, 64)}" if event.resolved_by else ""
    why = f": {shortened(event.reason, REASON_LENGTH)}" if event.reason else ""
    return f"{event.status}{reason}{by}{why}"


def _name(agent_id: str) -> str:
    return shortened(short_id(agent_id), 64)


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine beside a block, and cancel it at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def on_signals(stopping: asyncio.Event) -> None:
    """Set the event at SIGTERM and Ctrl-C; the next signal ends the process."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    # Windows has no such handlers: there Ctrl-C ends the program at once.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
