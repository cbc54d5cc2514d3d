"""The events of one run in order: every part that begins also ends, and nothing follows the end.

This is common to the protocols of user interfaces; each protocol is a subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from whyloop.events import (
    AgentEvent,
    AgentExecutionStarted,
    AgentStatusChanged,
    AgentStepCompleted,
    AgentStepStarted,
    ApprovalDecided,
    ApprovalRequested,
    ContinuationEvaluated,
    RetryScheduled,
    StreamChunkReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values import encoding
from whyloop.values.approval import Approval, PendingCall, Verdict
from whyloop.values.continuation import StopReason
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, Usage
from whyloop.values.redaction import Redaction
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.summaries import words_for
from whyloop.values.text import clean
from whyloop.wire.view import RECOVERY

_DEFAULT = Redaction()

Part = TypeVar("Part")
TextKind = Literal["text", "reasoning"]

# An execution that is heard of with one of these is at work, so it is not one that a new query supersedes.
_AT_WORK = (AgentStepStarted, StreamChunkReceived, ToolCallStarted, ApprovalRequested, RetryScheduled)


class Call(Struct, frozen=True):
    """A tool call in a stream."""

    stream_id: str
    """The provider's id, made unique within the run."""
    name: str
    arguments: Any
    """As JSON holds them; None if the call never started."""
    changed_by: tuple[str, ...]
    """The hooks that changed the arguments."""
    known: bool
    """True for a call of a step that began before this run: an earlier stream has sent its arguments."""


class Result(Struct, frozen=True):
    """The end of a tool call in a stream."""

    stream_id: str
    step: int
    text: str
    """What the tool returned; the error if it did not succeed."""
    error: str | None
    denied: bool
    """True if a person did not let the call run."""
    duration_ms: float
    changed_by: tuple[str, ...]
    """The hooks that made or replaced the result."""


class Ending(Struct, frozen=True):
    """How a run ended, or what it waits for."""

    status: AgentStatus
    stop_reason: StopReason | None = None
    resolved_by: str | None = None
    reason: str | None = None
    step_count: int = 0
    error_message: str | None = None
    last_response: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()

    def summary(self) -> dict[str, Any]:
        """Return the fields that a user interface shows."""
        return {
            "status": str(self.status),
            "stop_reason": self.stop_reason and str(self.stop_reason),
            "resolved_by": self.resolved_by and clean(self.resolved_by),
            "reason": self.reason and clean(self.reason),
            "step_count": self.step_count,
            "last_response": self.last_response and clean(self.last_response),
        }


class RunStream(ABC, Generic[Part]):
    """Turns the events of one run into the parts of a protocol.

    A run is the work between a query or a resume and the next end or pause. The stream follows the first
    execution that it receives an event of, or the first one of a session with `agent_id`. An execution that
    was paused ends when a new query supersedes it; that end is not part of the new run.

    A resumed run begins with what was decided since the pause. Decisions are recorded when they are made, so
    they are not among the events of the run: give `resumed` the state with which it is resumed, or the
    events of the decisions before those of the run.

    `redaction` says what is secret: it is removed from arguments, results, errors and reasons, but not from
    the answer itself; with None, nothing is.
    """

    def __init__(
        self,
        *,
        agent_id: str | None = None,
        resumed: AgentState | None = None,
        redaction: Redaction | None = _DEFAULT,
    ) -> None:
        self._agent_id = agent_id
        self._redaction = redaction
        self._execution_id: str | None = None
        # Perhaps of an execution that is superseded.
        self._held: list[AgentEvent] = [] if resumed is None else list(_decisions(resumed))
        self._time: datetime | None = None
        self._ended = self._resumed = False
        self._step: int | None = None
        self._continued = False  # The open step began before this run.
        self._text: tuple[TextKind, str] | None = None  # The text that is open, and its id.
        self._has_text = False  # Text was streamed in the latest step.
        self._calls: dict[tuple[int, str], str] = {}
        self._denied: set[tuple[int, str]] = set()
        self._questions: list[tuple[str, tuple[int, str], str]] = []
        self._completed: AgentStepCompleted | None = None
        self._usage = Usage()

    @property
    def ended(self) -> bool:
        """True once the run has ended or paused; later events belong to another stream."""
        return self._ended

    def parts(self, event: AgentEvent) -> list[Part]:
        """Return the parts of an event, in order; none for an event of another run."""
        if self._ended or not self._is_ours(event):
            return []
        if self._execution_id is None:
            if self._may_be_superseded(event):
                return []
            self._resumed = isinstance(event, AgentExecutionStarted) and event.resumed
        return [part for each in (*self._released(event), event) for part in self._parts(each)]

    def all_parts(self, run: Iterable[AgentEvent]) -> list[Part]:
        """Return the parts of a recorded run.

        It may be decisions alone, which no run has followed yet, or the questions of a fork.
        """
        parts = [part for event in run for part in self.parts(event)]
        parts += self._rest()
        if not self._ended:
            for question_id, call, question in self._questions:
                parts += self._call_waits(question_id, self._calls[call], question)
        return parts

    def broken_off(self, words: str) -> list[Part]:
        """Return the end of a run of which no more events will come; none if it has ended by itself."""
        if self._ended:
            return []
        parts = self._rest()
        ending = Ending(AgentStatus.FAILED, error_message=self._shown(words), usage=self._usage)
        return parts if self._ended else [*parts, *self._end(ending)]

    def _rest(self) -> list[Part]:
        """Return the parts of events that were held for the beginning of a run."""
        if not self._held:
            return []
        self._resumed = isinstance(self._held[0], ApprovalDecided)
        return [part for each in self._released(self._held[-1]) for part in self._parts(each)]

    def _is_ours(self, event: AgentEvent) -> bool:
        if self._execution_id is not None:
            return event.execution_id == self._execution_id
        return self._agent_id is None or event.agent_id == self._agent_id

    def _released(self, event: AgentEvent) -> list[AgentEvent]:
        """Return the events that were held and belong to the execution of this one."""
        held, self._held = self._held, []
        return [each for each in held if each.execution_id == event.execution_id]

    def _may_be_superseded(self, event: AgentEvent) -> bool:
        """Hold an event that does not say yet which execution this run is about."""
        if isinstance(event, (AgentExecutionStarted, *_AT_WORK)):
            return False
        if isinstance(event, AgentStatusChanged) and event.previous_status is AgentStatus.IN_PROGRESS:
            return False
        self._held.append(event)
        return True

    def _parts(self, event: AgentEvent) -> Iterator[Part]:
        self._time = event.time
        if self._execution_id is None:
            self._execution_id = event.execution_id
            yield from self._run_begins(event)
        match event:
            case AgentStepStarted():
                yield from self._open_step(event.step_number, continued=False)
            case StreamChunkReceived():
                yield from self._chunk(event)
            case ToolCallStarted() | ApprovalRequested() if not is_about_run(event.tool_call_id, event.tool):
                number, call_id, name = event.step_number, event.tool_call_id, event.tool
                yield from self._announce(number, call_id, name, event.args, event.changed_by)
                if isinstance(event, ApprovalRequested):
                    question = self._shown(event.question)
                    self._questions.append((clean(event.question_id), (number, call_id), question))
            case ApprovalDecided():
                yield from self._decide(event)
            case ToolCallCompleted():
                yield from self._complete(event)
            case TokenUsageReported():
                self._usage += event.usage
            case ContinuationEvaluated():
                yield from self._evaluated(event.step_number, self._verdict(event))
            case AgentStepCompleted():
                self._completed = event
                yield from self._close_step()
            case AgentStatusChanged() if event.status is not AgentStatus.IN_PROGRESS:
                yield from self._stop(event)

    # Steps and text

    def _in_step(self, number: int) -> Iterator[Part]:
        """Open a step that was left open in an earlier run, or whose start was not received."""
        if self._step != number:
            yield from self._open_step(number, continued=self._resumed)

    def _open_step(self, number: int, *, continued: bool) -> Iterator[Part]:
        yield from self._close_step()
        self._step, self._continued, self._has_text = number, continued, False
        yield from self._step_begins(number, continued)

    def _close_step(self) -> Iterator[Part]:
        yield from self._close_text()
        if self._step is not None:
            number, self._step = self._step, None
            yield from self._step_ends(number)

    def _chunk(self, event: StreamChunkReceived) -> Iterator[Part]:
        yield from self._in_step(event.step_number)
        if event.chunk:
            yield from self._add_text(event.step_number, event.kind, event.chunk)
        if event.is_complete:
            yield from self._close_text()

    def _add_text(self, step: int, kind: TextKind, text: str) -> Iterator[Part]:
        if self._text is not None and self._text[0] != kind:
            yield from self._close_text()
        if self._text is None:
            own_id = self._message_id(step) if kind == "text" else f"{self._message_id(step)}:reasoning"
            self._text, self._has_text = (kind, own_id), self._has_text or kind == "text"
            yield from self._text_begins(kind, own_id)
        yield from self._text_continues(*self._text, clean(text))

    def _close_text(self) -> Iterator[Part]:
        if self._text is not None:
            text, self._text = self._text, None
            yield from self._text_ends(*text)

    def _message_id(self, step: int) -> str:
        """Return the id of the assistant's message in a step: the same in every stream of the run."""
        return f"{clean(self._execution_id or '')}:{step}"

    # Tools

    def _announce(
        self,
        step: int,
        call_id: str,
        name: str,
        arguments: Mapping[str, Any] | str | None,
        changed_by: tuple[str, ...] = (),
    ) -> Iterator[Part]:
        yield from self._in_step(step)
        stream_id = clean(call_id)
        # A provider may number its calls anew in every answer, and a user interface goes by the id.
        if stream_id in self._calls.values() and (step, call_id) not in self._calls:
            stream_id = f"{stream_id}:{step}"
        self._calls[step, call_id] = stream_id
        names = tuple([clean(each) for each in changed_by])
        yield from self._call_begins(
            Call(stream_id, clean(name), self._shown_data(arguments), names, self._continued)
        )

    def _decide(self, event: ApprovalDecided) -> Iterator[Part]:
        about: dict[str, Any] = {
            "question_id": clean(event.question_id),
            "tool": None,
            "tool_call_id": None,
            "verdict": str(event.verdict),
            "by": self._shown(event.by),
            "reason": event.reason and self._shown(event.reason),
        }
        if not is_about_run(event.tool_call_id, event.tool):
            call = event.step_number, event.tool_call_id
            about |= {"tool": clean(event.tool), "tool_call_id": self._calls.get(call, clean(call[1]))}
            if event.verdict is Verdict.DENIED:
                self._denied.add(call)
        yield from self._decided(about)

    def _complete(self, event: ToolCallCompleted) -> Iterator[Part]:
        call = event.step_number, event.tool_call_id
        if call not in self._calls:
            yield from self._announce(*call, event.tool, None)
        result = Result(
            stream_id=self._calls[call],
            step=event.step_number,
            text=self._shown(event.result),
            error=None if event.success else self._shown(event.error or event.result),
            denied=call in self._denied,
            duration_ms=event.duration_ms,
            changed_by=tuple([clean(each) for each in event.changed_by]),
        )
        yield from self._call_ends(result)

    # The end

    def _stop(self, event: AgentStatusChanged) -> Iterator[Part]:
        for pending in event.pending_calls:
            yield from self._ask(event.step_number, pending)
        yield from self._close_step()
        if event.last_response and self._is_unsent_answer():
            yield from self._add_text(event.step_number, "text", event.last_response)
        ending = Ending(
            status=event.status,
            stop_reason=event.stop_reason,
            resolved_by=event.resolved_by,
            reason=event.reason and self._shown(event.reason),
            step_count=event.step_count,
            error_message=event.error_message and self._shown(event.error_message),
            last_response=event.last_response,
            finish_reason=self._completed.finish_reason if self._completed else None,
            usage=self._usage,
        )
        yield from self._end(ending)

    def _ask(self, step: int, pending: PendingCall) -> Iterator[Part]:
        question_id, question = clean(pending.id), self._shown(pending.question)
        if is_about_run(pending.call_id, pending.name):
            yield from self._run_waits(question_id, question)
            return
        if (step, pending.call_id) not in self._calls:
            yield from self._announce(step, pending.call_id, pending.name, pending.arguments)
        yield from self._call_waits(question_id, self._calls[step, pending.call_id], question)

    def _end(self, ending: Ending) -> Iterator[Part]:
        yield from self._close_step()
        self._ended = True
        yield from self._run_ends(ending)

    def _is_unsent_answer(self) -> bool:
        """Return whether the last step was an answer that did not arrive in chunks."""
        last = self._completed
        return last is not None and not last.has_tool_calls and not last.error_count and not self._has_text

    # Texts

    def _shown(self, text: str) -> str:
        """Return a text of a tool, a rule or a provider without secrets."""
        return self._redaction.text(clean(text)) if self._redaction else clean(text)

    def _shown_data(self, value: object) -> Any:
        """Return the value as JSON holds it, without secrets; its `repr` where JSON cannot hold it."""
        try:
            data = encoding.encode(value)
            return self._redaction.data(data) if self._redaction else data
        except Exception:  # An observer breaks nothing.
            return self._shown(words_for(value, 1000))

    def _verdict(self, event: ContinuationEvaluated) -> dict[str, Any]:
        outcome = event.outcome
        evaluation = outcome.resolving_evaluation
        return {
            "step_number": event.step_number,
            "should_continue": outcome.should_continue,
            "stop_reason": outcome.stop_reason and str(outcome.stop_reason),
            "resolved_by": clean(outcome.resolved_by),
            "reason": evaluation and self._shown(evaluation.reason),
        }

    # The parts of a protocol

    @abstractmethod
    def _run_begins(self, event: AgentEvent) -> Iterator[Part]: ...

    @abstractmethod
    def _step_begins(self, number: int, continued: bool) -> Iterator[Part]: ...

    @abstractmethod
    def _text_begins(self, kind: TextKind, text_id: str) -> Iterator[Part]: ...

    @abstractmethod
    def _text_continues(self, kind: TextKind, text_id: str, text: str) -> Iterator[Part]: ...

    @abstractmethod
    def _text_ends(self, kind: TextKind, text_id: str) -> Iterator[Part]: ...

    @abstractmethod
    def _call_begins(self, call: Call) -> Iterator[Part]: ...

    @abstractmethod
    def _call_ends(self, result: Result) -> Iterator[Part]: ...

    @abstractmethod
    def _call_waits(self, question_id: str, stream_id: str, question: str) -> Iterator[Part]: ...

    @abstractmethod
    def _run_waits(self, question_id: str, question: str) -> Iterator[Part]: ...

    @abstractmethod
    def _decided(self, decision: dict[str, Any]) -> Iterator[Part]: ...

    @abstractmethod
    def _evaluated(self, step: int, verdict: dict[str, Any]) -> Iterator[Part]: ...

    @abstractmethod
    def _step_ends(self, number: int) -> Iterator[Part]: ...

    @abstractmethod
    def _run_ends(self, ending: Ending) -> Iterator[Part]: ...


def query_id(execution_id: str) -> str:
    """Return the id of the user's message that an execution works on."""
    return f"{clean(execution_id)}:query"


def query_of(run: Iterable[AgentEvent]) -> AgentExecutionStarted | None:
    """Return the event of a run with its query; None if it has none, as after a resume."""
    begun = (event for event in run if isinstance(event, AgentExecutionStarted))
    return next((event for event in begun if event.query is not None), None)


def is_about_run(call_id: str, name: str) -> bool:
    """Return whether a question is about the run itself and not about a tool call."""
    return (call_id, name) == (RECOVERY.id, RECOVERY.name)


def _decisions(state: AgentState) -> Iterator[AgentEvent]:
    """Yield the events of what was decided since the pause, with the results of calls that were denied."""
    execution, step = state.execution, state.open_step
    paused_after = execution.leg_started_at or execution.started_at
    common: dict[str, Any] = {
        "agent_id": state.agent_id,
        "parent_agent_id": state.parent_agent_id,
        "execution_id": execution.id,
        "step_number": execution.step_count + 1 if step is None else step.number,
    }

    def decided(call: ToolCall, approvals: tuple[Approval, ...]) -> Iterator[ApprovalDecided]:
        for made in approvals:
            if made.at >= paused_after:
                yield ApprovalDecided(
                    **common,
                    time=made.at,
                    question_id=made.question_id,
                    tool=call.name,
                    tool_call_id=call.id,
                    verdict=made.verdict,
                    by=made.by,
                    reason=made.reason,
                )

    yield from decided(RECOVERY, execution.approvals)
    for asked, call in () if step is None else zip(step.tool_calls, step.calls, strict=True):
        decisions = list(decided(asked, call.approvals))
        yield from decisions
        if decisions and decisions[-1].verdict is Verdict.DENIED and call.result is not None:
            yield ToolCallCompleted(
                **common,
                time=decisions[-1].time,
                tool=asked.name,
                tool_call_id=asked.id,
                success=False,
                error=call.result.error,
                duration_ms=call.duration_ms,
                result=call.result.error or call.result.content,
            )
