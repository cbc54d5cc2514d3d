"""The `whyloop` command."""

from __future__ import annotations

import argparse
import io
import sys

from whyloop import __version__
from whyloop.cli.commands import COMMANDS
from whyloop.cli.output import BROKEN_PIPE, INTERRUPTED, discard_stdout


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # An old encoding costs an arrow, not the run.
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        if args.command is None:
            sys.stdout.write(parser.format_help())
            code = 0
        else:
            code = args.command.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
        return BROKEN_PIPE
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whyloop", description="Agents that explain why they continued, and why they stopped."
    )
    parser.add_argument("--version", action="version", version=f"whyloop {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser
