"""The operations of the server: one table, from which both the routes and the document are made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from whyloop.server import bodies
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus

Cursor = Annotated[
    str,
    Meta(
        description=(
            "The last envelope that the client has received: its `execution_id`, a colon and its `seq`. A "
            "`seq` alone is of the latest execution; `latest` is the last envelope of all."
        ),
        extra_json_schema={"pattern": r"^(|latest|([\s\S]*:)?[0-9]{1,18})$"},
    ),
]
# In a query this is text that holds JSON.
Labels = Annotated[
    str,
    Meta(
        description="Sessions whose metadata has each of these entries.",
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
# How many sessions one stream follows.
MOST_FOLLOWED = 50
_SEARCH = Meta(
    max_length=200,
    description=(
        "Words that all occur in the id, the metadata, the first or last query, the last answer or the "
        "reason, in any order and without regard to case. Redacted text is not found."
    ),
)
Index = Annotated[int, Meta(ge=0, le=999_999_999)]


class SessionQuery(Struct, frozen=True):
    """Which sessions are meant: those that meet every condition."""

    status: AgentStatus | None = None
    stop_reason: StopReason | None = None
    resolved_by: Annotated[str, Meta(description="The rule that decided last.")] | None = None
    agent: Annotated[str, Meta(description="The name of the agent that runs it.")] | None = None
    started_after: Annotated[datetime, Meta(tz=True)] | None = None
    started_before: Annotated[datetime, Meta(tz=True)] | None = None
    updated_after: Annotated[datetime, Meta(tz=True)] | None = None
    waiting: Annotated[bool, Meta(description="True for sessions with questions for a person only.")] = False
    search: Annotated[str, _SEARCH] | None = None
    metadata: Labels | None = None


class ListQuery(SessionQuery, frozen=True):
    """Which sessions to list."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    after: Annotated[str, Meta(description="The `next` of the page before.")] | None = None


class StatsQuery(SessionQuery, frozen=True):
    """Which sessions to count, and by which days."""

    days: Annotated[int, Meta(ge=1, le=90, description="The number of days, with today.")] = 14
    offset_minutes: Annotated[
        int,
        Meta(
            ge=-900,
            le=900,
            description=(
                "How far the client's time is behind UTC, as `getTimezoneOffset()` returns it: -60 in Berlin "
                "in winter."
            ),
        ),
    ] = 0


class QuestionQuery(Struct, frozen=True):
    """How many questions to return."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class MessageQuery(Struct, frozen=True):
    """Which messages to return: the last ones, or with `after` the first ones."""

    after: Annotated[Index, Meta(description="After so many messages of the session.")] | None = None
    before: Annotated[Index, Meta(description="Of so many first messages of the session.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


class EventQuery(Struct, frozen=True):
    """Which envelopes to send."""

    after: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class TraceQuery(Struct, frozen=True):
    """Which steps to return, counted from the session's first."""

    after: Annotated[Index, Meta(description="After so many steps.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    brief: Annotated[bool, Meta(description="Summaries instead of arguments and results.")] = False


class ExecutionQuery(Struct, frozen=True):
    """Which executions to return, counted from the session's first."""

    after: Annotated[Index, Meta(description="After so many executions.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


class StepQuery(Struct, frozen=True):
    """How much of a step to return."""

    messages: Annotated[int, Meta(ge=0, le=10_000, description="So many last messages of the request.")] = 200


_COUNT = r"^(none|[1-9][0-9]{0,11})$"
_AMOUNT = r"^(none|[1-9][0-9]{0,8}(\.[0-9]{1,6})?|0\.[0-9]{0,5}[1-9])$"
# A limit of a what-if: a number, or `none` for no limit. One that is not given is as recorded.
OtherCount = Annotated[str, Meta(pattern=_COUNT)]
OtherAmount = Annotated[str, Meta(pattern=_AMOUNT)]


class WhatIfQuery(Struct, frozen=True):
    """The limits to judge a run by; `none` is no limit, and one that is not given is as recorded."""

    max_steps: OtherCount | None = None
    max_tokens: OtherCount | None = None
    timeout: Annotated[OtherAmount, Meta(description="Seconds.")] | None = None
    cumulative_timeout: Annotated[OtherAmount, Meta(description="Seconds.")] | None = None
    max_cost: Annotated[OtherAmount, Meta(description="US dollars.")] | None = None
    error_policy: (
        Literal["stop_on_any_error", "retry_tool_errors", "ignore_tool_errors", "retry_all"] | None
    ) = None
    execution: (
        Annotated[str, Meta(description="The id of the execution; the latest if not given.")] | None
    ) = None


class SurveyQuery(SessionQuery, frozen=True):
    """The limit whose values are judged, and the sessions."""

    limit: Literal["max_steps", "max_tokens", "timeout", "cumulative_timeout", "max_cost"] = "max_steps"
    sessions: Annotated[int, Meta(ge=1, le=5000, description="So many of the newest that match.")] = 1000


class LiveQuery(Struct, frozen=True, rename={"with_list": "list"}):
    """Which sessions to follow, and whether the list of all is followed."""

    with_list: Annotated[bool, Meta(description="Send the changes of the list of sessions.")] = False
    session: Annotated[
        list[bodies.SessionId], Meta(max_length=MOST_FOLLOWED, description="Sessions to follow.")
    ] = []
    after: Annotated[
        list[Cursor],
        Meta(
            max_length=MOST_FOLLOWED,
            description="The last envelope received of each session, in the same order; empty for none.",
        ),
    ] = []


class NoQuery(Struct, frozen=True):
    """An operation that takes no query."""


class ChatQuery(Struct, frozen=True):
    """Which version of the AI SDK the client has."""

    sdk_version: Annotated[int, Meta(ge=5, le=7, description="The major version; 5 knows no approvals.")] = 6


class Operation(Struct, frozen=True):
    """One operation; its name is that of the method of `Api` that carries it out."""

    name: str
    route: str
    """Its method and its path."""
    summary: str
    gives: type | None
    status: int = 200
    takes: type | None = None
    query: type = NoQuery
    needs: Literal["agent", "channels"] | None = None
    is_form: bool = False
    writes: bool | None = None
    """Whether it changes something; by default, unless it is a GET."""
    has_stream: bool = False
    streams: str | None = None
    """The content of its server-sent events, if these are its only answer."""
    has_socket: bool = False
    """True if a WebSocket at the same path sends the same as the stream."""
    has_etag: bool = False
    """True if the answer carries the `ETag` of the session."""
    is_conditional: bool = False
    """True if it takes `If-Match`."""
    text: str | None = None
    """The media type of an answer that is text."""
    is_public: bool = False
    """True if every client may do it: it shows nothing."""

    @property
    def method(self) -> str:
        """The method, such as POST."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path, with the names of its values in braces."""
        return self.route.partition(" ")[2]

    @property
    def is_change(self) -> bool:
        """True if a client that may only read may not do it."""
        return self.method != "GET" if self.writes is None else self.writes


SESSION = "/sessions/{agent_id}"

OPERATIONS = (
    Operation(
        "list_sessions", "GET /sessions", "List sessions, newest first.", bodies.SessionPage, query=ListQuery
    ),
    Operation(
        "get_stats",
        "GET /stats",
        "Count sessions by day, stop reason, rule and status.",
        bodies.Stats,
        query=StatsQuery,
    ),
    Operation(
        "get_questions",
        "GET /questions",
        "Return the questions that wait for a person in all sessions, oldest first.",
        bodies.QuestionPage,
        query=QuestionQuery,
    ),
    Operation("get_info", "GET /info", "Return what this server is and what you may do.", bodies.Info),
    Operation(
        "get_metrics",
        "GET /metrics",
        "Return counters in the text format of Prometheus.",
        None,
        text="text/plain; version=0.0.4; charset=utf-8",
    ),
    Operation(
        "get_health",
        "GET /health",
        'Return "ok": the server answers.',
        None,
        text="text/plain; charset=utf-8",
        is_public=True,
    ),
    Operation(
        "create_session",
        "POST /sessions",
        "Create a session.",
        bodies.SessionState,
        status=201,
        takes=bodies.NewSession,
        needs="agent",
        has_etag=True,
    ),
    Operation("get_session", f"GET {SESSION}", "Return a session.", bodies.SessionState, has_etag=True),
    Operation(
        "delete_session",
        f"DELETE {SESSION}",
        "Delete a session that is not being run.",
        None,
        status=204,
        is_conditional=True,
    ),
    Operation(
        "get_messages",
        f"GET {SESSION}/messages",
        "Return a page of the messages that a chat shows.",
        bodies.History,
        query=MessageQuery,
    ),
    Operation(
        "get_trace",
        f"GET {SESSION}/trace",
        "Return why it continued, and why it stopped.",
        bodies.Trace,
        query=TraceQuery,
    ),
    Operation(
        "get_step",
        f"GET {SESSION}/steps/{{index}}",
        "Return a step in full, with the request that the model got.",
        bodies.StepDetail,
        query=StepQuery,
    ),
    Operation(
        "get_executions",
        f"GET {SESSION}/executions",
        "Return a page of the executions, one for each query.",
        bodies.ExecutionPage,
        query=ExecutionQuery,
    ),
    Operation(
        "get_snapshot",
        f"GET {SESSION}/snapshot",
        "Return the whole session as a snapshot, without credentials.",
        bodies.SessionSnapshot,
    ),
    Operation(
        "get_saved",
        f"GET {SESSION}/saved.html",
        "Return the whole session as one HTML file that works offline, without credentials.",
        None,
        text="text/html; charset=utf-8",
    ),
    Operation(
        "get_events",
        f"GET {SESSION}/events",
        "Return a page of envelopes as JSON, or all envelopes from there on as server-sent events. A "
        "WebSocket at the same path sends the same, an envelope in each message.",
        bodies.EventPage,
        query=EventQuery,
        has_stream=True,
        has_socket=True,
    ),
    Operation(
        "send_message",
        f"POST {SESSION}/messages",
        "Ask the next question; the run continues by itself.",
        bodies.SessionState,
        status=202,
        takes=bodies.NewMessage,
        needs="agent",
        has_etag=True,
    ),
    Operation(
        "stop",
        f"POST {SESSION}/stop",
        "End a run, wherever it runs.",
        bodies.Stopped,
        takes=bodies.Stop,
        has_etag=True,
    ),
    Operation(
        "approve",
        f"POST {SESSION}/approve",
        "Let a pending tool call run; `resume` continues.",
        bodies.SessionState,
        takes=bodies.Approve,
        has_etag=True,
        is_conditional=True,
    ),
    Operation(
        "deny",
        f"POST {SESSION}/deny",
        "Do not let a pending tool call run; `resume` continues.",
        bodies.SessionState,
        takes=bodies.Deny,
        has_etag=True,
        is_conditional=True,
    ),
    Operation(
        "resume",
        f"POST {SESSION}/resume",
        "Continue an execution that was paused, stopped, failed or cut off.",
        bodies.SessionState,
        status=202,
        takes=bodies.Resume,
        needs="agent",
        has_etag=True,
        is_conditional=True,
    ),
    Operation(
        "fork",
        f"POST {SESSION}/fork",
        "Create a session with the history of this one, up to a step or to its end.",
        bodies.SessionState,
        status=201,
        takes=bodies.Fork,
        has_etag=True,
        is_conditional=True,
    ),
    Operation(
        "get_what_if",
        f"GET {SESSION}/what-if",
        "Judge an execution under other limits, without a model.",
        bodies.WhatIf,
        query=WhatIfQuery,
    ),
    Operation(
        "survey_sessions",
        "GET /what-if",
        "Judge the runs of many sessions under each value of a limit.",
        bodies.SurveyView,
        query=SurveyQuery,
    ),
    Operation(
        "get_live",
        "GET /live",
        "Follow several sessions and the list of all in one stream. A WebSocket at the same path sends the "
        "same, an object with `event` and `data` in each message.",
        None,
        query=LiveQuery,
        streams="`list`: `sessions`, those that changed as `GET /sessions` lists them, and the ids of those "
        "`deleted`; at first both are empty. `envelope`: `session`, `cursor` and `envelope`. `ended`: "
        "`session` and `error`, for one that cannot be followed any more.",
        has_socket=True,
    ),
    Operation(
        "authorize_channel",
        "POST /broadcasting/auth",
        "Authorize a subscription to the private channel of a session, as clients of Pusher and Reverb ask "
        "for it.",
        bodies.Authorization,
        takes=bodies.Subscription,
        needs="channels",
        is_form=True,
        writes=False,
    ),
    Operation(
        "run_ag_ui",
        "POST /ag-ui",
        "Run an agent for an AG-UI client: with a new message, with answers to interrupts, or, without "
        "either, connect to the thread as it is.",
        None,
        takes=bodies.AgUiInput,
        needs="agent",
        streams="An AG-UI event as JSON in the data of each event.",
    ),
    Operation(
        "run_chat",
        "POST /vercel",
        "Answer the last message of a chat of the AI SDK, or continue after its approvals.",
        None,
        takes=bodies.Chat,
        query=ChatQuery,
        needs="agent",
        streams="A part of a UI message stream as JSON in the data of each event.",
    ),
    Operation(
        "get_chat",
        "GET /vercel/{agent_id}/messages",
        "Return the messages of a chat of the AI SDK, without an answer that is still being made.",
        bodies.ChatHistory,
        query=ChatQuery,
    ),
    Operation(
        "get_chat_stream",
        "GET /vercel/{agent_id}/stream",
        "Return the answer that is being made in a chat of the AI SDK, from its beginning on; 204 if there "
        "is none.",
        None,
        query=ChatQuery,
        streams="A part of a UI message stream as JSON in the data of each event.",
    ),
)
