"""The bodies of responses; the API document is generated from these types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from whyloop.values.approval import PendingCall
from whyloop.values.continuation import StopReason
from whyloop.values.next_action import NextAction
from whyloop.values.state import AgentStatus

Right = Literal["send", "decide", "inspect", "manage"]

RIGHTS: tuple[Right, ...] = get_args(Right)
"""The rights that a client may have; `Operation.right` is the one that an operation needs."""


class ChatHistory(Struct, frozen=True):
    """The messages of a chat, for `useChat`."""

    messages: list[Annotated[dict[str, Any], Meta(description="A `UIMessage`.")]]


class SessionSummary(Struct, frozen=True):
    """A session as a list shows it."""

    agent_id: str
    status: AgentStatus
    stop_reason: StopReason | None
    resolved_by: Annotated[str | None, Meta(description="The rule that decided last.")]
    reason: Annotated[str | None, Meta(description="The reason that this rule gave.")]
    title: str
    agent: Annotated[str, Meta(description="The name of the agent that runs it.")]
    step_count: int
    pending: Annotated[int, Meta(description="How many questions wait for a person.")]
    cost: Annotated[str | None, Meta(description="In US dollars, a decimal number; null if unknown.")]
    tokens: Annotated[int, Meta(description="Read and written together.")]
    tokens_known: Annotated[bool, Meta(description="False if `tokens` is a lower bound.")]
    active_seconds: Annotated[float, Meta(description="The time in which models and tools were at work.")]
    step_limit: Annotated[int | None, Meta(description="The limit on the steps of its last run, if known.")]
    last_query: Annotated[str, Meta(description="The beginning of its last question.")]
    step_marks: Annotated[
        str,
        Meta(
            description=(
                "A character for each of its last 24 steps: `.` ordinary, `e` an error or a failed call, `r` "
                "a model call that was retried, `p` waited for a person, `s` the natural end of a run, `f` a "
                "rule forbade continuing."
            )
        ),
    ]
    started_at: datetime
    updated_at: datetime
    parent_agent_id: str | None
    is_running: bool
    version: Annotated[int, Meta(description="Grows with every change; it is part of the `ETag`.")]
    metadata: Mapping[str, Any]


class SessionPage(Struct, frozen=True):
    """Some sessions, newest first; `next` is the `after` of the next page."""

    sessions: list[SessionSummary]
    next: str | None


class DayCounts(Struct, frozen=True):
    """How many sessions ended on a day, by kind of stop reason."""

    completed: int = 0
    limit: Annotated[int, Meta(description="A limit on steps, tokens, time or cost.")] = 0
    error: Annotated[int, Meta(description="An error, or too many retries.")] = 0
    person: Annotated[int, Meta(description="A guard, a person, or anything else.")] = 0


class Day(Struct, frozen=True):
    """A day in the client's time."""

    day: date
    counts: Annotated[DayCounts, Meta(description="Sessions whose last run ended on this day.")]


class RuleCount(Struct, frozen=True):
    """How many sessions a rule decided."""

    rule: str
    count: int


class Stats(Struct, frozen=True):
    """The sessions of a list, counted."""

    days: Annotated[list[Day], Meta(description="The last days, oldest first.")]
    rules: Annotated[
        list[RuleCount], Meta(description="Who decided about sessions that ended or paused, most first.")
    ]
    statuses: Annotated[
        dict[AgentStatus, int], Meta(description="Statuses that no session has are left out.")
    ]
    waiting: Annotated[int, Meta(description="Sessions with questions that wait for a person.")]
    total: Annotated[int, Meta(description="All sessions of the list.")]


class OpenQuestion(Struct, frozen=True):
    """A question that waits for a person: about a tool call, or about the run itself."""

    agent_id: str
    title: Annotated[str, Meta(description="The beginning of the first question of the session.")]
    asked_at: datetime
    id: Annotated[str, Meta(description="The `question_id` of a decision.")]
    tool: Annotated[str | None, Meta(description="The tool; null if the run itself asks.")]
    tool_call_id: str | None
    arguments: dict[str, Any] | None
    args_summary: str
    question: str
    can_edit: Annotated[bool, Meta(description="True if `approve` may replace the arguments.")]


class QuestionPage(Struct, frozen=True):
    """Questions that wait for a person, oldest first, and the number of all of them."""

    questions: list[OpenQuestion]
    total: int


class Info(Struct, frozen=True):
    """A server and the rights of the client."""

    version: Annotated[str, Meta(description="The version of whyloop.")]
    store: Annotated[str, Meta(description="A short name of the store.")]
    can_run: Annotated[bool, Meta(description="False if the server has no agent, and runs nothing.")]
    may: Annotated[list[Right], Meta(description="The rights of the client.")]
    user: Annotated[str | None, Meta(description="The name of the client, if it has one.")]


class SessionState(Struct, frozen=True):
    """A session at one version."""

    session: SessionSummary
    execution_id: str
    last_response: str | None
    pending_calls: Annotated[list[PendingCall], Meta(description="Questions that wait for a person.")]


class History(Struct, frozen=True):
    """Messages as a chat shows them, oldest first.

    `after` is the cursor of the last envelope that they include. `next` is the `before` of the page of
    older messages, or the `after` of the next page if `after` was given.
    """

    messages: list[Raw]
    after: str | None
    has_more: bool
    next: int | None


class EventPage(Struct, frozen=True):
    """Envelopes, oldest first; `next` is the `after` of the next page, null before the first envelope."""

    events: list[Raw]
    next: str | None
    has_more: bool


class ExecutionSummary(Struct, frozen=True):
    """The work on one query."""

    id: str
    query: Annotated[str, Meta(description="The beginning of the query.")]
    status: AgentStatus
    stop_reason: StopReason | None
    resolved_by: Annotated[str | None, Meta(description="The rule that decided last.")]
    reason: Annotated[str | None, Meta(description="The reason that this rule gave.")]
    first_step: Annotated[int, Meta(description="The `index` of its first step, also before that step.")]
    step_count: Annotated[int, Meta(description="Its closed steps, with a wrap-up.")]
    started_at: datetime
    ended_at: Annotated[datetime | None, Meta(description="Null while it has not ended.")]


class ExecutionPage(Struct, frozen=True):
    """The executions of a session, oldest first; `next` is the `after` of the next page."""

    executions: list[ExecutionSummary]
    has_more: bool
    next: int | None


class RequestSent(Struct, frozen=True):
    """A request as the model got it, made again from its record."""

    instructions: str | None
    tools: Annotated[list[Any] | None, Meta(description="Null if none were declared.")]
    messages: Annotated[list[Any], Meta(description="The last ones, oldest first.")]
    message_count: Annotated[int, Meta(description="How many messages the request had.")]
    output: Annotated[Any, Meta(description="The form of the answer that was asked for, or null.")]
    tool_choice: str | None
    max_tokens: int | None
    changed_by: Annotated[list[str], Meta(description="The hooks that changed the request.")]
    incomplete: Annotated[bool, Meta(description="True if a part of it was not recorded.")]


class StepDetail(Struct, frozen=True):
    """A step in full, open or closed, with the request that the model got."""

    index: Annotated[int, Meta(description="Its number in the session.")]
    number: Annotated[int, Meta(description="Its number in the execution.")]
    execution_id: str
    type: str
    started_at: str
    answered_at: Annotated[str | None, Meta(description="When the answer of the model was complete.")]
    completed_at: Annotated[str | None, Meta(description="Null while the step is open.")]
    backoff_seconds: Annotated[float, Meta(description="The wait for the provider before it.")]
    waited_seconds: Annotated[float, Meta(description="The wait for a person within it.")]
    finish_reason: str | None
    usage: Mapping[str, Any]
    duration_ms: float
    source: Annotated[Any, Meta(description="The model that answered.")]
    request: Annotated[Any, Meta(description="The record of the request, with the hashes of its texts.")]
    response_changed_by: list[str]
    tool_calls: list[Any]
    failures: list[Any]
    interrupted: str | None
    wrap_up: str | None
    outcome: Any
    text: Annotated[str | None, Meta(description="The text of the answer.")]
    reasoning: str | None
    request_sent: RequestSent


class SessionSnapshot(Struct, frozen=True):
    """A session as `AgentState.to_dict` writes it, without credentials."""

    version: int
    agent_id: str
    status: AgentStatus
    messages: list[Raw]
    steps: list[Raw]


class LimitUse(Struct, frozen=True):
    """How much of a limit is used, as it was last evaluated."""

    rule: str
    option: Annotated[str, Meta(description="The option of an agent that sets it, such as `max_steps`.")]
    unit: Literal["steps", "tokens", "seconds", "usd"]
    limit: Annotated[float, Meta(description="Without what was granted.")]
    used: float
    granted: Annotated[float, Meta(description="What a person allowed on top of it.")]


class Trace(Struct, frozen=True):
    """Steps with their calls, decisions and reasons; `next` is the `after` of the next page."""

    agent_id: str
    status: AgentStatus
    stop_reason: StopReason | None
    resolved_by: str | None
    reason: str | None
    headline: Annotated[str, Meta(description="The status, where, and the rule that decided, on one line.")]
    explanation: Annotated[str, Meta(description="Why it continued and why it stopped, as plain text.")]
    next_actions: Annotated[list[NextAction], Meta(description="What would let it continue, in order.")]
    steps: list[Raw]
    step_count: int
    has_more: bool
    next: int | None
    usage: Mapping[str, Any]
    times: Mapping[str, Any]
    agent: Annotated[str, Meta(description="The name of the agent that ran it last.")]
    open_step: Annotated[Raw | None, Meta(description="The step in progress, in the form of `steps`.")]
    executions: Annotated[
        list[ExecutionSummary], Meta(description="Oldest first: the latest 100, and those of `steps`.")
    ]
    limits: Annotated[list[LimitUse], Meta(description="The limits of the latest execution.")]
    rules: Annotated[list[str], Meta(description="The names of the rules, in the order of the agent.")]


class WhatIf(Struct, frozen=True):
    """How an execution would have ended under other limits. Amounts that are null are unknown."""

    execution_id: str
    status: Annotated[AgentStatus, Meta(description="`in_progress` if it would have continued.")]
    stopped_at: Annotated[int | None, Meta(description="The number of the step in the execution.")]
    stop_reason: StopReason | None
    resolved_by: Annotated[str | None, Meta(description="The rule that would have ended it.")]
    reason: str | None
    beyond: Annotated[bool, Meta(description="True if it would have continued past the recording.")]
    assumed_from: Annotated[
        int | None, Meta(description="The first step that assumes an effect which was not recorded.")
    ]
    is_cut: Annotated[bool, Meta(description="True if it would have ended earlier.")]
    was_completed: Annotated[bool, Meta(description="True if the recorded run had completed.")]
    saved: Mapping[str, Any]
    used: Mapping[str, Any]
    votes: Annotated[
        Mapping[str, str],
        Meta(
            description=(
                "A letter for each step of the execution, by rule: `A` allow, `F` forbid, `R` request, `S` "
                "stop, `-` not judged."
            )
        ),
    ]
    reasons: Annotated[
        Mapping[str, list[str]],
        Meta(description="The reason of each of these votes, for the rules that differ from the recording."),
    ]


class SurveyRow(Struct, frozen=True):
    """One value of a limit, and its effect on all runs."""

    value: float
    cut: Annotated[int, Meta(description="The runs that it would have ended earlier.")]
    completed: Annotated[int, Meta(description="Those of them that had completed.")]
    beyond: Annotated[int, Meta(description="The runs that would have continued past their recording.")]
    saved: Mapping[str, Any]


class SurveyView(Struct, frozen=True):
    """The effect of each value of a limit on many runs. A run is the work on one query."""

    limit: str
    runs: int
    completed: int
    used: Annotated[Mapping[str, Any], Meta(description="What all runs used, as far as it is known.")]
    rows: Annotated[list[SurveyRow], Meta(description="At most 50, lowest value first.")]
    recommended: Annotated[
        float | None,
        Meta(description="The lowest value that cuts no completed run; null with fewer than 30 of them."),
    ]
    interval: Annotated[
        tuple[float, float] | None,
        Meta(description="The share of future completed runs that it would cut: a 95 % interval."),
    ]
    cut_below: Annotated[
        Mapping[str, float], Meta(description="By session: every value of `rows` below this one cuts it.")
    ]
    problems: Annotated[int, Meta(description="How many sessions could not be judged.")]


class Stopped(Struct, frozen=True):
    """The answer to a stop request: whether there was anything to stop."""

    stopped: bool


class Authorization(Struct, frozen=True, omit_defaults=True):
    """The signature that a subscriber sends to the server of the channel."""

    auth: str
    channel_data: str | None = None


PROBLEMS = (
    *("bad_request", "busy", "conflict", "host", "internal", "key_reused", "missing_right"),
    *("no_such_execution", "no_such_step", "no_worker", "not_authenticated", "not_authorized"),
    *("not_decided", "not_found", "not_json", "not_pending", "not_resumable", "nothing_to_judge"),
    *("origin", "precondition_failed", "refused", "session_exists", "session_not_found"),
    *("session_running", "too_large", "too_slow", "unanswerable", "unavailable", "workflow_open"),
)
"""The types of problems, as clients find them in `Problem.type`."""


class Problem(Struct, frozen=True):
    """The reason of a refusal: a type for programs and a sentence for people."""

    type: Annotated[str, Meta(description=f"One of {', '.join(PROBLEMS)}.")]
    message: str
    pending_calls: (
        Annotated[list[PendingCall], Meta(description="The questions that are open.")] | UnsetType
    ) = UNSET


class Refusal(Struct, frozen=True):
    """The response to a request that cannot be carried out."""

    error: Problem
