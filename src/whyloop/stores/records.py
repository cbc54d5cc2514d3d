"""The records that pass between a store and its callers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.values.continuation import StopReason
from whyloop.values.scalars import Count, Moment
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean, shortened

LONGEST_LABEL = 200
LONGEST_TITLE = 80
LONGEST_ID = 500
LONGEST_KEY = 255

# Sessions with these statuses may still continue, so they are never pruned.
NEVER_PRUNED = (AgentStatus.PENDING, AgentStatus.IN_PROGRESS, AgentStatus.PAUSED)


class Watch(Protocol):
    """A clock that says the time, by which leases lapse and decisions are dated."""

    def now(self) -> datetime: ...


class Checkpoint(Struct, frozen=True, gc=False):
    """A position in a journal at which reading can start, with the state there without its history.

    A checkpoint belongs to one entry, and describes the session before that entry. Its seq is the
    number before that of the entry's first envelope.
    """

    execution_id: str
    """The execution whose envelopes start here."""
    seq: int
    """The number of the execution's last envelope before the entry."""
    step_count: int
    """How many steps the session has before the entry."""
    message_count: int
    """How many messages the session has before the entry."""
    state: str
    """The session before the entry, as JSON text that a store does not read."""


class Entry(Struct, frozen=True, gc=False):
    """One append to a journal: transitions as JSON text that a store does not read."""

    body: str
    checkpoint: Checkpoint | None = None


class RequestKey(Struct, frozen=True, gc=False):
    """A client's `Idempotency-Key`, and a digest of the request that it came with."""

    key: str
    """1 to 255 characters, unique in its session."""
    digest: str
    """The same for the same request, different for any other one."""

    def __post_init__(self) -> None:
        key = self.key
        if not key or len(key) > LONGEST_KEY or "\x00" in key or clean(key) != key:
            raise ConfigurationError(
                f"invalid key {shortened(repr(key), 80)}: use 1 to {LONGEST_KEY} characters, "
                "without NUL and without unpaired surrogates"
            )


class Summary(Struct, frozen=True, gc=False, omit_defaults=True):
    """A session as a list shows it.

    While a session runs, `updated_at` and `step_count` are those of the last change of its status.
    """

    agent_id: str
    status: AgentStatus
    started_at: Moment
    updated_at: Moment
    stop_reason: StopReason | None = None
    parent_agent_id: str | None = None
    step_count: Count = 0
    title: str = ""
    metadata: Mapping[str, Any] = {}
    version: Count = 0
    """The number of entries in its journal; a store counts them itself."""
    runner: str | None = None
    """The owner of the lease under which it runs now; a store knows that itself."""
    identity: str = ""
    """Set when the session is created, and never changed; a later session of the same id has another."""
    agent: str = ""
    """The name of the agent that runs it."""
    resolved_by: str | None = None
    """The rule that decided last."""
    reason: str | None = None
    """The reason that this rule gave."""
    pending: Count = 0
    """How many questions wait for a person."""
    cost: str | None = None
    """The cost so far, a decimal number as text."""


class Lease(Struct, frozen=True, gc=False):
    """The right to run a session for some seconds, to be renewed.

    The token grows with every lease of a session. A writer shows it, so one whose lease has passed
    to another runner is detected, however late it wakes up.
    """

    agent_id: str
    owner: str
    token: int
    seconds: float


class Stored(Struct, frozen=True, gc=False):
    """A session as it is stored: its summary, and the bodies of entries of its journal."""

    summary: Summary
    entries: tuple[str, ...]


class Chunk:
    """A live envelope on its way to followers in other processes; never stored for good.

    It is encoded when its body is first asked for: most sessions have no followers.
    """

    __slots__ = ("_body", "agent_id")

    def __init__(self, agent_id: str, body: str | Callable[[], str]) -> None:
        self.agent_id = agent_id
        self._body = body

    @property
    def body(self) -> str:
        """The envelope as JSON."""
        if not isinstance(self._body, str):
            self._body = self._body()
        return self._body

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chunk):
            return NotImplemented
        return (self.agent_id, self.body) == (other.agent_id, other.body)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Chunk({self.agent_id!r}, {self.body!r})"


class SessionFilter(Struct, frozen=True, gc=False):
    """Which sessions to list: those that meet every condition given here.

    Of `metadata`, only top-level entries are compared whose values are text, numbers, booleans or null.
    """

    status: AgentStatus | None = None
    stop_reason: StopReason | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    metadata: Mapping[str, str | int | float | bool | None] = {}
    resolved_by: str | None = None
    agent: str | None = None
    updated_before: datetime | None = None


class Page(Struct, frozen=True, gc=False):
    """Some sessions, newest first; `next` is the cursor of the next page, None on the last page."""

    sessions: tuple[Summary, ...]
    next: str | None = None


def checked_id(agent_id: object) -> str:
    """Return the id of a session, if every store can keep it."""
    if not isinstance(agent_id, str):
        raise ConfigurationError(f"invalid session id {shortened(repr(agent_id), 80)}: use text")
    if not agent_id or len(agent_id) > LONGEST_ID or "\x00" in agent_id or clean(agent_id) != agent_id:
        raise ConfigurationError(
            f"invalid session id {shortened(repr(agent_id), 80)}: use 1 to {LONGEST_ID} characters, "
            "without NUL and without unpaired surrogates"
        )
    return agent_id


def checked_limit(limit: object) -> int:
    """Return how many sessions a page shows, if a page can show so many."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError(f"invalid limit {limit!r}: use 1 or more")
    return limit


def prunable(statuses: Collection[AgentStatus]) -> tuple[AgentStatus, ...]:
    """Return the statuses in the order of the enum, if sessions that have them may be pruned."""
    refused = [status.value for status in NEVER_PRUNED if status in statuses]
    if refused:
        raise ConfigurationError(
            f"cannot prune sessions that are {', '.join(refused)}: they may still continue. "
            "Use completed, stopped or failed"
        )
    return tuple(status for status in AgentStatus if status in statuses)


def labels_of(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the plain entries of a session's metadata as an index knows them, each a key and a text."""
    return [
        (label(key), label(value))
        for key, value in metadata.items()
        if value is None or isinstance(value, str | int | float | bool)
    ]


def label(value: object) -> str:
    """Return the text by which a value is found; that of a long one is its fingerprint."""
    text = msgspec.json.encode(value).decode()
    if len(text) <= LONGEST_LABEL:
        return text
    return f"sha256:{sha256(text.encode()).hexdigest()}"
