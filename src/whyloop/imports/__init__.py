"""Read the logs of other agents as ordinary sessions: files, the runs in them, and a report."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from hashlib import blake2b
from io import TextIOBase
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from whyloop.errors import ConfigurationError, SessionExistsError, SnapshotError, WhyloopError
from whyloop.imports.chat_logs import AnthropicLog, OpenAILog
from whyloop.imports.openhands import OpenHandsLog
from whyloop.imports.opentelemetry import OpenTelemetryLog
from whyloop.imports.swe_agent import SweAgentLog
from whyloop.imports.transcript import MISREAD, LogError, LogFormat
from whyloop.stores.listing import summary_of
from whyloop.stores.reading import FORMAT as OWN_FORMAT
from whyloop.stores.store import Store
from whyloop.values import encoding
from whyloop.values.redaction import DEFAULT_REDACTION, redacted
from whyloop.values.scalars import utc_now
from whyloop.values.state import AgentState
from whyloop.values.text import printable, shortened
from whyloop.wire.journal import Entry, entries_of, state_of

__all__ = ["ImportReport", "LogProblem", "import_log", "read_log"]

Source = str | PathLike[str] | Iterable[str]
"""The path of a file, or the lines of one."""

_FORMATS: dict[str, type[LogFormat]] = {
    "openai": OpenAILog,
    "anthropic": AnthropicLog,
    "openhands": OpenHandsLog,
    "swe-agent": SweAgentLog,
    "opentelemetry": OpenTelemetryLog,
}

FORMATS = tuple(_FORMATS)
"""The names of the formats that can be read."""

LARGEST_DOCUMENT = 256 * 1024 * 1024
"""The maximum number of characters of a line, and of a file that is one document."""

_LONGEST_NAME, _LONGEST_REASON = 80, 300


class LogProblem(Struct, frozen=True):
    """A problem with one run of a log."""

    run: str
    """The id of the run in the log, or its number."""
    reason: str
    """The problem, for people."""
    line: int | None = None
    """The line of the file; None if the run is spread over several."""
    session: str | None = None
    """The session that the run became; None if it was not imported."""

    def __str__(self) -> str:
        """Return the problem on one line, with its place."""
        place = f"line {self.line}, {self.run}" if self.line is not None else self.run
        return f"{place}: {self.reason}"


class ImportReport(Struct, frozen=True):
    """The result of an import."""

    imported: tuple[str, ...] = ()
    """The ids of the new sessions, in the order of the log."""
    skipped: tuple[str, ...] = ()
    """The ids of sessions that already existed, if they may be skipped."""
    gaps: tuple[LogProblem, ...] = ()
    """The gaps in runs that were imported."""
    problems: tuple[LogProblem, ...] = ()
    """The runs that were not imported."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        document: dict[str, Any] = encoding.encode(self)
        return document


class _Run(Struct):
    """A run that was read: a session, and the journal to store."""

    line: int | None
    name: str
    state: AgentState
    entries: Sequence[Entry]
    gaps: Sequence[str]


def read_log(
    source: Source, format: str, *, on_problem: Callable[[LogProblem], None] | None = None
) -> Iterator[AgentState]:
    """Yield the runs of another agent's log as sessions, without a store.

    Args:
        source: The path of a file (JSON, JSON lines, either compressed as `.gz`), or its lines.
        format: "openai", "anthropic", "openhands", "swe-agent" or "opentelemetry".
        on_problem: Called for each run that cannot be read, before the next one is. Default: a
            `SnapshotError` ends the reading.
    """
    for found in _runs(source, format, utc_now()):
        if isinstance(found, _Run):
            yield found.state
        elif on_problem is None:
            place = "the end" if found.line is None else f"line {found.line}"
            raise SnapshotError(f"{found.run}: {found.reason}", place)
        else:
            on_problem(found)


async def import_log(
    store: Store,
    source: Source,
    format: str,
    *,
    skip_existing: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Store the runs of another agent's log, each as a session.

    A run that cannot be imported is in the report, and the others are imported. The id of a session is
    derived from its run, so that a run is only imported once, even if it occurs several times.

    Args:
        store: The store.
        source: The path of a file (JSON, JSON lines, either compressed as `.gz`), or its lines.
        format: "openai", "anthropic", "openhands", "swe-agent" or "opentelemetry".
        skip_existing: True to skip runs that already exist. Default: False.
        on_progress: Called after each run with the number of runs so far. Default: none.
    """
    imported: list[str] = []
    skipped: list[str] = []
    gaps: list[LogProblem] = []
    problems: list[LogProblem] = []
    for number, found in enumerate(_runs(source, format, store.now()), 1):
        if isinstance(found, LogProblem):
            problems.append(found)
        else:
            agent_id = found.state.agent_id
            try:
                await store.create(summary_of(found.state), found.entries)
                imported.append(agent_id)
                gaps += [_problem(found.line, found.name, gap, agent_id) for gap in found.gaps]
            except SessionExistsError:
                if skip_existing:
                    skipped.append(agent_id)
                else:
                    problems.append(_problem(found.line, found.name, f"session {agent_id!r} already exists"))
        if on_progress is not None:
            on_progress(number)
    return ImportReport(tuple(imported), tuple(skipped), tuple(gaps), tuple(problems))


def guess_format(source: Source) -> str | None:
    """Return the name of the format that a log seems to have, or None.

    Args:
        source: The path of a file, or its lines.
    """
    with _opened(source) as (_, lines):
        return next((_format_of(document) for _, document in _documents(lines)), None)


def _format_of(document: object) -> str | None:
    fitting = [name for name, kind in _FORMATS.items() if kind().fits(document)]
    # A conversation of plain text is the same in both APIs.
    return fitting[0] if fitting else None


# From lines to runs


def _runs(source: Source, format: str, now: datetime) -> Iterator[_Run | LogProblem]:
    if format not in FORMATS:
        raise ConfigurationError(f"unknown format {format!r}: use {', '.join(FORMATS)}")
    log, is_empty = _FORMATS[format](), True
    for found in _runs_in(log, source, format, now):
        is_empty = False
        yield found
    if is_empty:
        yield _problem(None, "", log.absence())


def _runs_in(log: LogFormat, source: Source, format: str, now: datetime) -> Iterator[_Run | LogProblem]:
    is_first = True
    with _opened(source) as (name, lines):
        metadata = {"imported_from": format, **({"imported_file": name} if name else {})}
        for line, document in _documents(lines):
            if isinstance(document, LogError):
                yield _problem(line, "", str(document))
                continue
            if is_first:
                _check_format(document, format, log)
                is_first = False
            yield from _runs_of(log, partial(log.runs, document), line, now, metadata)
        yield from _runs_of(log, log.rest, None, now, metadata)


def _runs_of(
    log: LogFormat,
    runs: Callable[[], Iterable[object]],
    line: int | None,
    now: datetime,
    metadata: dict[str, Any],
) -> Iterator[_Run | LogProblem]:
    try:
        for number, run in enumerate(runs(), 1):
            yield _run(log, run, line, number, now, metadata)
    except LogError as error:
        yield _problem(line, "", str(error))


def _run(
    log: LogFormat, run: object, line: int | None, number: int, now: datetime, metadata: dict[str, Any]
) -> _Run | LogProblem:
    """Return a run as a session, or the problem with it."""
    name = ""
    try:
        transcript = log.read(run)
        given = transcript.name
        if not given and log.named_by_file:
            given = metadata.get("imported_file", "").partition(".traj")[0]
        name = printable(shortened(given, _LONGEST_NAME))
        digest = blake2b(encoding.comparable(run), digest_size=6).hexdigest()
        agent_id = f"{name or metadata['imported_from']}-{digest}"
        state, entries = AgentState(agent_id=agent_id), []
        marks = {**metadata, **({"imported_run": name} if name else {})}
        for transitions in transcript.transitions(now, marks):
            entries += entries_of(transitions, state)
            for transition in transitions:
                state = transition.apply_to(state)
        # Exactly the session that will be read from the store.
        state = state_of(agent_id, [entry.body for entry in entries])
        return _Run(line, name or f"run {number}", state, entries, transcript.gaps)
    except (LogError, WhyloopError, RecursionError, UnicodeError) as error:
        return _problem(line, name or f"run {number}", str(error) or type(error).__name__)
    except MISREAD as error:  # An unforeseen error in one run of thousands must not affect the others.
        return _problem(line, name or f"run {number}", f"it does not have the form of {log.title}: {error!r}")


def _problem(line: int | None, run: str, reason: str, session: str | None = None) -> LogProblem:
    text = redacted(shortened(reason, _LONGEST_REASON), DEFAULT_REDACTION)
    return LogProblem(run or "the log", text, line, session)


def _check_format(document: object, format: str, log: LogFormat) -> None:
    """Refuse a file that is clearly of another format."""
    if isinstance(document, dict) and document.get("format") == OWN_FORMAT:
        raise ConfigurationError(
            f"not {log.title}: these are exported sessions of whyloop, which are imported without a format"
        )
    if log.fits(document):
        return
    other = _format_of(document)
    if other is not None:
        raise ConfigurationError(
            f"not {log.title}: it looks like {_FORMATS[other].title}, so use the format {other!r}"
        )


# From a file to documents


@contextmanager
def _opened(source: Source) -> Iterator[tuple[str, Iterable[str]]]:
    """Open a file for its lines, with its name; lines that were given have none."""
    if not isinstance(source, str | PathLike):
        yield "", _lines(source) if isinstance(source, TextIOBase) else source
        return
    path = Path(fspath(source))
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape") as file:
        yield path.name, _lines(file, path.name)


def _lines(file: TextIO | TextIOBase, name: str = "stdin") -> Iterator[str]:
    """Yield the lines of a file, never more of one than can be read."""
    try:
        while line := file.readline(LARGEST_DOCUMENT + 1):
            yield line
            while not line.endswith("\n") and len(line) > LARGEST_DOCUMENT:  # The rest of it is left out.
                line = file.readline(LARGEST_DOCUMENT + 1)
    except (EOFError, zlib.error) as error:
        raise SnapshotError(f"the compressed file is broken: {error}. Copy it again", name) from None


def _documents(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Yield each document with its line, or the `LogError` in its place.

    A file has one document in each line, or is one document as a whole.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        yield 1, LogError("the file is empty")
        return
    document = _decoded(first[1])
    if isinstance(document, LogError):
        second = next(numbered, None)
        if second is None or isinstance(_decoded(second[1]), LogError | str | int | float | bool | None):
            yield _whole(first, second, numbered)
            return
        yield first[0], document
        yield second[0], _decoded(second[1])
    else:
        yield first[0], document
    for number, line in numbered:
        yield number, _decoded(line)


def _whole(
    first: tuple[int, str], second: tuple[int, str] | None, rest: Iterable[tuple[int, str]]
) -> tuple[int, Any]:
    """Return the one document of a file, which has several lines."""
    texts, size = [first[1]], len(first[1])
    for _, line in [] if second is None else chain([second], rest):
        texts.append(line)
        size += len(line)
        if size > LARGEST_DOCUMENT:
            return first[0], _too_large("the document")
    return first[0], _decoded("".join(texts))


def _decoded(text: str) -> Any:
    if len(text) > LARGEST_DOCUMENT:
        return _too_large("the line")
    try:
        return msgspec.json.decode(text)
    except UnicodeError:
        return LogError("not UTF-8 text")
    except (msgspec.DecodeError, RecursionError) as error:
        return LogError(f"not JSON: {error}")


def _too_large(noun: str) -> LogError:
    return LogError(
        f"{noun} has more than {LARGEST_DOCUMENT:,} characters: write one run on each line of the file"
    )
