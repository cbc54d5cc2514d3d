"""`whyloop import`: store the sessions of an exported file."""

from __future__ import annotations

import argparse

from whyloop.cli.session_parts.options import add_store


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known to the parser; nothing that it needs is loaded yet."""
    words = "store the sessions of a file that whyloop export wrote"
    parser = commands.add_parser("import", help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument("file", metavar="FILE", help="the file; - reads from stdin")
    add_store(parser)
    parser.add_argument("--skip-existing", action="store_true", help="leave those out that are there already")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Store them and return the exit code."""
    from whyloop.cli.session_parts.carry_out import ended

    return ended("import", lambda: _import(args))


async def _import(args: argparse.Namespace) -> int:
    from whyloop.cli.session_parts.exporting import lines_of
    from whyloop.cli.session_parts.opening import opened
    from whyloop.cli.session_parts.refusal import Refusal
    from whyloop.cli.terminal import write_lines
    from whyloop.errors import SessionExistsError
    from whyloop.values.text import counted, shortened

    # The file comes first: without one, no store is made.
    with lines_of(args.file) as lines:
        async with opened(args.store, create=True) as store:
            try:
                stored = await store.import_lines(lines, skip_existing=args.skip_existing)
            except SessionExistsError as error:
                words = shortened(str(error), 200)
                raise Refusal(
                    f"{words}. Those before it in the file are imported; --skip-existing imports the others"
                ) from None
    write_lines([f"Imported {counted(len(stored), 'session')}."])
    return 0
