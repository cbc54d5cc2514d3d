"""`whyloop serve`: the sessions of a store over HTTP, and runs of them for clients."""

from __future__ import annotations

import argparse
import os
import socket

from whyloop.cli.agents import agent_of, agent_options
from whyloop.cli.command_lines import MODEL_VARIABLE
from whyloop.cli.exit_codes import CommandError
from whyloop.cli.terminal import write_error
from whyloop.errors import ConfigurationError
from whyloop.loop.agent import Agent
from whyloop.stores.store import Store

THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
EVERY_ADDRESS = ("0.0.0.0", "::")
SECONDS_TO_END = 5  # For requests that are being answered.


async def serve(store: Store, args: argparse.Namespace) -> int:
    """Serve the sessions of a store until a signal."""
    from whyloop.server.app import AgentServer

    try:
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from uvicorn import Config, Server
    except ImportError as error:
        raise ConfigurationError(f'pip install "whyloop[server]" ({error})') from None

    agent = _agent(args)
    server = AgentServer(store, agent, recover=agent is not None)
    app = TrustedHostMiddleware(server, allowed_hosts=_hosts(args.host))
    config = Config(app, log_level="warning", timeout_graceful_shutdown=SECONDS_TO_END)

    class EndingStreams(Server):
        """Close the streams first: uvicorn waits for them before it lets the app shut down."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await server.close()
            await super().shutdown(sockets)

    listening = _listen(args.host, args.port, config.backlog)
    host, port = listening.getsockname()[:2]
    write_error(f"http://{f'[{host}]' if ':' in host else host}:{port}/sessions  (the API: /openapi.json)")
    if agent is None:
        write_error("It shows sessions and runs none: name an --agent or a --model for that.")
    if args.host in EVERY_ADDRESS:
        write_error("Everyone who can reach this machine can read and run sessions: there is no login.")
    await EndingStreams(config).serve([listening])
    return 0


def _agent(args: argparse.Namespace) -> Agent | None:
    is_described = agent_options(args) or os.environ.get(MODEL_VARIABLE)
    return agent_of(args) if is_described else None


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


def _hosts(host: str) -> list[str]:
    """Return the names by which the server answers, so that no other site can pass for this machine."""
    if host in EVERY_ADDRESS:
        return ["*"]
    return [*THIS_MACHINE, f"[{host}]" if ":" in host else host]
