"""The queries and bodies of requests; the document of the API is made from these types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import fields

from whyloop.stores.records import LONGEST_ID
from whyloop.values.continuation import StopReason
from whyloop.values.state import AgentStatus
from whyloop.values.text import shortened

# Lists filter by every entry of the metadata, and read all of it for every page.
MOST_LABELS, LARGEST_METADATA = 50, 16_000
# The entries by which one list is filtered.
MOST_WANTED = 20

SessionId = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Text = Annotated[str, Meta(max_length=10_000)]
Amount = Annotated[int, Meta(ge=0, le=10**10)]
Seconds = Annotated[float, Meta(ge=0, le=10**10)]
# US dollars: a number, or decimal text, which is exact.
Money = Amount | Seconds | Annotated[str, Meta(pattern=r"^[0-9]{1,10}(\.[0-9]{1,12})?$")]
QuestionId = Annotated[str, Meta(min_length=1, description="The `id` of one of the `pending_calls`.")]
Person = Annotated[str, Meta(max_length=200, description="The name of the person that decided.")]


# Queries: lists and what-ifs refuse unknown parameters, since a condition that is ignored misleads.

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
# In a query, this is JSON text.
Labels = Annotated[
    str,
    Meta(
        description="Sessions whose metadata has each of these entries.",
        extra_json_schema={
            "contentMediaType": "application/json",
            "contentSchema": {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
                "maxProperties": MOST_WANTED,
            },
        },
    ),
]
# The maximum number of sessions that one stream follows.
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
    """The conditions on sessions, all of which they must meet."""

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


class ListQuery(SessionQuery, frozen=True, forbid_unknown_fields=True):
    """The sessions to list."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    after: Annotated[str, Meta(description="The `next` of the page before.")] | None = None


class StatsQuery(SessionQuery, frozen=True, forbid_unknown_fields=True):
    """The sessions to count, and the days by which to count them."""

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


class QuestionQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The number of questions to return."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class MessageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The messages to return: the last ones, or with `after` the first ones."""

    after: Annotated[Index, Meta(description="After so many messages of the session.")] | None = None
    before: Annotated[Index, Meta(description="Of so many first messages of the session.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


class EventQuery(Struct, frozen=True):
    """The envelopes to send."""

    after: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class TraceQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The steps to return, counted from the first of the session."""

    after: Annotated[Index, Meta(description="After so many steps.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    brief: Annotated[bool, Meta(description="Summaries instead of arguments and results.")] = False


class ExecutionQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The executions to return, counted from the first of the session."""

    after: Annotated[Index, Meta(description="After so many executions.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


class StepQuery(Struct, frozen=True):
    """The part of a step to return."""

    messages: Annotated[int, Meta(ge=0, le=10_000, description="So many last messages of the request.")] = 200


_COUNT = r"^(none|[1-9][0-9]{0,11})$"
_AMOUNT = r"^(none|[1-9][0-9]{0,8}(\.[0-9]{1,6})?|0\.[0-9]{0,5}[1-9])$"
# A limit of a what-if: a number, or `none` to remove it. One that is not given stays as recorded.
OtherCount = Annotated[str, Meta(pattern=_COUNT)]
OtherAmount = Annotated[str, Meta(pattern=_AMOUNT)]


class WhatIfQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits to judge a run by: `none` removes one, and one that is not given stays as recorded."""

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


class SurveyQuery(SessionQuery, frozen=True, forbid_unknown_fields=True):
    """The limit whose values are judged, and the sessions."""

    limit: Literal["max_steps", "max_tokens", "timeout", "cumulative_timeout", "max_cost"] = "max_steps"
    sessions: Annotated[int, Meta(ge=1, le=5000, description="So many of the newest that match.")] = 1000


class LiveQuery(Struct, frozen=True, rename={"with_list": "list"}):
    """The sessions to follow, and whether to follow the list of sessions."""

    with_list: Annotated[bool, Meta(description="Send the changes of the list of sessions.")] = False
    session: Annotated[
        list[SessionId], Meta(max_length=MOST_FOLLOWED, description="Sessions to follow.")
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
    """The version of the client's AI SDK."""

    sdk_version: Annotated[int, Meta(ge=5, le=7, description="The major version; 5 knows no approvals.")] = 6


# Bodies


class NewSession(Struct, frozen=True, forbid_unknown_fields=True):
    """A new session; the server chooses an id if none is given."""

    agent_id: SessionId | None = None
    metadata: Annotated[dict[str, Any], Meta(max_length=MOST_LABELS)] = {}


class NewMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """The next question."""

    text: Annotated[str, Meta(min_length=1)]


class Stop(Struct, frozen=True, forbid_unknown_fields=True):
    """The reason to stop a run."""

    reason: Text = "A client asked for it."


class MetadataChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Entries to merge into the metadata of a session; null removes one."""

    metadata: Annotated[dict[str, Any], Meta(max_length=MOST_LABELS)]
    by: Person | None = None


class Approve(Struct, frozen=True, forbid_unknown_fields=True):
    """The approval of a tool call, as the model made it or with other arguments."""

    question_id: QuestionId
    arguments: Mapping[str, Any] | None = None
    by: Person | None = None


class Deny(Struct, frozen=True, forbid_unknown_fields=True):
    """The denial of a tool call, and its reason for the model."""

    question_id: QuestionId
    reason: Text = ""
    by: Person | None = None


class Grant(Struct, frozen=True, forbid_unknown_fields=True):
    """A budget on top of the limits."""

    steps: Amount = 0
    tokens: Amount = 0
    seconds: Seconds = 0.0
    usd: Money = 0


class Resume(Struct, frozen=True, forbid_unknown_fields=True):
    """The continuation of a run, with a grant if a limit is used up."""

    grant: Grant | None = None


class Fork(Struct, frozen=True, forbid_unknown_fields=True):
    """The step after which a session branches off, and the id of the new session."""

    step: Annotated[int, Meta(ge=1, le=999_999_999, description="After this step of the session.")] | None = (
        None
    )
    agent_id: SessionId | None = None


class Subscription(Struct, frozen=True):
    """A client that wants to subscribe to a channel; clients may send more than this."""

    socket_id: str
    channel_name: str


# Requests of clients of other protocols; they may send more fields.


class AgUiMessage(Struct, frozen=True, rename="camel"):
    """A message of an AG-UI client. Only the last one is read: the session has the others."""

    id: str
    role: str
    content: Annotated[Any, Meta(description="Text, or a list of parts of which each is text.")] = None


class AgUiDecision(Struct, frozen=True, rename="camel"):
    """The answer to an interrupt."""

    interrupt_id: QuestionId
    status: Literal["resolved", "cancelled"]
    payload: Annotated[Any, Meta(description="`approved`, and if wanted `reason` or `arguments`.")] = None


class AgUiInput(Struct, frozen=True, rename="camel"):
    """The `RunAgentInput` of an AG-UI client; the thread is a session."""

    thread_id: SessionId
    run_id: str
    messages: list[AgUiMessage] = []
    resume: list[AgUiDecision] | None = None
    protocol_version: str | None = None


class ChatMessage(Struct, frozen=True):
    """A `UIMessage` of the AI SDK. Only the last one is read: the session has the others."""

    id: str
    role: str
    parts: list[dict[str, Any]] = []


class Chat(Struct, frozen=True):
    """The request of the AI SDK's transport; the chat is a session."""

    id: SessionId
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    trigger: str = "submit-message"


# Errors about queries and bodies that do not fit their types

_WHOLE, _AMOUNT = "a whole number from 1 on, or none", "a number above 0 with at most 6 decimals, or none"
# What fits the pattern of a field.
_FORMS = {
    "max_steps": _WHOLE,
    "max_tokens": _WHOLE,
    "timeout": _AMOUNT,
    "cumulative_timeout": _AMOUNT,
    "max_cost": _AMOUNT,
    "usd": "a number of US dollars, such as 0.05",
}


def described(text: str, kind: type, data: Any) -> str:
    """Return a validation error for a client: the path, then the problem."""
    problem, _, path = text.partition(" - at `$.")
    name = path.rstrip("`")
    problem = problem.replace("`", "").replace("Object missing required field", "this is missing:")
    form = _FORMS.get(name.rpartition(".")[2])
    if form is not None and "matching regex" in problem:
        given = data.get(name) if isinstance(data, dict) else None
        return f"invalid {name}{'' if given is None else f' {shortened(str(given), 40)!r}'}: use {form}"
    if problem.startswith("Invalid enum value"):
        known = _choices(kind, name)
        problem = f"{problem}: choose from {', '.join(known)}" if known else problem
    elif not name and problem.startswith("Object contains unknown field"):
        known = [field.encode_name for field in fields(kind)]
        field = problem.removeprefix("Object contains unknown field ")
        return f"unknown field {field!r}: use {', '.join(known) or 'none'}"
    return f"{name}: {problem[:1].lower()}{problem[1:]}" if name else problem


def _choices(kind: type, name: str) -> list[str]:
    types = [field.type for field in fields(kind) if field.name == name]
    return [str(member) for each in types for member in _members(each)]


def _members(kind: Any) -> Iterator[object]:
    """Yield the members of the enumerations in a type, and the values of its literals."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        yield from kind
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from _members(part)
