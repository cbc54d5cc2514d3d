"""A run as a stream of parts, the base class of the protocols of user interfaces. Every part that begins also
ends, and nothing follows the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

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
from whyloop.values.approval import PendingCall, Verdict
from whyloop.values.encoding import copied
from whyloop.values.model import Usage
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction, redacted
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean
from whyloop.wire.envelope import is_about_run
from whyloop.wire.stream_values import Call, Result, RunEnd, decisions_since_pause

Part = TypeVar("Part")
TextKind = Literal["text", "reasoning"]

# An execution whose first event is one of these is working, so a new query has not superseded it.
_AT_WORK = (AgentStepStarted, StreamChunkReceived, ToolCallStarted, ApprovalRequested, RetryScheduled)


class ProtocolStream(ABC, Generic[Part]):
    """A stream that turns the events of one run into the parts of a protocol.

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
        redaction: Redaction | None = DEFAULT_REDACTION,
    ) -> None:
        self._agent_id = agent_id
        self._redaction = redaction
        self._execution_id: str | None = None
        # Perhaps of an execution that is superseded.
        self._held: list[AgentEvent] = [] if resumed is None else list(decisions_since_pause(resumed))
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
            if self._hold_back(event):
                return []
            self._resumed = isinstance(event, AgentExecutionStarted) and event.resumed
        return [part for each in (*self._release_held(event), event) for part in self._parts(each)]

    def all_parts(self, run: Iterable[AgentEvent]) -> list[Part]:
        """Return the parts of a recorded run.

        It may only consist of decisions that no run has followed yet, or of the questions of a fork.

        Args:
            run: The events of the run, in order.
        """
        parts = [part for event in run for part in self.parts(event)]
        parts += self._release_rest()
        if not self._ended:
            for question_id, call, question in self._questions:
                parts += self._waits(question_id, question, self._calls[call])
        return parts

    def break_off(self, error: str) -> list[Part]:
        """Return the end of a run without further events; none if it has ended.

        Args:
            error: The reason, for the client.
        """
        if self._ended:
            return []
        parts = self._release_rest()
        ending = RunEnd(AgentStatus.FAILED, error_message=self._shown(error), usage=self._usage)
        return parts if self._ended else [*parts, *self._end(ending)]

    def _release_rest(self) -> list[Part]:
        """Return the parts of events that were held for the beginning of a run."""
        if not self._held:
            return []
        self._resumed = isinstance(self._held[0], ApprovalDecided)
        return [part for each in self._release_held(self._held[-1]) for part in self._parts(each)]

    def _is_ours(self, event: AgentEvent) -> bool:
        if self._execution_id is not None:
            return event.execution_id == self._execution_id
        return self._agent_id is None or event.agent_id == self._agent_id

    def _release_held(self, event: AgentEvent) -> list[AgentEvent]:
        """Return the events that were held and belong to the execution of this one."""
        held, self._held = self._held, []
        return [each for each in held if each.execution_id == event.execution_id]

    def _hold_back(self, event: AgentEvent) -> bool:
        """Hold an event that does not show yet which execution this run belongs to."""
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
        """Open a step that an earlier run left open, or whose start was not received."""
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
        """Return the id of the assistant's message in a step, the same in every stream."""
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
        # A provider may number its calls from 1 in every answer, but a user interface relies on unique ids.
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
        ending = copied(
            event,
            RunEnd,
            reason=event.reason and self._shown(event.reason),
            error_message=event.error_message and self._shown(event.error_message),
            finish_reason=self._completed.finish_reason if self._completed else None,
            usage=self._usage,
        )
        yield from self._end(ending)

    def _ask(self, step: int, pending: PendingCall) -> Iterator[Part]:
        question_id, question = clean(pending.id), self._shown(pending.question)
        if is_about_run(pending.tool_call_id, pending.tool):
            yield from self._waits(question_id, question, None)
            return
        if (step, pending.tool_call_id) not in self._calls:
            yield from self._announce(step, pending.tool_call_id, pending.tool, pending.arguments)
        yield from self._waits(question_id, question, self._calls[step, pending.tool_call_id])

    def _end(self, ending: RunEnd) -> Iterator[Part]:
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
        """Return the value as JSON holds it, or its `repr`, without secrets."""
        return redacted(encoding.encode_or_describe(value), self._redaction)

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
    def _waits(self, question_id: str, question: str, stream_id: str | None) -> Iterator[Part]:
        """Yield the parts of a question about a call; without `stream_id`, about the run."""

    @abstractmethod
    def _decided(self, decision: dict[str, Any]) -> Iterator[Part]: ...

    @abstractmethod
    def _evaluated(self, step: int, verdict: dict[str, Any]) -> Iterator[Part]: ...

    @abstractmethod
    def _step_ends(self, number: int) -> Iterator[Part]: ...

    @abstractmethod
    def _run_ends(self, ending: RunEnd) -> Iterator[Part]: ...
