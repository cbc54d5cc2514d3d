"""What passes between a store and its users."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean, shortened
from whyloop.values.times import Count, Moment

LONGEST_LABEL = 200
LONGEST_TITLE = 80
LONGEST_ID = 500


class Watch(Protocol):
    """Tells the time, by which leases lapse and decisions are dated; any clock does."""

    def now(self) -> datetime: ...


class Summary(Struct, frozen=True, gc=False, omit_defaults=True):
    """A session as a list shows it.

    While a session runs, `updated_at` and `step_count` are those of the last change of its status.
    `runner` is whoever runs it at the moment; `version` counts the entries of its journal.
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
    runner: str | None = None


class Lease(Struct, frozen=True, gc=False):
    """The right to run a session for some seconds, to be renewed.

    The token grows with every lease of a session. A writer shows it, so one whose lease has passed
    to somebody else is known, however late it wakes up.
    """

    agent_id: str
    owner: str
    token: int
    seconds: float


class Stored(Struct, frozen=True, gc=False):
    """A session as it is stored: its summary, and the entries of its journal after some version."""

    summary: Summary
    entries: tuple[str, ...]


class Told(Struct, frozen=True, gc=False):
    """An envelope that was told of a session, as JSON, and the execution and the number that it has in it.

    Those that are kept have a position in their session, from 1 on.
    """

    execution_id: str
    seq: int
    body: str
    position: int = 0


class SessionFilter(Struct, frozen=True, gc=False):
    """Which sessions to list: those for which all that is given holds.

    Of `metadata`, entries at the top level are compared, and those that are text, numbers, booleans or null.
    """

    status: AgentStatus | None = None
    stop_reason: StopReason | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    metadata: Mapping[str, str | int | float | bool | None] = {}


class Page(Struct, frozen=True, gc=False):
    """Some sessions, the youngest first; `next` gets the page after this one, None if there is none."""

    sessions: tuple[Summary, ...]
    next: str | None = None


def checked_id(agent_id: object) -> str:
    """The id of a session, if every store can keep it."""
    if not isinstance(agent_id, str):
        raise ConfigurationError(
            f"a session's id is text, and not {shortened(repr(agent_id), 80)}: use str(…)"
        )
    if not agent_id or len(agent_id) > LONGEST_ID or "\x00" in agent_id or clean(agent_id) != agent_id:
        raise ConfigurationError(
            f"{shortened(repr(agent_id), 80)} is no id for a session: it has 1 to {LONGEST_ID} characters, "
            "none of them NUL or half of a character"
        )
    return agent_id


def summary_of(state: AgentState) -> Summary:
    """How a session is listed that is in this state."""
    asked = next((message.text for message in state.messages if message.is_user), "")
    return Summary(
        agent_id=state.agent_id,
        status=state.status,
        started_at=state.state_info.started_at,
        updated_at=state.state_info.updated_at,
        stop_reason=state.stop_reason,
        parent_agent_id=state.parent_agent_id,
        step_count=state.step_count,
        title=shortened(asked, LONGEST_TITLE),
        metadata=state.metadata,
    )


def labels_of(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What an index knows of a session's metadata: its plain entries, each as a key and a text."""
    return [
        (label(key), label(value))
        for key, value in metadata.items()
        if value is None or isinstance(value, str | int | float | bool)
    ]


def label(value: object) -> str:
    """The text by which a value is found; that of a long one is its fingerprint."""
    text = msgspec.json.encode(value).decode()
    if len(text) <= LONGEST_LABEL:
        return text
    return f"sha256:{sha256(text.encode()).hexdigest()}"
