"""`whyloop export`: sessions as the lines of a JSON lines file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import add_store

if TYPE_CHECKING:
    from whyloop.stores.store import Store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "write sessions, or all of them, as a JSON lines file"
    parser = commands.add_parser("export", help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument(
        "ids", metavar="ID", nargs="*", help="the sessions (default: all); the beginning of an id will do"
    )
    add_store(parser)
    parser.add_argument("--output", metavar="FILE", help="where to (default: stdout)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write them and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("export", args, lambda store: _export(store, args))


async def _export(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.exporting import on_stdout, to_file
    from whyloop.cli.session_parts.find import found

    agent_ids = [(await found(store, typed)).summary.agent_id for typed in args.ids]
    lines = store.export(*agent_ids)
    await (to_file(lines, args.output) if args.output else on_stdout(lines))
    return 0
