"""The operations of the server: one table, from which the routes and the API document are made."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from whyloop.server import bodies, inputs
from whyloop.server.bodies import Right


class Operation(Struct, frozen=True):
    """One operation; its name is that of the method of `Api` that carries it out."""

    name: str
    route: str
    """Its method and its path."""
    summary: str
    gives: type | None
    right: Right | None
    """The right that a client needs; None if every client has it that may see the session."""
    status: int = 200
    takes: type | None = None
    query: type = inputs.NoQuery
    needs: Literal["agent", "channels"] | None = None
    is_form: bool = False
    has_stream: bool = False
    streams: str | None = None
    """The content of its server-sent events, if these are its only answer."""
    has_socket: bool = False
    """True if a WebSocket at the same path sends the same as the stream."""
    is_conditional: bool = False
    """True if it takes `If-Match`."""
    text: str | None = None
    """The media type of an answer that is text."""
    is_long: bool = False
    """True if it may take seconds, so that it ends as soon as its client is gone."""
    is_public: bool = False
    """True if every client may do it, since it shows no data."""

    @property
    def method(self) -> str:
        """The method, such as POST."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path, with the names of its values in braces."""
        return self.route.partition(" ")[2]

    @property
    def has_etag(self) -> bool:
        """True if the answer carries the `ETag` of the session."""
        return self.gives in (bodies.SessionState, bodies.Stopped)


SESSION = "/sessions/{agent_id}"

OPERATIONS = (
    Operation(
        "list_sessions",
        "GET /sessions",
        "List sessions, newest first.",
        bodies.SessionPage,
        right=None,
        query=inputs.ListQuery,
    ),
    Operation(
        "get_stats",
        "GET /stats",
        "Count sessions by day, stop reason, rule and status.",
        bodies.Stats,
        right="inspect",
        query=inputs.StatsQuery,
    ),
    Operation(
        "get_questions",
        "GET /questions",
        "Return the questions that wait for a person in all sessions, oldest first.",
        bodies.QuestionPage,
        right=None,
        query=inputs.QuestionQuery,
    ),
    Operation(
        "get_info", "GET /info", "Return what this server is and what you may do.", bodies.Info, right=None
    ),
    Operation(
        "get_metrics",
        "GET /metrics",
        "Return counters in the text format of Prometheus.",
        None,
        right="inspect",
        text="text/plain; version=0.0.4; charset=utf-8",
    ),
    Operation(
        "get_health",
        "GET /health",
        'Return "ok": the server answers.',
        None,
        right=None,
        text="text/plain; charset=utf-8",
        is_public=True,
    ),
    Operation(
        "create_session",
        "POST /sessions",
        "Create a session.",
        bodies.SessionState,
        right="send",
        status=201,
        takes=inputs.NewSession,
        needs="agent",
    ),
    Operation("get_session", f"GET {SESSION}", "Return a session.", bodies.SessionState, right=None),
    Operation(
        "delete_session",
        f"DELETE {SESSION}",
        "Delete a session that is not being run.",
        None,
        right="manage",
        status=204,
        is_conditional=True,
    ),
    Operation(
        "get_messages",
        f"GET {SESSION}/messages",
        "Return a page of the messages that a chat shows.",
        bodies.History,
        right=None,
        query=inputs.MessageQuery,
    ),
    Operation(
        "get_trace",
        f"GET {SESSION}/trace",
        "Return why it continued, and why it stopped.",
        bodies.Trace,
        right="inspect",
        query=inputs.TraceQuery,
    ),
    Operation(
        "get_step",
        f"GET {SESSION}/steps/{{index}}",
        "Return a step in full, with the request that the model got.",
        bodies.StepDetail,
        right="inspect",
        query=inputs.StepQuery,
    ),
    Operation(
        "get_executions",
        f"GET {SESSION}/executions",
        "Return a page of the executions, one for each query.",
        bodies.ExecutionPage,
        right="inspect",
        query=inputs.ExecutionQuery,
    ),
    Operation(
        "get_snapshot",
        f"GET {SESSION}/snapshot",
        "Return the whole session as a snapshot, without credentials.",
        bodies.SessionSnapshot,
        right="inspect",
        is_long=True,
    ),
    Operation(
        "get_saved",
        f"GET {SESSION}/saved.html",
        "Return the whole session as one HTML file that works offline, without credentials.",
        None,
        right="inspect",
        text="text/html; charset=utf-8",
        is_long=True,
    ),
    Operation(
        "get_events",
        f"GET {SESSION}/events",
        "Return a page of envelopes as JSON, or all envelopes from there on as server-sent events. A "
        "WebSocket at the same path sends the same, an envelope in each message.",
        bodies.EventPage,
        right=None,
        query=inputs.EventQuery,
        has_stream=True,
        has_socket=True,
    ),
    Operation(
        "send_message",
        f"POST {SESSION}/messages",
        "Ask the next question; the run continues by itself.",
        bodies.SessionState,
        right="send",
        status=202,
        takes=inputs.NewMessage,
        needs="agent",
    ),
    Operation(
        "stop",
        f"POST {SESSION}/stop",
        "End a run, wherever it runs.",
        bodies.Stopped,
        right="send",
        takes=inputs.Stop,
    ),
    Operation(
        "approve",
        f"POST {SESSION}/approve",
        "Let a pending tool call run; `resume` continues.",
        bodies.SessionState,
        right="decide",
        takes=inputs.Approve,
        is_conditional=True,
    ),
    Operation(
        "deny",
        f"POST {SESSION}/deny",
        "Do not let a pending tool call run; `resume` continues.",
        bodies.SessionState,
        right="decide",
        takes=inputs.Deny,
        is_conditional=True,
    ),
    Operation(
        "resume",
        f"POST {SESSION}/resume",
        "Continue an execution that was paused, stopped, failed or cut off.",
        bodies.SessionState,
        right="send",
        status=202,
        takes=inputs.Resume,
        needs="agent",
        is_conditional=True,
    ),
    Operation(
        "fork",
        f"POST {SESSION}/fork",
        "Create a session with the history of this one, up to a step or to its end.",
        bodies.SessionState,
        right="manage",
        status=201,
        takes=inputs.Fork,
        is_conditional=True,
    ),
    Operation(
        "set_metadata",
        f"PATCH {SESSION}/metadata",
        "Merge entries into the metadata of a session that is not being run; null removes an entry.",
        bodies.SessionState,
        right="manage",
        takes=inputs.MetadataChange,
        is_conditional=True,
    ),
    Operation(
        "get_what_if",
        f"GET {SESSION}/what-if",
        "Judge an execution under other limits, without a model.",
        bodies.WhatIf,
        right="inspect",
        query=inputs.WhatIfQuery,
    ),
    Operation(
        "survey_sessions",
        "GET /what-if",
        "Judge the runs of many sessions under each value of a limit.",
        bodies.SurveyView,
        right="inspect",
        query=inputs.SurveyQuery,
        is_long=True,
    ),
    Operation(
        "get_live",
        "GET /live",
        "Follow several sessions and the list of all in one stream. A WebSocket at the same path sends the "
        "same, an object with `event` and `data` in each message.",
        None,
        right=None,
        query=inputs.LiveQuery,
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
        right=None,
        takes=inputs.Subscription,
        needs="channels",
        is_form=True,
    ),
    Operation(
        "run_ag_ui",
        "POST /ag-ui",
        "Run an agent for an AG-UI client: with a new message, with answers to interrupts, or, without "
        "either, connect to the thread as it is.",
        None,
        right="send",
        takes=inputs.AgUiInput,
        needs="agent",
        streams="An AG-UI event as JSON in the data of each event.",
    ),
    Operation(
        "run_chat",
        "POST /vercel",
        "Answer the last message of a chat of the AI SDK, or continue after its approvals.",
        None,
        right="send",
        takes=inputs.Chat,
        query=inputs.ChatQuery,
        needs="agent",
        streams="A part of a UI message stream as JSON in the data of each event.",
    ),
    Operation(
        "get_chat",
        "GET /vercel/{agent_id}/messages",
        "Return the messages of a chat of the AI SDK, without an answer that is still being made.",
        bodies.ChatHistory,
        right=None,
        query=inputs.ChatQuery,
    ),
    Operation(
        "get_chat_stream",
        "GET /vercel/{agent_id}/stream",
        "Return the answer that is being made in a chat of the AI SDK, from its beginning on; 204 if there "
        "is none.",
        None,
        right=None,
        query=inputs.ChatQuery,
        streams="A part of a UI message stream as JSON in the data of each event.",
    ),
)
