"""`whyloop watch`: what happens in a session, line by line, whichever process runs it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyloop.cli.session_parts.options import add_json, add_session, add_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from whyloop.broadcasting.event_log import EventLog
    from whyloop.stores.records import Told
    from whyloop.stores.store import Store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "follow what happens in a session, whichever process runs it"
    parser = commands.add_parser(
        "watch",
        help=words,
        description=(
            f"{words[0].upper()}{words[1:]}: what was told so far, and then what is told, until Ctrl-C. "
            "Sessions that whyloop run, resume and serve run are told of, and those of your own code that "
            "have an EventLog. The pieces of an answer are only heard in the process that runs the session."
        ),
    )
    add_session(parser)
    add_store(parser)
    add_json(parser, "print each envelope as JSON, one a line")
    parser.add_argument(
        "--after", metavar="PLACE", help="begin after this: a number, EXECUTION:NUMBER, or latest"
    )
    parser.add_argument("--so-far", action="store_true", help="end with what was told so far")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Follow it and return the exit code."""
    from whyloop.cli.session_parts.carry_out import carry_out

    return carry_out("watch", args, lambda store: _watch(store, args))


async def _watch(store: Store, args: argparse.Namespace) -> int:
    from contextlib import aclosing
    from io import StringIO

    import msgspec

    from whyloop.broadcasting.console import AgentConsoleLogger
    from whyloop.broadcasting.event_log import EventLog
    from whyloop.cli.session_parts.find import found
    from whyloop.cli.terminal import complain, write

    agent_id = (await found(store, args.id)).summary.agent_id
    log = EventLog(store)
    if await log.latest(agent_id) is None:
        complain("Nothing was kept of what was told of this session so far.")
    telling = _so_far(log, agent_id, args.after) if args.so_far else log.follow(agent_id, args.after)
    async with aclosing(telling) as batches:
        async for told in batches:
            lines = StringIO()
            AgentConsoleLogger(lines, json=args.json).broadcast_batch(
                [msgspec.json.decode(each.body) for each in told]
            )
            write(lines.getvalue())
    return 0


async def _so_far(log: EventLog, agent_id: str, after: str | None) -> AsyncGenerator[Sequence[Told], None]:
    from whyloop.broadcasting.places import place_of

    while told := await log.page(agent_id, after):
        yield told
        after = place_of(told[-1])
