"""`whyloop fork`, `metadata`, `export`, `import`, `delete`, `prune`: sessions copied, changed, removed."""

from __future__ import annotations

import argparse
import errno
import io
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import msgspec

from whyloop.cli.formats import decider, escaped, long_span_text, metadata_of
from whyloop.cli.store_access import find_session, new_file, open_named_store
from whyloop.cli.terminal import (
    FAILED,
    MOST_LISTED,
    USAGE_ERROR,
    CommandError,
    progress,
    read_line,
    using_file,
    write,
    write_error,
    write_json,
    write_lines,
)
from whyloop.errors import (
    ConfigurationError,
    SessionExistsError,
    SnapshotError,
    WorkflowOpenError,
    how_to_install,
)
from whyloop.stores import prune as prune_store
from whyloop.stores.store import Store
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction, redacted
from whyloop.values.state import AgentStatus
from whyloop.values.text import counted, shortened


async def fork(store: Store, args: argparse.Namespace) -> int:
    """Create a session with the history of another one, and print its id."""
    summary = await find_session(store, args.id)
    state = await store.fork(summary.agent_id, step=args.step)
    write_lines([state.agent_id])
    return 0


async def metadata(store: Store, args: argparse.Namespace) -> int:
    """Show the metadata of a session, changed by the entries that were given."""
    summary = await find_session(store, args.id)
    found: Mapping[str, object] = summary.metadata
    if args.entries:
        entries = metadata_of(args.entries, "entry")
        found = (await store.set_metadata(summary.agent_id, entries, by=decider(args.by))).metadata
    shown = redacted(dict(found), DEFAULT_REDACTION)
    if args.json:
        write_json(shown)
    else:
        write_lines([f"{name}={_value_text(value)}" for name, value in shown.items()] or ["No metadata."])
    return 0


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def export(store: Store, args: argparse.Namespace) -> int:
    """Write sessions to a JSON Lines file."""
    found = [await find_session(store, typed) for typed in args.ids]
    agent_ids = list(dict.fromkeys(summary.agent_id for summary in found))
    if args.html:
        if len(agent_ids) != 1 or args.output:
            raise CommandError("--html writes one session: name it, and leave --output out", USAGE_ERROR)
        await _write_file(_page_of(store, agent_ids[0]), args.html)
        return 0
    lines = store.export(*agent_ids)
    await (_write_file(lines, args.output) if args.output else _write_stdout(lines))
    return 0


async def _page_of(store: Store, agent_id: str) -> AsyncIterator[str]:
    """Yield the pieces of a session as an HTML page."""
    try:
        from whyloop.server.details import saved_session
    except ImportError as error:
        raise CommandError(f"--html needs the server: {how_to_install('server')} ({error})") from None
    yield "".join(await saved_session(store, agent_id, Redaction(), store.now())).rstrip()


async def import_(args: argparse.Namespace) -> int:
    """Import sessions from an exported file, or runs from another agent's log."""
    if args.format is not None:
        return await _import_log(args)
    # Without a file to read, no store is created.
    with _lines_of(args.file) as lines:
        async with _store_to_fill(args.store) as store:
            try:
                stored = await store.import_lines(lines, skip_existing=args.skip_existing)
            except SessionExistsError as error:
                raise CommandError(
                    f"{shortened(str(error), 200)}. Those before it in the file are imported; "
                    "--skip-existing imports the others"
                ) from None
            except SnapshotError as error:
                raise _with_format(error, args.file) from None
    if args.json:
        write_json({"imported": stored})
    else:
        write_lines([f"Imported {counted(len(stored), 'session')}."])
    return 0


@asynccontextmanager
async def _store_to_fill(address: str | None) -> AsyncIterator[Store]:
    """Open a store, or create one; remove a new one that received nothing."""
    created, is_empty = new_file(address), False
    try:
        async with open_named_store(address, create=True) as store:
            try:
                yield store
            finally:
                is_empty = not (await store.sessions(limit=1)).sessions
    finally:
        if created is not None and is_empty:
            created.unlink(missing_ok=True)


def _with_format(error: SnapshotError, path: str) -> Exception:
    """Return the error with the likely format, if the file is another agent's log."""
    if error.path != "line 1" or path == "-":
        return error
    from whyloop.imports import guess_format

    guessed = guess_format(path)
    return error if guessed is None else CommandError(f"{error}; import it with --format {guessed}")


async def _import_log(args: argparse.Namespace) -> int:
    """Store the runs of another agent's log, and report those that could not be."""
    from whyloop.imports import import_log

    source = args.file if args.file != "-" else _stdin(errors="surrogateescape")
    with using_file("read", args.file):
        if args.file != "-":
            os.close(os.open(args.file, os.O_RDONLY))  # Without a file to read, no store is created.
        async with _store_to_fill(args.store) as store:
            with progress("read") as advance:
                report = await import_log(
                    store,
                    source,
                    args.format,
                    skip_existing=args.skip_existing,
                    on_progress=lambda _: advance(),
                )
    if args.json:
        write_json(report.to_dict())
    else:
        for noun, found in (("Not imported", report.problems), ("Incomplete", report.gaps)):
            for problem in found[:MOST_LISTED]:
                write_error(f"{noun}: {problem}")
            if len(found) > MOST_LISTED:
                write_error(f"{noun}: {len(found) - MOST_LISTED:,} more, --json lists all")
        skipped = f", skipped {len(report.skipped):,} that already exist" if report.skipped else ""
        write_lines([f"Imported {counted(len(report.imported), 'session')}{skipped}."])
    return FAILED if report.problems or report.gaps else 0


async def _write_stdout(lines: AsyncIterator[str]) -> None:
    """Write the lines; on a terminal, escape unprintable characters as JSON does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    shown = escaped if sys.stdout.isatty() else str
    async for line in lines:
        write(f"{shown(line)}\n")


async def _write_file(lines: AsyncIterator[str], path: str) -> None:
    try:
        with open(_private_file(path), "w", encoding="utf-8", newline="\n") as file:  # noqa: ASYNC230  (it is alone)
            async for line in lines:
                file.write(f"{line}\n")
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        reason = "it is a symbolic link, which is not followed" if is_link else error.strerror
        raise CommandError(f"cannot write {shortened(path)}: {reason}") from None


def _private_file(path: str) -> int:
    """Open a file that only its owner can read: it has whole conversations.

    A link is not followed, because another user may have made it point anywhere.
    """
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            if hasattr(os, "fchmod"):  # Not on Windows.
                os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _lines_of(path: str) -> Iterator[Iterable[str]]:
    """Open a file, or stdin, for its lines."""
    try:
        with using_file("read", path):
            if path == "-":
                yield _stdin()
            else:
                with open(path, encoding="utf-8") as file:
                    yield file
    except UnicodeDecodeError:
        raise CommandError(f"cannot read {shortened(path)}: not UTF-8 text") from None


def _stdin(errors: str = "strict") -> Iterable[str]:
    if sys.stdin is None:
        raise CommandError("cannot read stdin, which is closed: name a file", USAGE_ERROR)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors=errors)
    return iter(read_line, "") if sys.stdin.isatty() else sys.stdin


# Removing


async def delete(store: Store, args: argparse.Namespace) -> int:
    """Delete the named sessions."""
    # All of them are looked up first, so that none is deleted if one does not exist.
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
        await _delete(store, agent_id, workflow_closed=args.workflow_closed)
        write_lines([f"Deleted {shortened(agent_id)}  {shortened(summary.title)}".rstrip()])
    return 0


async def _delete(store: Store, agent_id: str, *, workflow_closed: bool) -> None:
    try:
        await store.delete(agent_id)
    except WorkflowOpenError as error:
        if not workflow_closed:
            raise CommandError(f"{error}. If no worker runs any more, pass --workflow-closed") from None
        await store.forget_workflow(agent_id, error.token)
        await store.delete(agent_id)


async def prune(store: Store, args: argparse.Namespace) -> int:
    """Delete the sessions that ended long ago."""
    statuses: list[str] = list(dict.fromkeys(args.status or [AgentStatus.COMPLETED.value]))
    noun, seconds = f"{' or '.join(statuses)} session", args.older_than.total_seconds()
    since = f" that last changed over {long_span_text(seconds)} ago" if seconds else ""
    found: list[str] = []
    async for batch in prune_store(store, args.older_than, statuses=statuses, dry_run=True):
        found += batch
    if args.dry_run:
        if found:
            write_lines([shortened(agent_id, 500) for agent_id in found])
        write_error(f"Would delete {counted(len(found), noun)}{since}.")
        return 0
    if found and not args.yes:
        _check_terminal()
        write_error(f"Found {counted(len(found), noun)}{since}.")
        if not _is_confirmed(len(found)):
            return FAILED
    deleted, is_shown = 0, sys.stderr is not None and sys.stderr.isatty()
    async for batch in prune_store(store, args.older_than, statuses=statuses):
        deleted += len(batch)
        if is_shown:
            sys.stderr.write(f"\r{deleted:,} of {max(deleted, len(found)):,}")
            sys.stderr.flush()
    if is_shown and deleted:
        sys.stderr.write("\n")
    write_lines([f"Deleted {counted(deleted, noun)}{since}."])
    return 0


def _check_terminal() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigurationError("cannot ask without a terminal: confirm with --yes")


def _is_confirmed(count: int) -> bool:
    """Ask the person at the terminal."""
    try:
        answer = read_line(f"Delete {counted(count, 'session')} permanently? [y/N] ")
    except KeyboardInterrupt:
        write_error("\nNothing was deleted.")
        raise
    if answer.strip().lower() in ("y", "yes"):
        return True
    write_error("Nothing was deleted.")
    return False
