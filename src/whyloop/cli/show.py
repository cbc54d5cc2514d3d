"""`whyloop show`: a session, from its first word to the last."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import add_json, add_session, add_store

if TYPE_CHECKING:
    from whyloop.stores.store import Store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "read a session: what was said, done and decided, and what waits for you"
    parser = commands.add_parser("show", help=words, description=f"{words[0].upper()}{words[1:]}.")
    add_session(parser)
    add_store(parser)
    parser.add_argument("--full", action="store_true", help="texts, arguments and results to their end")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show it and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("show", args, lambda store: _show(store, args))


async def _show(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.document import session_document
    from whyloop.cli.renderer import next_commands
    from whyloop.cli.session_parts.conversation import show_session
    from whyloop.cli.session_parts.find import loaded
    from whyloop.cli.terminal import write_json

    summary, state = await loaded(store, args.id)
    if args.json:
        write_json(session_document(state, summary))
        return 0
    notes = next_commands(args, state, args.id, runner=summary.runner, full=args.full)
    show_session(state, summary, notes, full=args.full)
    return 0
