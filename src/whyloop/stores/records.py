"""The records that pass between a store and its callers, and the keys of claims.

A claim is a large payload of an engine. A store keeps it for a session under the digest of its bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

from msgspec import Struct

from whyloop.errors import ConfigurationError, StoreError
from whyloop.values.continuation import StopReason
from whyloop.values.scalars import Count, Moment, Seconds
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean, shortened

LONGEST_ID = 500
LONGEST_KEY = 255
LONGEST_LEASE = 10 * 365 * 86_400


class Watch(Protocol):
    """A clock for the expiry of leases and the times of decisions."""

    def now(self) -> datetime: ...


class RequestKey(Struct, frozen=True, gc=False):
    """A client's `Idempotency-Key`, and a digest of the request that it came with."""

    key: str
    """1 to 255 characters, unique in its session."""
    digest: str
    """A digest of the request, so that a different request under the key is detected."""

    def __post_init__(self) -> None:
        key = self.key
        if not key or len(key) > LONGEST_KEY or "\x00" in key or clean(key) != key:
            raise ConfigurationError(
                f"invalid key {shortened(repr(key), 80)}: use 1 to {LONGEST_KEY} characters, "
                "without NUL and without unpaired surrogates"
            )


class Summary(Struct, frozen=True, gc=False, omit_defaults=True):
    """A session as a list shows it.

    While a session runs, its counts (`step_count`, `tokens`, `cost`, `active_seconds`, `step_marks`) are
    those of its last entry, and all else is that of the last change of its status.
    """

    agent_id: str
    """The id of the session."""
    status: AgentStatus
    """Its status."""
    started_at: Moment
    """When it was created."""
    updated_at: Moment
    """When it was last changed."""
    stop_reason: StopReason | None = None
    """Why its last run ended; None if it has not."""
    parent_agent_id: str | None = None
    """The session whose tool runs this one, if there is one."""
    step_count: Count = 0
    """The number of its steps."""
    title: str = ""
    """The beginning of its first question."""
    metadata: Mapping[str, Any] = {}
    """Its metadata."""
    version: Count = 0
    """The number of entries in its journal; the store fills it in."""
    runner: str | None = None
    """The owner of the current lease; the store fills it in."""
    workflow: str | None = None
    """The workflow that may be open for it on an engine; the store fills it in."""
    identity: str = ""
    """Set when the session is created, and never changed; a later session with its id has another."""
    agent: str = ""
    """The name of the agent that runs it."""
    resolved_by: str | None = None
    """The rule that decided last."""
    reason: str | None = None
    """The reason that this rule gave; after retries ran out, with the last failure."""
    pending: Count = 0
    """The number of questions that wait for a person, or waited when the run ended."""
    cost: str | None = None
    """The cost so far, a decimal number as text."""
    tokens: Count = 0
    """The tokens so far, read and written together."""
    tokens_known: bool = True
    """False if an answer did not report its tokens, so that `tokens` is a lower bound."""
    active_seconds: Seconds = 0.0
    """The time in which models and tools were at work."""
    step_limit: Count | None = None
    """The limit on the steps of its last run, with what was granted; None if none is recorded."""
    last_query: str = ""
    """The beginning of its last question."""
    step_marks: str = ""
    """A character for each of its last 24 steps.

    `.` an ordinary step, `e` an error or a failed call, `r` a model call that was retried, `p` a step that
    waited for a person, `s` the natural end of a run, `f` the step at which a rule forbade continuing.
    """
    search: str = ""
    """The text in which a search looks for its terms, as `summary_of` makes it; no list shows it."""

    @property
    def waiting(self) -> int:
        """The number of questions that wait for a person; 0 once the run has ended."""
        return self.pending if self.pending and not self.status.has_ended else 0


class Lease(Struct, frozen=True, gc=False):
    """The right to run a session for some seconds, to be renewed.

    The token grows with every lease of a session. Every write includes it, so a writer that lost its lease to
    another runner is detected, however late it wakes up.
    """

    agent_id: str
    """The id of the session."""
    owner: str
    """The name of the runner."""
    token: int
    """The number of the lease; a later lease of the session has a higher one."""
    seconds: float
    """How long the lease lasts without being renewed."""
    identity: str = ""
    """The identity of the session."""
    version: int = 0
    """The version of the session at that moment, so that a runner that has read it need not read again."""
    durable: bool = False
    """True if it belongs to an engine, and outlives the process that acquired it."""


class OpenWorkflow(Struct, frozen=True, gc=False):
    """A workflow of an engine that may be open for a session."""

    agent_id: str
    """The id of the session."""
    engine: str
    """The name of the engine."""
    workflow: str
    """The id of the workflow on the engine."""
    token: int
    """The number of the record; a later record of a workflow has a higher one."""
    seconds: float = 0.0
    """How long ago it was recorded, by the clock of the store."""


class Stored(Struct, frozen=True, gc=False):
    """A session as it is stored: its summary, and the bodies of entries of its journal."""

    summary: Summary
    """The session as it is listed."""
    entries: tuple[str, ...]
    """The bodies of the entries, in order."""


class Chunk(Struct):
    """A live envelope for followers in other processes; never stored permanently.

    It is encoded when its body is first asked for: most sessions have no followers.
    """

    agent_id: str
    """The id of the session."""
    source: str | Callable[[], str]
    """The envelope as JSON, or a function that encodes it."""

    @property
    def body(self) -> str:
        """The envelope as JSON."""
        if not isinstance(self.source, str):
            self.source = self.source()
        return self.source


class SessionFilter(Struct, frozen=True, gc=False):
    """The conditions that a session must meet, all of them, to be listed.

    In `metadata`, only top-level entries with text, numbers, booleans or null are compared.
    """

    status: AgentStatus | None = None
    """The status."""
    stop_reason: StopReason | None = None
    """The reason for which the last run ended."""
    started_after: datetime | None = None
    """Sessions created after this time."""
    started_before: datetime | None = None
    """Sessions created before this time."""
    metadata: Mapping[str, str | int | float | bool | None] = {}
    """Entries that the metadata has."""
    resolved_by: str | None = None
    """The rule that decided last."""
    agent: str | None = None
    """The name of the agent."""
    updated_before: datetime | None = None
    """Sessions last changed before this time."""
    updated_after: datetime | None = None
    """Sessions last changed after this time."""
    waiting: bool = False
    """True to list only sessions with questions that wait for a person."""
    search: str | None = None
    """Terms that must all occur in the searched text, in any order, even inside longer words."""


class Tally(Struct, frozen=True, gc=False):
    """The number of sessions with this status, stop reason and rule that last changed on this day."""

    status: AgentStatus
    """The status."""
    stop_reason: StopReason | None
    """The reason for which the last run ended."""
    resolved_by: str | None
    """The rule that decided last."""
    day: int | None
    """The number of the day, from 0; None for sessions that last changed before the first day."""
    sessions: int
    """The number of these sessions."""
    waiting: int
    """The number of those that have questions for a person."""
    questions: int
    """The number of these questions."""


class Page(Struct, frozen=True, gc=False):
    """Some sessions, newest first; `next` is the cursor of the next page, None on the last page."""

    sessions: tuple[Summary, ...]
    """The sessions."""
    next: str | None = None
    """The cursor of the next page; None on the last page."""


def checked_id(agent_id: object) -> str:
    """Return the id of a session, if every store can keep it."""
    if not isinstance(agent_id, str):
        raise ConfigurationError(f"invalid session id {shortened(repr(agent_id), 80)}: use text")
    if not is_valid_id(agent_id):
        raise ConfigurationError(
            f"invalid session id {shortened(repr(agent_id), 80)}: use 1 to {LONGEST_ID} characters, "
            "without NUL and without unpaired surrogates"
        )
    return agent_id


def is_valid_id(agent_id: str) -> bool:
    """Return whether every store can keep an id."""
    return 0 < len(agent_id) <= LONGEST_ID and "\x00" not in agent_id and clean(agent_id) == agent_id


def checked_limit(limit: object) -> int:
    """Return the number of sessions on a page, if it is valid."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError(f"invalid limit {limit!r}: use 1 or more")
    return limit


def check_lease(owner: object, seconds: object) -> None:
    """Raise an error unless the owner and the seconds of a lease are valid."""
    if not isinstance(owner, str) or not owner:
        raise ConfigurationError(f"invalid lease owner {shortened(repr(owner), 80)}: use text")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= LONGEST_LEASE:  # type: ignore[operator]
        raise ConfigurationError(
            f"invalid lease seconds {shortened(repr(seconds), 80)}: use more than 0, "
            f"and at most {LONGEST_LEASE:,} (ten years)"
        )


def remaining_seconds(left: float, seconds: float) -> float:
    """Return the seconds that are left of a lease; 0 once it has lapsed.

    Small corrections of the clock do not cost a runner its lease. A lease that ends
    later than twice its seconds from now was given by a clock that was wrong.
    """
    return left if 0 < left <= 2 * seconds else 0


def check_workflow(engine: object, workflow: object) -> None:
    """Raise an error unless every store can record a workflow under these names."""
    for name, text in (("engine", engine), ("workflow", workflow)):
        if not isinstance(text, str) or not text or "\x00" in text or clean(text) != text:
            raise ConfigurationError(
                f"invalid {name} {shortened(repr(text), 80)}: use text, without NUL and without unpaired "
                "surrogates"
            )


# Claims

LARGEST_CLAIM = 100_000_000
# Hashing this many bytes takes less than a millisecond. A thread hashes more than that.
HASHED_AT_ONCE = 250_000

_KEY = re.compile("[0-9a-f]{64}")


async def claim_key(data: object) -> str:
    """Return the key of a claim, if every store can keep it."""
    if not isinstance(data, bytes):
        raise ConfigurationError(f"invalid claim {shortened(repr(data), 80)}: use bytes")
    if len(data) > LARGEST_CLAIM:
        raise ConfigurationError(
            f"invalid claim of {len(data):,} bytes: keep at most {LARGEST_CLAIM:,} bytes under one key. "
            "Let a tool write a large result to a file, and return where it is"
        )
    return await _digest(data)


def checked_key(key: object) -> str:
    """Return the key of a claim, if `claim_key` can have made it."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ConfigurationError(
            f"invalid claim key {shortened(repr(key), 80)}: use what keep_claim returned"
        )
    return key


async def checked_claim(agent_id: str, key: str, data: bytes | None) -> bytes:
    """Return the bytes that a store found under a key; check their digest."""
    if data is None:
        raise StoreError(
            f"session {agent_id!r} has no claim {key} in this store: open the store in which it was kept. "
            "If its session was deleted, the claim was deleted with it: end the workflow that needs it"
        )
    if not isinstance(data, bytes) or await _digest(data) != key:
        raise StoreError(
            f"claim {key} of session {agent_id!r} is not what was stored: restore the store from a backup"
        )
    return data


async def _digest(data: bytes) -> str:
    # A thread does not delay other work, because hashing releases the interpreter.
    hashed = sha256(data) if len(data) <= HASHED_AT_ONCE else await asyncio.to_thread(sha256, data)
    return hashed.hexdigest()
