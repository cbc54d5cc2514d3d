"""`whyloop deny`: do not let a tool call run that waits for a person."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import add_session, add_store

if TYPE_CHECKING:
    from whyloop.stores.store import Store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "do not let a tool call run that waits for you, and tell the model why"
    parser = commands.add_parser("deny", help=words, description=f"{words[0].upper()}{words[1:]}.")
    add_session(parser)
    parser.add_argument("call", metavar="CALL", nargs="?", help="the call, where several wait")
    parser.add_argument("reason", metavar="REASON", nargs="?", help="why not; the model is told")
    add_store(parser)
    parser.add_argument("--by", metavar="NAME", help="who decides (default: your login name)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decide and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("deny", args, lambda store: _deny(store, args))


async def _deny(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.deciding import spelled, tell, the_call, who
    from whyloop.cli.session_parts.find import loaded
    from whyloop.values.text import shortened

    by = who(args.by)
    _take_reason_back(args)
    _, state = await loaded(store, args.id)
    call = the_call(state, args.call)
    state = await store.deny(state.agent_id, call.id, args.reason or "", by=by)
    reason = f": {shortened(args.reason, 300)}" if args.reason else ""
    tell(args, f"{shortened(by)} denied {spelled(call)}{reason}.", state)
    return 0


def _take_reason_back(args: argparse.Namespace) -> None:
    """Find a reason that stands where a call may stand.

    A single word is always a call: one that was mistyped must not become the reason to deny another.
    """
    if args.reason is None and args.call is not None and len(args.call.split()) > 1:
        args.call, args.reason = None, args.call
