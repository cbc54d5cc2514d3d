"""Listing and finding sessions: summaries, the text of a search, labels, counts and cursors."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Any
from unicodedata import normalize

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from whyloop.errors import ConfigurationError, StoreError
from whyloop.stores.records import LONGEST_ID, Page, SessionFilter, Summary, Tally
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.encoding import jsonable
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.log import Log
from whyloop.values.redaction import DEFAULT_REDACTION, LONGEST, Redaction, redacted, redacted_cut
from whyloop.values.scalars import as_utc
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step, end_error
from whyloop.values.text import clean, shortened
from whyloop.wire.journal import Counts, Entry

# Searching and counting


def searchable(text: str) -> str:
    """Return text as searches compare it: one line, case-folded and normalized."""
    if not text.isascii():
        text = normalize("NFKC", clean(text))
    return " ".join(text.replace("\x00", " ").casefold().split())


def search_terms(wanted: SessionFilter) -> list[str]:
    """Return the terms that the text of a session must have to be found."""
    return [] if wanted.search is None else searchable(wanted.search).split()


DAY = timedelta(days=1)


def tallies_of(summaries: Iterable[Summary], since: datetime) -> tuple[Tally, ...]:
    """Return the tallies of these sessions; the first day begins at `since`."""
    counts: dict[tuple[Any, ...], list[int]] = {}
    for summary in summaries:
        age = summary.updated_at - since
        day = age // DAY if age >= timedelta() else None
        kind = summary.status, summary.stop_reason, summary.resolved_by, day
        count = counts.setdefault(kind, [0, 0, 0])
        count[0] += 1
        count[1] += summary.waiting > 0
        count[2] += summary.waiting
    return tuple([Tally(*kind, *count) for kind, count in counts.items()])


# Summaries and labels as databases keep them


class Listing(Struct, frozen=True, gc=False):
    """The columns with which a database lists a session: its summary, some of its fields, and its labels.

    A session has one label for each condition that it meets. A label is 64 bits of a fingerprint, so that
    text of any length fits into an index.
    """

    summary: str
    """The summary as JSON, of the version in it, without `search` and the fields that only a store knows."""
    search: str
    status: AgentStatus
    stop_reason: StopReason | None
    resolved_by: str | None
    waiting: int
    started_at: datetime
    updated_at: datetime
    labels: list[int]


def listing_of(summary: Summary, version: int) -> Listing:
    """Return the columns of a session for a database, with times in UTC.

    Args:
        version: The version of the session that is listed like this.
    """
    started_at, updated_at = as_utc(summary.started_at), as_utc(summary.updated_at)
    metadata = jsonable(summary.metadata)
    stored = replace(
        summary,
        started_at=started_at,
        updated_at=updated_at,
        metadata=metadata,
        version=version,
        runner=None,
        workflow=None,
        search="",
    )
    try:
        text = msgspec.json.encode(stored).decode()
    except UnicodeEncodeError as error:
        raise StoreError(f"invalid text, which is not Unicode: {error}") from None
    return Listing(
        text,
        summary.search,
        summary.status,
        summary.stop_reason,
        summary.resolved_by,
        summary.waiting,
        started_at,
        updated_at,
        labels_of(stored),
    )


def decode_summary(text: str, version: int, counts: str | None, **known: Any) -> Summary:
    """Return the summary in a JSON text, with the fields that the store knows.

    Args:
        version: The version of the session.
        counts: The counts of its last entry, as JSON.
    """
    summary: Summary = _summary_decoder.decode(text)
    if counts is not None and version > summary.version:
        known |= structs.asdict(_counts_decoder.decode(counts))
    return replace(summary, version=version, **known)


def encode_counts(counts: Counts | None) -> str | None:
    """Return counts as JSON."""
    return None if counts is None else _counts_encoder.encode(counts).decode()


def with_counts(summary: Summary, entries: Sequence[Entry]) -> Summary:
    """Return a summary with the counts of the last entry, which may be newer."""
    counts = entries[-1].counts if entries else None
    return summary if counts is None else replace(summary, **structs.asdict(counts))


_summary_decoder = msgspec.json.Decoder(Summary)
_counts_decoder = msgspec.json.Decoder(Counts)
_counts_encoder = msgspec.json.Encoder()


def labels_of(summary: Summary) -> list[int]:
    """Return the labels of a session: a common one, and one for each filter value."""
    metadata = [
        (key, value)
        for key, value in summary.metadata.items()
        if value is None or isinstance(value, str | int | float | bool)
    ]
    return [_known_label("session"), *_labels(summary, metadata)]


def wanted_labels(wanted: SessionFilter) -> list[int]:
    """Return the labels, at least one, that a session must have to be found."""
    return _labels(wanted, wanted.metadata.items()) or [_known_label("session")]


def agent_labels(agents: Iterable[str]) -> list[int]:
    """Return the labels of which the sessions of these agents have one each."""
    return [_known_label("agent", name) for name in agents]


def _labels(found: Summary | SessionFilter, metadata: Iterable[tuple[str, object]]) -> list[int]:
    fields = [(name, getattr(found, name)) for name in ("status", "stop_reason", "resolved_by", "agent")]
    return [
        *[_known_label(name, value) for name, value in fields if value is not None],
        *([_known_label("waiting")] if found.waiting else ()),
        *[_label("metadata", key, value) for key, value in metadata],
    ]


def _label(*condition: object) -> int:
    digest = blake2b(msgspec.json.encode(condition), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


# There are few statuses, reasons, rules and agents, so caching saves 1 µs for each label. Metadata has many
# values.
_known_label = lru_cache(maxsize=200)(_label)


# Pages and cursors


def page_of(found: Sequence[Summary], limit: int) -> Page:
    """Return a page of the sessions that were found: at most one more than fit on it."""
    shown = tuple(found[:limit])
    return Page(shown, cursor_of(shown[-1]) if len(found) > limit else None)


def cursor_of(summary: Summary) -> str:
    """Return the cursor of a page that ends with this session."""
    written = msgspec.json.encode((as_utc(summary.started_at).isoformat(), summary.agent_id))
    return urlsafe_b64encode(written).decode().rstrip("=")


def position(cursor: str) -> tuple[datetime, str]:
    """Return when the last session of the previous page started, in UTC, and its id."""
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        written, agent_id = msgspec.json.decode(urlsafe_b64decode(padded), type=tuple[str, str])
        started_at = datetime.fromisoformat(written)
        if started_at.tzinfo is None:
            raise ValueError("a time without a zone")
        return started_at.astimezone(UTC), agent_id
    except (ValueError, TypeError, AttributeError, OverflowError, msgspec.MsgspecError):
        raise ConfigurationError(
            f"invalid cursor {shortened(repr(cursor), 80)}: "
            "use the `next` of the previous page, or nothing for the first page"
        ) from None


# The summary of a state

LONGEST_TITLE = 80
LONGEST_REASON = 300
MOST_MARKS = 24
# A query comes right before the first step of its execution, except for a note or two.
_LOOK_BACK = 8

_IS_USER = attrgetter("is_user")
_RETRY = ErrorHandlingDecision.RETRY
_ALLOW_STOP = ContinuationDecision.ALLOW_STOP


def summary_of(state: AgentState) -> Summary:
    """Return the summary of a state, in constant time."""
    pending, stop_reason = state.question_count, state.stop_reason
    first_query, last_query = _queries(state)
    outcome = state.last_continuation_outcome
    reason, step_limit = "", None
    if outcome is not None:
        reason, step_limit = end_error(outcome, state.current_step), _step_limit(outcome)
    title = shortened(first_query, LONGEST_TITLE)
    summary = Summary(
        agent_id=state.agent_id,
        status=state.status,
        started_at=state.state_info.started_at,
        updated_at=state.state_info.updated_at,
        stop_reason=stop_reason,
        parent_agent_id=state.parent_agent_id,
        title=title,
        metadata=state.metadata,
        identity=state.identity,
        agent=state.agent,
        resolved_by=outcome.resolved_by if outcome else None,
        reason=shortened(reason, LONGEST_REASON) if reason else None,
        pending=pending,
        last_query=title if last_query == first_query else shortened(last_query, LONGEST_TITLE),
        step_limit=step_limit,
        **structs.asdict(_counts_of(state, _step_marks(state.steps, pending))),
    )
    texts = (first_query, "" if last_query == first_query else last_query, state.execution.last_response)
    return replace(summary, search=_search_text(summary, texts))


class Counting:
    """The counts of a session during its run, without counting all of its steps each time."""

    def __init__(self) -> None:
        self._steps: int | None = None
        self._marks = ""

    def counts(self, before: AgentState, after: AgentState) -> Counts | None:
        """Return the counts after a change that changes nothing else in a list; None if it does."""
        if not _is_listed_alike(before, after):
            return None
        steps, known = after.steps, self._steps
        if steps.length != known:
            is_next = known is not None and steps.length == known + 1
            self._marks = self._marks + _mark(steps[-1]) if is_next else _step_marks(steps, 0)
            self._marks, self._steps = self._marks[-MOST_MARKS:], steps.length
        return _counts_of(after, self._marks)


def _counts_of(state: AgentState, step_marks: str) -> Counts:
    usage = state.usage
    return Counts(
        state.step_count,
        usage.total,
        usage.reported,
        None if usage.cost is None else str(usage.cost),
        state.state_info.cumulative_execution_seconds,
        step_marks,
    )


def _is_listed_alike(before: AgentState, after: AgentState) -> bool:
    """Return whether a change leaves the labels and the searched text of a session as they are."""
    return (
        before.status is after.status
        and before.execution.id == after.execution.id
        and before.question_count == after.question_count
    )


def summary_of_end(state: AgentState, listed: Summary) -> Summary:
    """Return the summary of a session, given only the end of its history.

    Args:
        listed: The summary in the store, of this moment or later.
    """
    found = summary_of(state)
    if not state.messages.start:
        return found
    found = replace(found, title=listed.title, search="")
    if listed.updated_at > found.updated_at:
        return found
    marks = listed.step_marks if listed.step_count == found.step_count else found.step_marks
    return replace(found, last_query=found.last_query or listed.last_query, step_marks=marks)


# The text that is searched

LONGEST_SEARCHED = 400
"""The number of characters of each text that are searched; ids are searched completely."""


def _search_text(summary: Summary, texts: Sequence[str]) -> str:
    """Return the text in which a search looks for its terms: a line for each part.

    A client of the server may search, so a search must not find what the client cannot see. Queries and
    answers are part of the chat, which shows them as they are. The reason and the metadata are shown
    without secrets: those of the default rules are removed here, and a server with its own rules checks the
    results (`can_find`).
    """
    lines = [summary.agent_id, *[text[:LONGEST_SEARCHED] for text in texts]]
    searched = [searchable(line)[:LONGEST_ID] if line else "" for line in lines]
    return "\n".join([*searched, *_guarded(summary, DEFAULT_REDACTION)])


def _guarded(summary: Summary, redaction: Redaction | None) -> tuple[str, str]:
    """Return the searchable lines of texts that views show without secrets."""
    metadata = _metadata_text(summary.metadata, redaction)
    return _reason_line(summary.reason or "", redaction), searchable(metadata)[:LONGEST_ID]


# Most sessions end for one of a few reasons, so caching saves 8 µs.
@lru_cache(maxsize=200)
def _reason_line(reason: str, redaction: Redaction | None) -> str:
    return searchable(redacted_cut(reason, redaction))[:LONGEST_ID]


def _metadata_text(metadata: Mapping[str, Any], redaction: Redaction | None) -> str:
    if not metadata:
        return ""
    read: dict[str, Any] = {}
    length = 0
    for key, value in metadata.items():
        if length >= LONGEST_SEARCHED:
            break
        read[key] = value[: LONGEST_SEARCHED + LONGEST] if isinstance(value, str) else value
        length += len(key) + (len(value) if isinstance(value, str) else 1)
    texts = [
        f"{key} {value}" if isinstance(value, str) else f"{key} {msgspec.json.encode(value).decode()}"
        for key, value in redacted(read, redaction).items()
    ]
    return " ".join(texts)[:LONGEST_SEARCHED]


def can_find(summary: Summary, terms: Sequence[str], redaction: Redaction | None) -> bool:
    """Return whether each term occurs in a text that a client sees under these rules.

    Args:
        summary: A session that a search for these terms has found.
        terms: The terms.
        redaction: The rules by which a server removes secrets.
    """
    if redaction in (None, DEFAULT_REDACTION):
        return True
    *lines, _, _ = summary.search.split("\n")
    lines += _guarded(summary, redaction)
    return all(any(term in line for line in lines) for term in terms)


def _step_limit(outcome: ContinuationOutcome) -> int | None:
    evaluation = outcome.evaluation_for("StepsLimit")
    limit = evaluation.context.get("limit") if evaluation else None
    return limit if isinstance(limit, int) and limit >= 0 else None


def _queries(state: AgentState) -> tuple[str, str]:
    """Return the first and the last query; empty for one that was not read."""
    taken, messages, steps = state.execution.step_number, state.messages, state.steps
    start, end, first_step = messages.start, messages.length, steps.length - taken
    if steps.start <= first_step < steps.length:
        end = min(end, steps[first_step].first_message)
    first = None if start else next(filter(_IS_USER, messages), None)
    last = next(filter(_IS_USER, reversed(messages[max(start, end - _LOOK_BACK) : end])), None)
    return first.text if first else "", last.text if last else ""


def _step_marks(steps: Log[Step], pending: int) -> str:
    latest = steps[max(steps.start, steps.length - MOST_MARKS) :]
    return "".join([*map(_mark, latest), "p" if pending else ""])[-MOST_MARKS:]


def _mark(step: Step) -> str:
    outcome = step.outcome
    if outcome is not None and outcome.stop_reason is not None and step.wrap_up is None:
        return "s" if outcome.decision is _ALLOW_STOP else "f"
    if step.failures:
        is_retry = step.model_failure is not None and outcome is not None and outcome.handling is _RETRY
        return "r" if is_retry else "e"
    mark = "."
    for call in step.tool_calls:
        if call.approvals:
            return "p"
        if not call.success:
            mark = "e"
    return mark
