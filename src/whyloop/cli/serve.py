"""`whyloop serve`: the sessions of a store over HTTP, and runs of them for clients."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections.abc import Callable
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from whyloop.cli.agents import agent_of, agent_options
from whyloop.cli.command_lines import MODEL_VARIABLE, TOKEN_VARIABLE
from whyloop.cli.exit_codes import USAGE_ERROR, CommandError
from whyloop.cli.terminal import write_error
from whyloop.errors import ConfigurationError
from whyloop.loop.agent import Agent
from whyloop.stores.store import Store

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from whyloop.server.access import Access

SECONDS_TO_END = 5  # For requests that are being answered.
SHORTEST_TOKEN = 16
MOST_CONNECTIONS = 2000
# For the first line and the headers of a request. A body has a limit of its own.
SECONDS_FOR_HEADERS = 10.0


async def serve(store: Store, args: argparse.Namespace) -> int:
    """Serve the sessions of a store until a signal."""
    from whyloop.server.app import AgentServer

    try:
        from uvicorn import Config, Server
    except ImportError as error:
        raise ConfigurationError(f'pip install "whyloop[server]" ({error})') from None

    agent, token = _agent(args), _token(args)
    access = {"public": True} if token is None else {"access": _access(token)}
    server = AgentServer(store, agent, recover=agent is not None, origins=args.origin or (), **access)
    config = Config(
        server,
        http=_limited,  # type: ignore[arg-type]  # A function that returns one serves as well.
        log_level="warning",
        timeout_graceful_shutdown=SECONDS_TO_END,
    )

    class EndingStreams(Server):
        """Close the streams first: uvicorn waits for them before it lets the app shut down."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await server.close()
            await super().shutdown(sockets)

    listening = _listen(args.host, args.port, config.backlog)
    host, port = listening.getsockname()[:2]
    if token is None and not _is_loopback(host):
        listening.close()
        raise CommandError(
            f"{args.host!r} can be reached from other machines, so clients need a token: set "
            f"${TOKEN_VARIABLE} to a secret of {SHORTEST_TOKEN} characters or more",
            USAGE_ERROR,
        )
    write_error(f"http://{f'[{host}]' if ':' in host else host}:{port}/sessions  (the API: /openapi.json)")
    if agent is None:
        write_error("It shows sessions and runs none: name an --agent or a --model for that.")
    if token is not None:
        write_error("Clients send the token: Authorization: Bearer …")
    await EndingStreams(config).serve([listening])
    return 0


def _agent(args: argparse.Namespace) -> Agent | None:
    is_described = agent_options(args) or os.environ.get(MODEL_VARIABLE)
    return agent_of(args) if is_described else None


# Access


def _token(args: argparse.Namespace) -> str | None:
    token: str | None = args.token if args.token is not None else os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise CommandError(f"a token has {SHORTEST_TOKEN} characters or more", USAGE_ERROR)
    return token


def _access(token: str) -> Callable[[HTTPConnection], Access | None]:
    """Return the function that lets clients in which have the token.

    Browsers cannot send headers with an EventSource or a WebSocket, so the query may have it too.
    """
    from whyloop.server.access import PUBLIC

    def access(connection: HTTPConnection) -> Access | None:
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = connection.query_params.get("token", "")
        return PUBLIC if compare_digest(given.strip().encode(), token.encode()) else None

    return access


def _is_loopback(host: str) -> bool:
    """Return whether the address of a socket can only be reached from this machine."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


# Connections


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=backlog)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise CommandError(
            f"cannot listen on {host}:{port}: {reason}. Choose another --host or --port"
        ) from None
    # An event loop does this for sockets that it makes itself; without it every answer takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _limited(**options: Any) -> Any:
    """Return uvicorn's protocol for a new connection, which is closed if it is one too many or too slow.

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
