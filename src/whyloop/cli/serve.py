"""`whyloop serve`: the sessions of a store over HTTP, and what is told of them as it happens."""

from __future__ import annotations

import argparse
import os
import socket
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.agents import MODEL_VARIABLE, add_agent
from whyloop.cli.session_parts.options import add_store

if TYPE_CHECKING:
    from whyloop.loop.agent import Agent
    from whyloop.stores.store import Store

HOST, PORT = "127.0.0.1", 8000
THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
EVERYWHERE = ("0.0.0.0", "::")
SECONDS_TO_END = 5  # For whoever is still being answered.


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    parser = commands.add_parser(
        "serve",
        help="show the sessions of a store over HTTP, and run them for clients",
        description=(
            "Serve the sessions of a store: a JSON API, server-sent events and WebSocket. With an agent or a "
            "model clients can ask questions; without one they can look and decide. There is no log-in: "
            "mount whyloop.server.AgentServer in an app of yours where others can reach it."
        ),
    )
    add_store(parser)
    add_agent(parser)
    parser.add_argument("--host", default=HOST, help=f"the address to listen on (default: {HOST})")
    parser.add_argument("--port", default=PORT, type=int, help=f"the port; 0 chooses one (default: {PORT})")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until somebody ends it, and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("serve", args, lambda store: _serve(store, args), create=True)


async def _serve(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.refusal import Refusal
    from whyloop.cli.terminal import complain
    from whyloop.errors import ConfigurationError
    from whyloop.server.app import AgentServer

    try:
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from uvicorn import Config, Server
    except ImportError as error:
        raise ConfigurationError(f'pip install "whyloop[server]" ({error})') from None

    agent = _agent(args)
    sessions = AgentServer(store, agent)
    app = TrustedHostMiddleware(sessions, allowed_hosts=_hosts(args.host))
    config = Config(app, log_level="warning", timeout_graceful_shutdown=SECONDS_TO_END)

    class EndingStreams(Server):
        """Streams are open for ever, and the server would wait for them before it tells the app to end."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await sessions.close()
            await super().shutdown(sockets)

    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    try:
        listening = socket.create_server((args.host, args.port), family=family, backlog=config.backlog)
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).rstrip(".")
        where = f"{args.host}:{args.port}"
        raise Refusal(f"cannot listen on {where}: {why}. Choose another --host or --port") from None
    # An event loop does this for sockets that it makes itself; without it every answer takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host, port = listening.getsockname()[:2]
    complain(f"http://{f'[{host}]' if ':' in host else host}:{port}/sessions  (the API: /openapi.json)")
    if agent is None:
        complain("It shows sessions and runs none: name an --agent or a --model for that.")
    if args.host in EVERYWHERE:
        complain("Whoever can reach this machine can read and run: there is no log-in.")
    await EndingStreams(config).serve([listening])
    return 0


def _agent(args: argparse.Namespace) -> Agent | None:
    from whyloop.cli.session_parts.agents import agent_of, described

    is_described = described(args) or os.environ.get(MODEL_VARIABLE)
    return agent_of(args) if is_described else None


def _hosts(host: str) -> list[str]:
    """The names by which the server answers: a page of another site cannot pass for one of this machine."""
    if host in EVERYWHERE:
        return ["*"]
    return [*THIS_MACHINE, f"[{host}]" if ":" in host else host]
