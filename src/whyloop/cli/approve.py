"""`whyloop approve`: let a tool call run that waits for a person."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import add_session, add_store

if TYPE_CHECKING:
    from whyloop.stores.store import Store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "let a tool call run that waits for you"
    parser = commands.add_parser("approve", help=words, description=f"{words[0].upper()}{words[1:]}.")
    add_session(parser)
    parser.add_argument("call", metavar="CALL", nargs="?", help="the call, where several wait")
    add_store(parser)
    parser.add_argument("--args", metavar="JSON", help="other arguments than those that the model chose")
    parser.add_argument("--by", metavar="NAME", help="who decides (default: your login name)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decide and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("approve", args, lambda store: _approve(store, args))


async def _approve(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.arguments import exact
    from whyloop.cli.session_parts.deciding import parse_arguments, spelled, tell, the_call, who
    from whyloop.cli.session_parts.find import loaded
    from whyloop.values.text import shortened

    by = who(args.by)
    arguments = None if args.args is None else parse_arguments(args.args)
    _, state = await loaded(store, args.id)
    call = the_call(state, args.call)
    if arguments is None:
        state = await store.approve(state.agent_id, call.id, by=by)
        tell(args, f"{shortened(by)} approved {spelled(call)}.", state)
    else:
        state = await store.edit(state.agent_id, call.id, arguments, by=by)
        changed = "\n".join(f"  {line}" for line in exact(arguments, full=True))
        tell(args, f"{shortened(by)} approved {shortened(call.name)} with other arguments:\n{changed}", state)
    return 0
