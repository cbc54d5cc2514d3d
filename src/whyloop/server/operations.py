"""What can be asked of the server: one table, of which both the routes and the document are made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from whyloop.server import bodies
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

Place = Annotated[
    str,
    Meta(
        description=(
            "The last envelope that the client has heard: its `execution_id`, a colon and its `seq`; a `seq` "
            "alone is one of the latest execution, and `latest` is the last that was told."
        ),
        extra_json_schema={"pattern": r"^(|latest|([\s\S]*:)?[0-9]{1,18})$"},
    ),
]
# In a query it is text, which is JSON.
Labels = Annotated[
    str,
    Meta(
        description="Each of these entries is to be equal.",
        extra_json_schema={
            "contentMediaType": "application/json",
            "contentSchema": {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
                "maxProperties": bodies.MOST_WANTED,
            },
        },
    ),
]


class ListQuery(Struct, frozen=True):
    """Which sessions to list."""

    status: AgentStatus | None = None
    stop_reason: StopReason | None = None
    started_after: Annotated[datetime, Meta(tz=True)] | None = None
    started_before: Annotated[datetime, Meta(tz=True)] | None = None
    metadata: Labels | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    after: Annotated[str, Meta(description="The `next` of the page before.")] | None = None


class EventQuery(Struct, frozen=True):
    """Which envelopes to send."""

    after: Place | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class TraceQuery(Struct, frozen=True):
    """Which steps to show, counted from the session's first."""

    after: Annotated[int, Meta(ge=0, le=999_999_999, description="After so many steps.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


class NoQuery(Struct, frozen=True):
    """Nothing is asked for beside the path."""


class Operation(Struct, frozen=True):
    """One thing that can be asked for; its name is that of the method that does it."""

    name: str
    method: str
    path: str
    summary: str
    gives: type
    status: int = 200
    takes: type | None = None
    query: type = NoQuery
    needs: Literal["agent", "channels"] | None = None
    is_form: bool = False
    has_stream: bool = False


SESSION = "/sessions/{agent_id}"

OPERATIONS = (
    Operation(
        "list_sessions",
        "GET",
        "/sessions",
        "List sessions, the youngest first.",
        bodies.SessionPage,
        query=ListQuery,
    ),
    Operation(
        "create_session",
        "POST",
        "/sessions",
        "Make a new session.",
        bodies.SessionState,
        status=201,
        takes=bodies.NewSession,
        needs="agent",
    ),
    Operation("get_session", "GET", SESSION, "A session as it is now.", bodies.SessionState),
    Operation("get_messages", "GET", f"{SESSION}/messages", "What a chat shows of it.", bodies.History),
    Operation(
        "get_trace",
        "GET",
        f"{SESSION}/trace",
        "Why it went on, and why it stopped.",
        bodies.Trace,
        query=TraceQuery,
    ),
    Operation(
        "get_events",
        "GET",
        f"{SESSION}/events",
        "What was told of a session: a page of it as JSON, or all that is told from there on as "
        "server-sent events. A WebSocket at the same path gets the same, an envelope in each message.",
        bodies.EventPage,
        query=EventQuery,
        has_stream=True,
    ),
    Operation(
        "send_message",
        "POST",
        f"{SESSION}/messages",
        "Ask the next question; the run goes on by itself.",
        bodies.SessionState,
        status=202,
        takes=bodies.NewMessage,
        needs="agent",
    ),
    Operation(
        "stop",
        "POST",
        f"{SESSION}/stop",
        "End a run at its next safe point, wherever it runs.",
        bodies.Stopped,
        takes=bodies.Stop,
    ),
    Operation(
        "approve",
        "POST",
        f"{SESSION}/approve",
        "Let a pending tool call run; `resume` goes on.",
        bodies.SessionState,
        takes=bodies.Approve,
    ),
    Operation(
        "deny",
        "POST",
        f"{SESSION}/deny",
        "Do not let a pending tool call run; `resume` goes on.",
        bodies.SessionState,
        takes=bodies.Deny,
    ),
    Operation(
        "resume",
        "POST",
        f"{SESSION}/resume",
        "Go on with an execution that was paused, stopped, failed or cut off.",
        bodies.SessionState,
        status=202,
        takes=bodies.Resume,
        needs="agent",
    ),
    Operation(
        "authorize_channel",
        "POST",
        "/broadcasting/auth",
        "Leave to subscribe to the private channel of a session, as clients of Pusher and Reverb ask for it.",
        bodies.Authorization,
        takes=bodies.Subscription,
        needs="channels",
        is_form=True,
    ),
)
