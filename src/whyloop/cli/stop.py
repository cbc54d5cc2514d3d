"""`whyloop stop`: end a session's run, wherever it runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import AN_AGENT, add_session, add_store, command

if TYPE_CHECKING:
    from whyloop.stores.store import Store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "end a session's run at its next safe point, wherever it runs"
    parser = commands.add_parser("stop", help=words, description=f"{words[0].upper()}{words[1:]}.")
    add_session(parser)
    parser.add_argument("reason", metavar="REASON", nargs="?", help="why, for the trace")
    add_store(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask for it and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("stop", args, lambda store: _stop(store, args))


async def _stop(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.deciding import who
    from whyloop.cli.session_parts.find import found
    from whyloop.cli.terminal import write_lines
    from whyloop.values.text import shortened

    summary = (await found(store, args.id)).summary
    reason = args.reason or f"{who(None)} asked for it with whyloop stop"
    if not await store.request_stop(summary.agent_id, reason):
        write_lines([f"There is nothing to stop: the session is {summary.status}."])
    elif summary.runner is not None:
        write_lines([f"{shortened(summary.runner)} runs it, and was asked to stop at its next safe point."])
    else:
        again = command(args, "resume", args.id, options=AN_AGENT)
        write_lines([f"Stopped. To go on all the same: {again}"])
    return 0
