"""Running a command: its store, the sessions that it names, and errors as lines for a person."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyloop.cli.command import DEFAULT_STORE, STORE_VARIABLE
from whyloop.cli.formats import before_now, metadata_of, program, unique_length, without_password
from whyloop.cli.terminal import CANNOT_WRITE, FAILED, USAGE_ERROR, CannotWrite, CommandError, report
from whyloop.errors import ConfigurationError, SessionNotFoundError, WhyloopError
from whyloop.stores import open_store
from whyloop.stores.reading import read_session
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.state import AgentState
from whyloop.values.text import clean, short_id, shortened

if TYPE_CHECKING:  # It loads all rules.
    from whyloop.replay.recording import Filters

LONGEST_ERROR = 1000
PAGE = 1000
MOST_CANDIDATES = 8


async def run_with_store(
    function: Callable[[Store, Namespace], Awaitable[int]], args: Namespace, *, create: bool
) -> int:
    """Run the function of a command with the store that was named.

    `args.created` is the file that this creates, or None.
    """
    args.created = new_file(args.store)
    async with open_named_store(args.store, create=create) as store:
        return await function(store, args)


def run_command(name: str, work: Callable[[], Coroutine[Any, Any, int] | int]) -> int:
    """Run a command and return its exit code; write errors to stderr."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (the interpreter flushes it at the end)
        return report(name, "the answer cannot be written: stdout is closed", CANNOT_WRITE)
    try:
        result = work()
        return result if isinstance(result, int) else asyncio.run(result)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except CommandError as error:
        return report(name, str(error), error.code)
    except ConfigurationError as error:
        return report(name, shortened(str(error), LONGEST_ERROR), USAGE_ERROR)
    except CannotWrite as error:
        return report(name, f"the answer cannot be written: {error}", CANNOT_WRITE)
    except WhyloopError as error:
        return report(name, shortened(str(error), LONGEST_ERROR), FAILED)


def open_named_store(address: str | None, *, create: bool = False) -> Store:
    """Open the store at an address, or the default one.

    A file is only created with `create`.
    """
    address = address or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
    if not create and new_file(address) is not None:
        name = shortened(without_password(address))
        raise CommandError(
            f"store {name!r} not found: record a run in one with "
            f'{shlex.join(program())} run "…" --store {name}, '
            f"or name another with --store or ${STORE_VARIABLE}"
        )
    return open_store(address)


def new_file(address: str | None) -> Path | None:
    """Return the file that opening this store creates, or None."""
    address = address or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
    path = Path(address).expanduser()
    return None if "://" in address or path.exists() else path


async def find_session(store: Store, typed: str) -> Summary:
    """Return the session with this id, or the only one whose id begins with it."""
    typed = clean(typed)
    if not typed.strip():
        raise CommandError("name a session by its id, or by the beginning of it", USAGE_ERROR)
    try:
        return (await store.read(typed, limit=0)).summary
    except SessionNotFoundError:
        candidates = await _with_prefix(store, typed)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        missing = f"session {shortened(typed)!r} not found in this store"
        raise CommandError(f"{missing}: {shlex.join(program())} sessions lists the sessions of a store")
    raise CommandError(_ambiguous(typed, candidates))


async def load_session(store: Store, typed: str) -> tuple[Summary, AgentState]:
    """Return the summary and the state of the session that was named."""
    summary = await find_session(store, typed)
    reading = await read_session(store, summary.agent_id)
    return reading.summary, reading.state


def filters_of(args: Namespace) -> Filters:
    """Return the conditions that sessions must meet."""
    return {
        "status": args.status,
        "stop_reason": args.stop_reason,
        "started_before": before_now(args.older_than),
        "started_after": before_now(args.newer_than),
        "metadata": metadata_of(args.metadata),
        "resolved_by": args.rule,
        "agent": args.agent,
        "updated_after": before_now(args.updated_since),
        "waiting": args.waiting,
        "search": args.search,
    }


async def _with_prefix(store: Store, prefix: str) -> list[Summary]:
    candidates: list[Summary] = []
    cursor: str | None = None
    while len(candidates) <= MOST_CANDIDATES:
        page = await store.sessions(limit=PAGE, after=cursor)
        candidates += [summary for summary in page.sessions if summary.agent_id.startswith(prefix)]
        cursor = page.next
        if cursor is None:
            break
    return candidates


def _ambiguous(typed: str, candidates: list[Summary]) -> str:
    shown = candidates[:MOST_CANDIDATES]
    length = unique_length(summary.agent_id for summary in shown)
    lines = [f"several sessions begin with {shortened(typed)!r}; type more of the id:"]
    lines += [
        f"  {shortened(short_id(summary.agent_id, length))}  {shortened(summary.title)}" for summary in shown
    ]
    return "\n".join([*lines, "  …"] if len(candidates) > len(shown) else lines)
