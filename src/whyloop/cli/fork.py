"""`whyloop fork`: a new session with the history of another one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import add_session, add_store

if TYPE_CHECKING:
    from whyloop.stores.store import Store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "branch a new session off another one, and print its id"
    parser = commands.add_parser("fork", help=words, description=f"{words[0].upper()}{words[1:]}.")
    add_session(parser)
    add_store(parser)
    parser.add_argument(
        "--step", metavar="N", type=int, help="after this step, counted from the first (default: the last)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make it and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("fork", args, lambda store: _fork(store, args))


async def _fork(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.find import found
    from whyloop.cli.terminal import write_lines

    stored = await found(store, args.id)
    state = await store.fork(stored.summary.agent_id, step=args.step)
    write_lines([state.agent_id])
    return 0
