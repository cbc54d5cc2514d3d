"""What clients send and get; the document of the API is made of these."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from whyloop.stores.records import LONGEST_ID
from whyloop.values.approval import PendingCall
from whyloop.values.continuation import StopReason
from whyloop.values.next_action import NextAction
from whyloop.values.state import AgentStatus

# Every entry is looked for in lists, and all of it is read with every page of them.
MOST_LABELS, LARGEST_METADATA = 50, 16_000
# Of those that a list is to have.
MOST_WANTED = 20

Words = Annotated[str, Meta(max_length=10_000)]
Amount = Annotated[int, Meta(ge=0, le=10**10)]
Seconds = Annotated[float, Meta(ge=0, le=10**10)]
CallId = Annotated[str, Meta(min_length=1, description="The `id` of one of the `pending_calls`.")]


# What is sent


class NewSession(Struct, frozen=True, forbid_unknown_fields=True):
    """A session that is to be; without an id it gets one."""

    agent_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)] | None = None
    metadata: Annotated[dict[str, Any], Meta(max_length=MOST_LABELS)] = {}


class NewMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """The next question."""

    text: Annotated[str, Meta(min_length=1)]


class Stop(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a run is to end."""

    reason: Words = "Somebody asked for it."


class Approve(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call may run, as the model asked for it or with other arguments."""

    call_id: CallId
    arguments: Mapping[str, Any] | None = None
    by: Annotated[str, Meta(max_length=200, description="Who decided.")] | None = None


class Deny(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call may not run; the model is told the reason."""

    call_id: CallId
    reason: Words = ""
    by: Annotated[str, Meta(max_length=200, description="Who decided.")] | None = None


class Grant(Struct, frozen=True, forbid_unknown_fields=True):
    """What is granted on top of what the limits allow."""

    steps: Amount = 0
    tokens: Amount = 0
    seconds: Seconds = 0.0


class Resume(Struct, frozen=True, forbid_unknown_fields=True):
    """Going on with an execution, with more of what a limit counts if it has used that up."""

    grant: Grant | None = None


class Subscription(Struct, frozen=True):
    """Somebody who wants to subscribe to a channel; clients may send more than this."""

    socket_id: str
    channel_name: str


# What is answered


class SessionSummary(Struct, frozen=True):
    """A session as a list shows it."""

    agent_id: str
    status: AgentStatus
    stop_reason: StopReason | None
    title: str
    step_count: int
    started_at: datetime
    updated_at: datetime
    parent_agent_id: str | None
    is_running: bool
    version: int
    metadata: Mapping[str, Any]


class SessionPage(Struct, frozen=True):
    """Some sessions, the youngest first; `next` is the `after` of the page after this one."""

    sessions: list[SessionSummary]
    next: str | None


class SessionState(Struct, frozen=True):
    """A session as it is now."""

    session: SessionSummary
    execution_id: str
    resolved_by: Annotated[str | None, Meta(description="The rule that decided last.")]
    last_response: str | None
    pending_calls: Annotated[list[PendingCall], Meta(description="Tool calls that wait for a person.")]


class History(Struct, frozen=True):
    """What a chat shows. Whatever was told after the place `after` may not be in it yet."""

    messages: list[Raw]
    after: str | None


class EventPage(Struct, frozen=True):
    """Envelopes, the oldest first; `next` is the `after` of what comes next, None if there is nothing yet."""

    events: list[Raw]
    next: str | None
    has_more: bool


class Trace(Struct, frozen=True):
    """What was done and decided, step by step, and why."""

    agent_id: str
    status: AgentStatus
    stop_reason: StopReason | None
    resolved_by: str | None
    headline: Annotated[str, Meta(description="The status, where, and the rule that decided, on one line.")]
    explanation: Annotated[str, Meta(description="Why it continued and why it stopped, as plain text.")]
    next_actions: Annotated[list[NextAction], Meta(description="What would let it continue, in order.")]
    steps: list[Mapping[str, Any]]
    has_more: bool
    usage: Mapping[str, int]
    times: Mapping[str, Any]


class Stopped(Struct, frozen=True):
    """Whether there was anything to stop."""

    stopped: bool


class Authorization(Struct, frozen=True, omit_defaults=True):
    """What a subscriber shows to the server of the channel."""

    auth: str
    channel_data: str | None = None


class Problem(Struct, frozen=True):
    """What went wrong, as a word for programs and a sentence for people."""

    type: str
    message: str


class Refusal(Struct, frozen=True):
    """The answer to what cannot be done."""

    error: Problem
