"""One run, told in order: whatever begins also ends, and nothing follows the end.

What the protocols of user interfaces have in common. Each has its own words, in a class of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct

from whyloop.events import (
    AgentEvent,
    AgentExecutionStarted,
    AgentStatusChanged,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    StreamChunkReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values import plain
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.model import FinishReason
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean
from whyloop.values.usage import Usage
from whyloop.wire.summaries import words_for

Part = TypeVar("Part")


class Call(Struct, frozen=True):
    """A tool call as it is told; `id` is the loop's, `told_id` is unique within the run.

    `known` is one of a step that began before this run: whoever watched then has seen its arguments.
    """

    id: str
    told_id: str
    name: str
    arguments: Mapping[str, Any] | str | None
    known: bool


class Ending(Struct, frozen=True):
    """How a run ended, or where it waits."""

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
        """What a user interface shows of it."""
        return {
            "status": str(self.status),
            "stop_reason": self.stop_reason and str(self.stop_reason),
            "resolved_by": self.resolved_by and clean(self.resolved_by),
            "reason": self.reason and clean(self.reason),
            "step_count": self.step_count,
            "last_response": self.last_response and clean(self.last_response),
        }


class RunStream(ABC, Generic[Part]):
    """Takes the events of one run and gives the parts of a protocol for each of them.

    A run is what happens between a query or a resume and the next end or pause. The first execution
    that it hears of is the one that it tells; with an `agent_id`, the first one of that session.
    """

    def __init__(self, *, agent_id: str | None = None) -> None:
        self._agent_id = agent_id
        self._execution_id: str | None = None
        self._time: datetime | None = None
        self._ended = self._resumed = False
        self._step: int | None = None
        self._goes_on = False  # The open step began before this run.
        self._text_id: str | None = None
        self._spoke = False  # Text was streamed in the latest step.
        self._calls: dict[tuple[int, str], str] = {}
        self._outcome: ContinuationOutcome | None = None
        self._completed: AgentStepCompleted | None = None
        self._usage = Usage()

    @property
    def ended(self) -> bool:
        """True once the run has been told to its end; all that follows is told by another stream."""
        return self._ended

    def parts(self, event: AgentEvent) -> list[Part]:
        """What is told of an event, in order; nothing for an event of another run."""
        if self._ended or not self._is_ours(event):
            return []
        self._time = event.time
        return list(self._begun(event)) + list(self._parts_of(event))

    def broken_off(self, words: str) -> list[Part]:
        """The end of a run that nothing more will be heard of; nothing if it has ended by itself."""
        if self._ended:
            return []
        error = clean(words)
        return list(self._end(Ending(AgentStatus.FAILED, error_message=error, usage=self._usage)))

    def _is_ours(self, event: AgentEvent) -> bool:
        if self._execution_id is not None:
            return event.execution_id == self._execution_id
        return self._agent_id is None or event.agent_id == self._agent_id

    def _begun(self, event: AgentEvent) -> Iterator[Part]:
        if self._execution_id is None:
            self._execution_id = event.execution_id
            self._resumed = isinstance(event, AgentExecutionStarted) and event.resumed
            yield from self._run_begins(event)

    def _parts_of(self, event: AgentEvent) -> Iterator[Part]:
        match event:
            case AgentStepStarted():
                yield from self._open_step(event.step_number, goes_on=False)
            case StreamChunkReceived():
                yield from self._chunk(event)
            case ToolCallStarted():
                yield from self._announced(event.step_number, event.tool_call_id, event.tool, event.args)
            case ToolCallCompleted():
                yield from self._answered(event)
            case TokenUsageReported():
                self._usage += event.usage
            case ContinuationEvaluated():
                self._outcome = event.outcome
                yield from self._evaluated(event.step_number, _verdict(event))
            case AgentStepCompleted():
                self._completed = event
                yield from self._close_step()
            case AgentStatusChanged() if event.status is not AgentStatus.IN_PROGRESS:
                yield from self._stopped(event)

    # Steps and text

    def _in_step(self, number: int) -> Iterator[Part]:
        """A step that was left open in an earlier run goes on without a word."""
        if self._step != number:
            yield from self._open_step(number, goes_on=self._resumed)

    def _open_step(self, number: int, *, goes_on: bool) -> Iterator[Part]:
        yield from self._close_step()
        self._step, self._goes_on, self._spoke = number, goes_on, False
        yield from self._step_begins(number, goes_on)

    def _close_step(self) -> Iterator[Part]:
        yield from self._close_text()
        if self._step is not None:
            number, self._step = self._step, None
            yield from self._step_ends(number)

    def _chunk(self, event: StreamChunkReceived) -> Iterator[Part]:
        yield from self._in_step(event.step_number)
        if event.chunk:
            yield from self._say(event.step_number, event.chunk)
        if event.is_complete:
            yield from self._close_text()

    def _say(self, step: int, words: str) -> Iterator[Part]:
        if self._text_id is None:
            self._text_id, self._spoke = self._message_id(step), True
            yield from self._text_begins(self._text_id)
        yield from self._text_goes_on(self._text_id, clean(words))

    def _close_text(self) -> Iterator[Part]:
        if self._text_id is not None:
            text_id, self._text_id = self._text_id, None
            yield from self._text_ends(text_id)

    def _message_id(self, step: int) -> str:
        """The id of what the assistant says in a step: the same whoever tells it, and when."""
        return f"{clean(self._execution_id or '')}:{step}"

    # Tools

    def _announced(
        self, step: int, call_id: str, name: str, arguments: Mapping[str, Any] | str | None
    ) -> Iterator[Part]:
        yield from self._in_step(step)
        told_id = clean(call_id)
        # A provider may count its calls anew in every answer, and a user interface goes by the id.
        if told_id in self._calls.values() and (step, call_id) not in self._calls:
            told_id = f"{told_id}:{step}"
        self._calls[step, call_id] = told_id
        yield from self._call_begins(Call(call_id, told_id, clean(name), arguments, self._goes_on))

    def _answered(self, event: ToolCallCompleted) -> Iterator[Part]:
        if (event.step_number, event.tool_call_id) not in self._calls:
            yield from self._announced(event.step_number, event.tool_call_id, event.tool, None)
        yield from self._call_ends(self._calls[event.step_number, event.tool_call_id], event)

    # The end

    def _stopped(self, event: AgentStatusChanged) -> Iterator[Part]:
        if event.status is AgentStatus.PAUSED:
            yield from self._paused(event.step_number)
        yield from self._close_step()
        if event.last_response and self._is_untold_answer():
            yield from self._say(event.step_number, event.last_response)
        outcome = self._outcome
        said = outcome.resolving_evaluation if outcome else None
        ending = Ending(
            status=event.status,
            stop_reason=event.stop_reason,
            resolved_by=outcome.resolved_by if outcome else None,
            reason=said.reason if said else None,
            step_count=event.step_count,
            error_message=event.error_message and clean(event.error_message),
            last_response=event.last_response,
            finish_reason=self._completed.finish_reason if self._completed else None,
            usage=self._usage,
        )
        yield from self._end(ending)

    def _end(self, ending: Ending) -> Iterator[Part]:
        yield from self._close_step()
        self._ended = True
        yield from self._run_ends(ending)

    def _is_untold_answer(self) -> bool:
        """True if the last step was an answer that did not come in pieces."""
        last = self._completed
        return last is not None and not last.has_tool_calls and not last.error_count and not self._spoke

    def _paused(self, step: int) -> Iterator[Part]:
        said = self._outcome and self._outcome.evaluation_for("ApprovalRequired")
        for pending in said.context.get("pending", ()) if said else ():
            call_id, name = pending["id"], pending["name"]
            if (step, call_id) not in self._calls:
                yield from self._announced(step, call_id, name, pending["arguments"])
            yield from self._call_waits(call_id, self._calls[step, call_id], clean(pending["question"]))

    # The words of a protocol

    @abstractmethod
    def _run_begins(self, event: AgentEvent) -> Iterator[Part]: ...

    @abstractmethod
    def _step_begins(self, number: int, goes_on: bool) -> Iterator[Part]: ...

    @abstractmethod
    def _text_begins(self, text_id: str) -> Iterator[Part]: ...

    @abstractmethod
    def _text_goes_on(self, text_id: str, words: str) -> Iterator[Part]: ...

    @abstractmethod
    def _text_ends(self, text_id: str) -> Iterator[Part]: ...

    @abstractmethod
    def _call_begins(self, call: Call) -> Iterator[Part]: ...

    @abstractmethod
    def _call_ends(self, told_id: str, event: ToolCallCompleted) -> Iterator[Part]: ...

    @abstractmethod
    def _call_waits(self, call_id: str, told_id: str, question: str) -> Iterator[Part]: ...

    @abstractmethod
    def _evaluated(self, step: int, verdict: dict[str, Any]) -> Iterator[Part]: ...

    @abstractmethod
    def _step_ends(self, number: int) -> Iterator[Part]: ...

    @abstractmethod
    def _run_ends(self, ending: Ending) -> Iterator[Part]: ...


def as_json(value: object) -> Any:
    """The value as JSON holds it; in words where it cannot, since those who watch break nothing."""
    try:
        return plain.encode(value)
    except Exception:
        return words_for(value, 1000)


def _verdict(event: ContinuationEvaluated) -> dict[str, Any]:
    outcome = event.outcome
    said = outcome.resolving_evaluation
    return {
        "step_number": event.step_number,
        "should_continue": outcome.should_continue,
        "stop_reason": outcome.stop_reason and str(outcome.stop_reason),
        "resolved_by": clean(outcome.resolved_by),
        "reason": said and clean(said.reason),
    }
