"""`whyloop delete`: forget sessions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import add_store
from whyloop.cli.session_parts.refusal import FAILED

if TYPE_CHECKING:
    from whyloop.stores.records import Summary
    from whyloop.stores.store import Store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "forget sessions for good"
    parser = commands.add_parser("delete", help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument("ids", metavar="ID", nargs="+", help="the sessions; the beginning of an id will do")
    add_store(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Delete them and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("delete", args, lambda store: _delete(store, args))


async def _delete(store: Store, args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.find import found
    from whyloop.cli.terminal import write_lines
    from whyloop.values.text import shortened

    # All of them are looked up first: where one is not there, none is deleted.
    summaries = [(await found(store, typed)).summary for typed in args.ids]
    wanted = {summary.agent_id: summary for summary in summaries}
    if not args.yes and not _agreed(list(wanted.values())):
        return FAILED
    for agent_id, summary in wanted.items():
        await store.delete(agent_id)
        write_lines([f"Deleted {shortened(agent_id)}  {shortened(summary.title)}".rstrip()])
    return 0


def _agreed(summaries: list[Summary]) -> bool:
    """Ask whoever sits there; nobody who does not sit there can agree."""
    import sys

    from whyloop.cli.terminal import complain
    from whyloop.errors import ConfigurationError
    from whyloop.values.text import counted, shortened

    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigurationError("there is nobody to ask here, so say it with --yes")
    for summary in summaries:
        steps = counted(summary.step_count, "step")
        complain(f"  {shortened(summary.agent_id)}  {summary.status}, {steps}  {shortened(summary.title)}")
    sys.stderr.write(f"Delete {counted(len(summaries), 'session')} for good? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    complain("Nothing was deleted.")
    return False
