"""`whyloop resume`: go on with a session that was paused, stopped, failed or cut off."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from whyloop.cli.run import exit_code, exit_codes
from whyloop.cli.session_parts.agents import add_agent
from whyloop.cli.session_parts.options import add_session, add_store

if TYPE_CHECKING:
    from whyloop.loop.agent import Agent
    from whyloop.sessions.session import Session
    from whyloop.values.budget import Budget
    from whyloop.values.state import AgentState


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "go on with a session that was paused, stopped, failed or cut off"
    parser = commands.add_parser(
        "resume",
        help=words,
        description=f"{words[0].upper()}{words[1:]}. The answer goes to stdout, everything else to stderr.",
        epilog=exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_session(parser)
    add_store(parser)
    add_agent(parser)
    parser.add_argument("--grant-steps", metavar="N", type=int, help="allow so many steps more")
    parser.add_argument("--grant-tokens", metavar="N", type=int, help="allow so many tokens more")
    parser.add_argument("--grant-seconds", metavar="S", type=float, help="allow so much time more")
    parser.add_argument("--json", action="store_true", help="print the trace for machines, not the answer")
    parser.add_argument("--quiet", action="store_true", help="no words but the answer, unless it went wrong")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Go on and return the exit code."""
    from whyloop.cli.session_parts.carry_out import ended

    return ended("resume", lambda: _resume(args))


def _resume(args: argparse.Namespace) -> Coroutine[Any, Any, int]:
    from whyloop.cli.session_parts.agents import agent_of

    return _go_on(agent_of(args), _grant(args), args)


async def _go_on(agent: Agent, grant: Budget | None, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.options import command
    from whyloop.cli.session_parts.refusal import Refusal
    from whyloop.cli.session_parts.told import told_session
    from whyloop.errors import NotResumableError

    async def resume(session: Session) -> AgentState:
        try:
            return await session.resume(grant=grant)
        except NotResumableError:
            status = session.state.status if session.state.messages else "new"
            ask = command(args, "run", "…", options=("--session", args.id))
            raise Refusal(f"there is nothing to go on with, the session is {status}. Ask: {ask}") from None

    return exit_code(await told_session(agent, args, args.id, resume))


def _grant(args: argparse.Namespace) -> Budget | None:
    from whyloop.values.budget import Budget

    granted = {"steps": args.grant_steps, "tokens": args.grant_tokens, "seconds": args.grant_seconds}
    given = {name: number for name, number in granted.items() if number is not None}
    return Budget(**given) if given else None
