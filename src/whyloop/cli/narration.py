"""Narrate a run: its events as lines, and how much of each limit is used."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from whyloop.broadcasting.channel import FeedItem
from whyloop.broadcasting.transports import CHUNK
from whyloop.cli.formats import arguments_summary, long_span_text, span_text
from whyloop.cli.renderer import Kind, Line, changes_note, decision_line, joined_notes, model_problem
from whyloop.events import (
    AgentEvent,
    AgentExecutionStarted,
    AgentStatusChanged,
    AgentStepCompleted,
    AgentStepStarted,
    ApprovalDecided,
    ApprovalRequested,
    ContinuationEvaluated,
    StreamChunkReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.stores.reading import read_end
from whyloop.stores.store import Store
from whyloop.values.approval import Verdict
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome
from whyloop.values.encoding import copied
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.model import NO_USAGE
from whyloop.values.price import dollars
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import printable, revealed, shortened

REASON_LENGTH = 120
_LIMITS = {
    "StepsLimit": ("steps", ""),
    "TokenUsageLimit": ("tokens", ""),
    "ExecutionTimeLimit": ("time", " s"),
    "CumulativeExecutionTimeLimit": ("work", " s"),
    "CostLimit": ("cost", "$"),
}

# Time that passes between two events of one step is work; anything longer between steps is a wait.
NOTICEABLE_SECONDS = 0.05


class Headroom(NamedTuple):
    """The used part of one limit."""

    label: str
    used: float
    limit: float
    unit: str

    @property
    def share(self) -> float:
        """The part that is used, from 0 to 1."""
        return min(1.0, max(0.0, self.used / self.limit))

    def __str__(self) -> str:
        if self.unit == "$":
            return f"{dollars(Decimal(str(self.used)))} of {dollars(Decimal(str(self.limit)))}"
        used = f"{self.used:,.1f}" if self.unit else f"{self.used:,.6g}"
        return f"{used} of {self.limit:,.6g}{self.unit}"


def headroom_of(evaluations: Iterable[ContinuationEvaluation]) -> list[Headroom]:
    """Return the evaluations that report how much of a limit is used."""
    return [found for evaluation in evaluations if (found := _headroom(evaluation)) is not None]


def live_event(body: str) -> AgentEvent:
    """Return the event of an unrecorded envelope: a step's start, or streaming text."""
    envelope = msgspec.json.decode(body)
    data = envelope["data"]
    common: dict[str, Any] = {
        "agent_id": envelope["agent_id"],
        "parent_agent_id": None,
        "execution_id": envelope["execution_id"],
        "step_number": data.get("step_number", 0),
        "time": datetime.fromisoformat(envelope["timestamp"]),
        "seq": envelope["seq"],
    }
    if envelope["event"] == CHUNK:
        return StreamChunkReceived(**common, **data)
    return AgentStepStarted(
        **common,
        message_count=data["message_count"],
        available_tools=tuple(data["available_tools"]),
        wrap_up=data.get("wrap_up"),
    )


class FollowedEvents:
    """The events of a session that another process runs, with the whole text of its answers.

    Streaming text may be lost on its way between two processes. Text after a gap is omitted, and the missing
    text is read from the store when its step is complete.
    """

    def __init__(self, store: Store, agent_id: str) -> None:
        self._store, self._agent_id = store, agent_id
        self._completed: AgentStepCompleted | None = None
        self._state: AgentState | None = None
        self._begin_answer(None)

    async def of(self, item: FeedItem) -> list[AgentEvent]:
        """Return the event of an item, after text that is missing before it."""
        event = item.event or live_event(item.body)
        if isinstance(event, StreamChunkReceived):
            return [event] if self._is_next(event) else []
        if isinstance(event, AgentStepCompleted):
            missing = [] if self._is_complete else await self._missing_text(event)
            self._completed = event
            self._begin_answer(None)
            return [*missing, event]
        return [event]

    def _begin_answer(self, answer: tuple[str, int] | None) -> None:
        self._answer, self._next = answer, 0
        self._text, self._is_complete = "", False

    def _is_next(self, chunk: StreamChunkReceived) -> bool:
        """Return whether a piece of text is the next one of a step in progress."""
        step, answer = self._completed, (chunk.execution_id, chunk.seq)
        if step is not None and chunk.execution_id == step.execution_id and chunk.seq < step.seq:
            return False
        if answer != self._answer or chunk.chunk_index == 0:  # A recovered step begins its answer again.
            self._begin_answer(answer)
        if chunk.chunk_index != self._next:
            return False
        self._next += 1
        if chunk.kind == "text":
            self._text += chunk.chunk
            self._is_complete = chunk.is_complete
        return True

    async def _missing_text(self, event: AgentStepCompleted) -> list[AgentEvent]:
        state = self._state
        if state is None or state.steps.last is None or state.steps.last.completed_at <= event.time:
            state = self._state = (await read_end(self._store, self._agent_id)).state
        for step in state.steps[state.steps.start :]:
            if (step.execution_id, step.number) == (event.execution_id, event.step_number):
                text = next((each.text for each in state.messages_of(step) if each.is_assistant), "")
                return self._rest(event, text)
        return []

    def _rest(self, event: AgentStepCompleted, text: str) -> list[AgentEvent]:
        rest = text.removeprefix(self._text)
        if self._text and rest == text:  # A hook asked again, so the earlier text was different.
            rest = f"\n{text}" if text else ""
        is_complete = event.finish_reason is not None  # It has none if its answer was cut off.
        if not rest and not (self._text and is_complete):
            return []
        about = {"seq": event.seq - 1, "kind": "text", "chunk_index": 0, "is_complete": is_complete}
        return [copied(event, StreamChunkReceived, chunk=rest, **about)]


class Narrator:
    """Turn the events of a run into lines, all of them safe to print."""

    def __init__(self) -> None:
        self.activity = "starting"
        """The current activity of the run, in a few characters; empty once the run has ended."""
        self.text = ""
        """The answer as it has streamed in so far; empty once it is complete."""
        self.headroom: list[Headroom] = []
        self.usage = NO_USAGE
        self._last_time: datetime | None = None
        self._calls: dict[str, tuple[str, str]] = {}
        self._denied: set[str] = set()
        self._step_started = False
        self._tries_again = False
        self._end_shown = False

    def lines(self, event: AgentEvent) -> list[Line]:
        """Return the lines about an event."""
        waited = (event.time - (self._last_time or event.time)).total_seconds()
        self._last_time = event.time
        match event:
            case AgentExecutionStarted():
                return self._query(event, waited)
            case AgentStepStarted():
                return self._step(event, waited)
            case StreamChunkReceived():
                return self._chunk(event)
            case ToolCallStarted():
                self._calls[event.tool_call_id] = (
                    arguments_summary(event.args),
                    changes_note(event.changed_by),
                )
                self.activity = f"{shortened(event.tool)} runs"
            case ToolCallCompleted():
                return self._tool(event)
            case ApprovalRequested():
                return self._question(event)
            case ApprovalDecided():
                if event.verdict is Verdict.DENIED:
                    self._denied.add(event.tool_call_id)
                return [*_pause(waited), _approval(event)]
            case TokenUsageReported():
                self.usage = event.execution_usage
            case ContinuationEvaluated():
                self.headroom = headroom_of(event.outcome.evaluations)
            case AgentStepCompleted():
                return self._decision(event)
            case AgentStatusChanged():
                return self._status(event)
        return []

    def _query(self, event: AgentExecutionStarted, waited: float) -> list[Line]:
        self.usage, self.headroom = NO_USAGE, []
        query = [Line(Kind.QUERY, printable(event.query.text))] if event.query else []
        return [*_pause(waited), *query]

    def _step(self, event: AgentStepStarted, waited: float) -> list[Line]:
        self.activity, self.text = "the model answers", ""
        self._calls.clear()
        self._step_started = True  # A step that was left open by another run does not start again.
        step = Line(Kind.STEP, f"step {event.step_number}" if event.wrap_up is None else "wrap-up")
        if not self._tries_again or waited <= NOTICEABLE_SECONDS:
            return [step]
        return [Line(Kind.WAITED, f"waited {long_span_text(waited)} before the next attempt"), step]

    def _chunk(self, event: StreamChunkReceived) -> list[Line]:
        if event.kind != "text":
            self.activity = "the model thinks"
            return []
        # Many models begin an answer with empty lines.
        self.text = (self.text + printable(event.chunk)).lstrip("\n")
        if not event.is_complete:
            return []
        text, self.text, self.activity = self.text, "", "the model answers"
        return [Line(Kind.ANSWER, text)]

    def _tool(self, event: ToolCallCompleted) -> list[Line]:
        tool, started = shortened(event.tool), event.tool_call_id in self._calls
        arguments, changed = self._calls.get(event.tool_call_id, ("", ""))
        note = joined_notes(changed, changes_note(event.changed_by, "result changed by"))
        took = span_text(event.duration_ms / 1000) if event.duration_ms or event.success else ""
        if event.success:
            done = Line(Kind.DONE, arguments, tool, took, note)
            return [done, Line(Kind.RESULT, shortened(event.result))]
        if event.tool_call_id in self._denied:  # The line of the decision says everything.
            self._denied.discard(event.tool_call_id)
            return []
        error = shortened(event.error or "no reason given")
        if not started:
            return [Line(Kind.PROBLEM, error, tool, note=note)]
        return [Line(Kind.FAILED, arguments, tool, took, note), Line(Kind.ERROR, error)]

    def _question(self, event: ApprovalRequested) -> list[Line]:
        self._calls.setdefault(event.tool_call_id, ("", ""))
        if not event.tool_call_id:  # A question about the run itself.
            return [Line(Kind.OPEN, shortened(revealed(event.question), REASON_LENGTH), "question")]
        call = f"{shortened(event.tool)}({arguments_summary(event.args)})"
        return [Line(Kind.OPEN, "waits for a person", call, note=changes_note(event.changed_by))]

    def _decision(self, event: AgentStepCompleted) -> list[Line]:
        outcome = event.outcome
        self._tries_again = outcome.handling is ErrorHandlingDecision.RETRY
        self.activity = "waiting to try again" if self._tries_again else "continuing"
        self._end_shown = not outcome.should_continue
        before = [*self._cut_off_answer(), *self._model_problem(event)]
        self._step_started = False
        return [*before, *_policy(outcome), decision_line(outcome, event.usage, event.duration_ms)]

    def _status(self, event: AgentStatusChanged) -> list[Line]:
        """Return a line about a pause, or about an end that no step led to."""
        shown, self._end_shown = self._end_shown, False
        if event.status is AgentStatus.IN_PROGRESS:
            return []
        self.activity = ""
        if shown:
            return []
        text = shortened(f"{event.resolved_by}: {event.reason}", REASON_LENGTH)
        if event.status is AgentStatus.PAUSED:
            return [Line(Kind.PAUSE, text, "pause")]
        return [Line(Kind.STOP, text, f"stop ({event.stop_reason})")]

    def _cut_off_answer(self) -> list[Line]:
        """Return the text of an answer that was cut off."""
        text, self.text = self.text, ""
        return [Line(Kind.ANSWER, text.rstrip(), note="cut off")] if text else []

    def _model_problem(self, event: AgentStepCompleted) -> list[Line]:
        if not event.error_count or self._calls or not self._step_started:
            return []
        policy = event.outcome.policy_evaluation
        if event.wrap_up is not None:  # No policy handles its failure, and its rule reports it.
            policy = event.outcome.evaluation_for("ErrorPolicyCriterion")
        message = str(policy.context.get("message", "")) if policy else ""
        return [model_problem(message, event.finish_reason)]


def _pause(seconds: float) -> list[Line]:
    return [Line(Kind.WAITED, f"{long_span_text(seconds)} later")] if seconds > NOTICEABLE_SECONDS else []


def _approval(event: ApprovalDecided) -> Line:
    about = shortened(event.tool) if event.tool_call_id else "the run"
    reason = f": {shortened(event.reason, REASON_LENGTH)}" if event.reason else ""
    return Line(Kind.DECIDED, f"{event.verdict} by {shortened(event.by)}{reason}", about)


def _policy(outcome: ContinuationOutcome) -> list[Line]:
    """Return what the policy did about a failure, where another rule decided."""
    policy, handling = outcome.policy_evaluation, outcome.handling
    if policy is None or handling is None or policy is outcome.resolving_evaluation:
        return []
    text = shortened(f"{policy.criterion}: {policy.reason}", REASON_LENGTH)
    return [Line(Kind.POLICY, text, str(handling))]


def _headroom(evaluation: ContinuationEvaluation) -> Headroom | None:
    used, limit = evaluation.context.get("used"), evaluation.context.get("limit")
    if not isinstance(used, int | float) or not isinstance(limit, int | float) or limit <= 0:
        return None
    label, unit = _LIMITS.get(evaluation.criterion, (shortened(evaluation.criterion, 24), ""))
    return Headroom(label, used, limit, unit)
