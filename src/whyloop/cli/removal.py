"""`whyloop delete` and `prune`: sessions that are removed for good."""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta

from whyloop.cli.exit_codes import FAILED
from whyloop.cli.store_access import find_session
from whyloop.cli.terminal import write_error, write_lines
from whyloop.errors import ConfigurationError
from whyloop.stores.pruning import prune as prune_store
from whyloop.stores.store import Store
from whyloop.values.state import AgentStatus
from whyloop.values.text import counted, shortened


async def delete(store: Store, args: argparse.Namespace) -> int:
    """Delete the sessions that were named."""
    # All of them are looked up first: if one does not exist, none is deleted.
    summaries = [await find_session(store, typed) for typed in args.ids]
    wanted = {summary.agent_id: summary for summary in summaries}
    if not args.yes:
        _check_terminal()
        for summary in wanted.values():
            steps = counted(summary.step_count, "step")
            about = f"{shortened(summary.agent_id)}  {summary.status}, {steps}"
            write_error(f"  {about}  {shortened(summary.title)}")
        if not _is_confirmed(len(wanted)):
            return FAILED
    for agent_id, summary in wanted.items():
        await store.delete(agent_id)
        write_lines([f"Deleted {shortened(agent_id)}  {shortened(summary.title)}".rstrip()])
    return 0


async def prune(store: Store, args: argparse.Namespace) -> int:
    """Delete the sessions that ended long ago."""
    statuses: list[str] = list(dict.fromkeys(args.status or [AgentStatus.COMPLETED.value]))
    about = f"{' or '.join(statuses)}, not changed for {_sentence_span(args.older_than)}"
    found: list[str] = []
    async for batch in prune_store(store, args.older_than, statuses=statuses, dry_run=True):
        found += batch
    if args.dry_run:
        if found:
            write_lines([shortened(agent_id, 500) for agent_id in found])
        write_error(f"{counted(len(found), 'session')} would be deleted: {about}.")
        return 0
    if found and not args.yes:
        _check_terminal()
        write_error(f"{counted(len(found), 'session')}: {about}.")
        if not _is_confirmed(len(found)):
            return FAILED
    deleted, progress = 0, sys.stderr is not None and sys.stderr.isatty()
    async for batch in prune_store(store, args.older_than, statuses=statuses):
        deleted += len(batch)
        if progress:
            sys.stderr.write(f"\r{deleted:,} of {max(deleted, len(found)):,}")
            sys.stderr.flush()
    if progress and deleted:
        sys.stderr.write("\n")
    write_lines([f"Deleted {counted(deleted, 'session')}: {about}."])
    return 0


def _sentence_span(span: timedelta) -> str:
    """Return a span of time for a sentence: "90 days", "12 hours"."""
    seconds = span.total_seconds()
    for size, noun in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            return counted(int(seconds // size), noun)
    return f"{seconds:g} seconds"


def _check_terminal() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigurationError("nothing can be asked without a terminal: confirm with --yes")


def _is_confirmed(count: int) -> bool:
    """Ask the person at the terminal."""
    sys.stderr.write(f"Delete {counted(count, 'session')} for good? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    write_error("Nothing was deleted.")
    return False
