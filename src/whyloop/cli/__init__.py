"""The `whyloop` command: one file a subcommand, each loaded no further than it is used."""

from __future__ import annotations

import argparse
import io
import os
import sys

from whyloop import __version__
from whyloop.cli import (
    approve,
    delete,
    demo,
    deny,
    export,
    fork,
    import_,
    resume,
    run,
    serve,
    sessions,
    show,
    stop,
    watch,
    why,
)

INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended
BROKEN_PIPE = 141  # and of one whose reader went away
COMMANDS = (
    demo,
    run,
    serve,
    sessions,
    show,
    watch,
    why,
    approve,
    deny,
    resume,
    stop,
    fork,
    export,
    import_,
    delete,
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # An old encoding costs an arrow, not the run.
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        if args.run is None:
            sys.stdout.write(parser.format_help())
            code = 0
        else:
            code = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more as it ends, and must find somebody there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whyloop", description="Agents that can say why they went on, and why they stopped."
    )
    parser.add_argument("--version", action="version", version=f"whyloop {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser
