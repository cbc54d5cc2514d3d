"""A run as events of AG-UI, the Agent User Interaction Protocol."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from whyloop.errors import ConfigurationError, how_to_install
from whyloop.events import AgentEvent, AgentExecutionStarted
from whyloop.values.model import Usage
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean
from whyloop.wire.envelope import is_about_run
from whyloop.wire.protocol_stream import ProtocolStream, TextKind
from whyloop.wire.stream_values import LARGEST_COUNT, Call, Result, RunEnd, query_id, query_of

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent, Interrupt

CONTINUATION = "whyloop.continuation"
"""The name of the custom event with the outcome of every step: why the run continues or stops."""

DECISION = "whyloop.decision"
"""The name of the custom event with a person's answer to a question, in the run that follows it."""

WAITS_FOR_APPROVAL = "tool_call"
"""The reason of an interrupt for a tool call that waits for a person."""

WAITS_TO_CONTINUE = "run"
"""The reason of an interrupt for a run that waits for a person to let it continue."""

_RESPONSE = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["approved"],
}


class AgUiStream(ProtocolStream["BaseEvent"]):
    """A stream that turns the events of one run into AG-UI events.

    A session is a thread, and a run is a run: pass the ids that the client chose, and the version of the
    protocol that it declares. Clients before 1.0 declare none, and reject a run with an unknown outcome, so
    they only get the outcome of a question.

    Args:
        thread_id: The id of the thread that the client chose. Default: the id of the session.
        run_id: The id of the run that the client chose. Default: the id of the execution.
        agent_id: The session whose run is streamed. Default: that of the first event.
        resumed: The state from which the run is resumed, if it is. Default: None.
        protocol_version: The version of the protocol that the client declares. Default: none, a client before
            1.0.
        redaction: Which texts are secret; None for none. Default: `Redaction()`.
    """

    def __init__(
        self,
        *,
        thread_id: str | None = None,
        run_id: str | None = None,
        agent_id: str | None = None,
        resumed: AgentState | None = None,
        protocol_version: str | None = None,
        redaction: Redaction | None = DEFAULT_REDACTION,
    ) -> None:
        super().__init__(agent_id=agent_id, resumed=resumed, redaction=redaction)
        self._knows_outcomes = protocol_version is not None
        self._core = _package()
        self._thread_id = thread_id
        self._run_id = run_id
        self._interrupts: list[Interrupt] = []

    @property
    def _now(self) -> int | None:
        return None if self._time is None else int(self._time.timestamp() * 1000)

    def _run_begins(self, event: AgentEvent) -> Iterator[BaseEvent]:
        if self._thread_id is None:
            self._thread_id = clean(event.agent_id)
        if self._run_id is None:
            self._run_id = clean(event.execution_id)
            if isinstance(event, AgentExecutionStarted) and event.resumed:
                self._run_id += f":{self._now}"  # A resumed execution is another run.
        yield self._started()

    def _step_begins(self, number: int, continued: bool) -> Iterator[BaseEvent]:
        yield self._core.StepStartedEvent(timestamp=self._now, step_name=_step(number))

    def _step_ends(self, number: int) -> Iterator[BaseEvent]:
        yield self._core.StepFinishedEvent(timestamp=self._now, step_name=_step(number))

    def _text_begins(self, kind: TextKind, text_id: str) -> Iterator[BaseEvent]:
        core, now = self._core, self._now
        if kind == "reasoning":
            yield core.ReasoningStartEvent(timestamp=now, message_id=text_id)
            yield core.ReasoningMessageStartEvent(timestamp=now, message_id=text_id, role="reasoning")
        else:
            yield core.TextMessageStartEvent(timestamp=now, message_id=text_id, role="assistant")

    def _text_continues(self, kind: TextKind, text_id: str, text: str) -> Iterator[BaseEvent]:
        core = self._core
        content = core.ReasoningMessageContentEvent if kind == "reasoning" else core.TextMessageContentEvent
        yield content(timestamp=self._now, message_id=text_id, delta=text)

    def _text_ends(self, kind: TextKind, text_id: str) -> Iterator[BaseEvent]:
        core, now = self._core, self._now
        if kind == "reasoning":
            yield core.ReasoningMessageEndEvent(timestamp=now, message_id=text_id)
            yield core.ReasoningEndEvent(timestamp=now, message_id=text_id)
        else:
            yield core.TextMessageEndEvent(timestamp=now, message_id=text_id)

    def _call_begins(self, call: Call) -> Iterator[BaseEvent]:
        core, now, own_id = self._core, self._now, call.stream_id
        parent = None if self._step is None else self._message_id(self._step)
        changed = {"whyloop": {"changed_by": list(call.changed_by)}}
        yield core.ToolCallStartEvent(
            timestamp=now,
            tool_call_id=own_id,
            tool_call_name=call.name,
            parent_message_id=parent,
            metadata=changed if call.changed_by else None,
        )
        # Clients append, so arguments that an earlier run sent would appear twice.
        if call.arguments is not None and not call.known:
            yield core.ToolCallArgsEvent(timestamp=now, tool_call_id=own_id, delta=_arguments(call.arguments))
        yield core.ToolCallEndEvent(timestamp=now, tool_call_id=own_id)

    def _call_ends(self, result: Result) -> Iterator[BaseEvent]:
        about: dict[str, Any] = {
            "success": result.error is None,
            "error": result.error,
            "duration_ms": round(result.duration_ms, 3),
        }
        if result.denied:
            about["denied"] = True
        if result.changed_by:
            about["changed_by"] = list(result.changed_by)
        yield self._core.ToolCallResultEvent(
            timestamp=self._now,
            message_id=f"{self._message_id(result.step)}:{result.stream_id}",
            tool_call_id=result.stream_id,
            content=result.text,
            role="tool",
            metadata={"whyloop": about},
        )

    def _waits(self, question_id: str, question: str, stream_id: str | None) -> Iterator[BaseEvent]:
        """Keep a question for the end of the run."""
        interrupt = self._core.Interrupt(
            id=question_id,
            reason=WAITS_TO_CONTINUE if stream_id is None else WAITS_FOR_APPROVAL,
            message=question,
            tool_call_id=stream_id,
            response_schema=_RESPONSE,
        )
        self._interrupts.append(interrupt)
        return iter(())

    def _decided(self, decision: dict[str, Any]) -> Iterator[BaseEvent]:
        yield self._core.CustomEvent(timestamp=self._now, name=DECISION, value=decision)

    def _evaluated(self, step: int, verdict: dict[str, Any]) -> Iterator[BaseEvent]:
        yield self._core.CustomEvent(timestamp=self._now, name=CONTINUATION, value=verdict)

    def _run_ends(self, ending: RunEnd) -> Iterator[BaseEvent]:
        usage = [_usage(self._core, ending.usage)] if ending.usage.total else None
        if ending.status is AgentStatus.FAILED:
            yield self._core.RunErrorEvent(
                timestamp=self._now,
                message=ending.error_message or "The run failed",
                code=ending.stop_reason and str(ending.stop_reason),
                usage=usage,
                metadata={"whyloop": ending.summary()},
            )
            return
        yield self._core.RunFinishedEvent(
            timestamp=self._now,
            thread_id=self._thread_id,
            run_id=self._run_id,
            result=ending.summary(),
            outcome=self._outcome_of(ending),
            usage=usage,
        )

    def at_rest(self, state: AgentState, snapshot: BaseEvent) -> list[BaseEvent]:
        """Return the parts for a client that connects while nothing runs.

        They have the messages of the thread, how its last run ended, and the questions that are open.

        Args:
            snapshot: The event with the messages of the thread.
        """
        for pending in state.pending_calls:
            call_id = (
                None if is_about_run(pending.tool_call_id, pending.tool) else clean(pending.tool_call_id)
            )
            self._waits(clean(pending.id), self._shown(pending.question), call_id)
        outcome = state.last_continuation_outcome
        ending = RunEnd(
            status=state.status,
            stop_reason=state.stop_reason,
            resolved_by=outcome.resolved_by if outcome else None,
            reason=outcome.reason if outcome else None,
            step_count=state.execution.step_count,
            last_response=state.execution.last_response or None,
        )
        finished = self._core.RunFinishedEvent(
            thread_id=self._thread_id,
            run_id=self._run_id,
            result=ending.summary(),
            outcome=self._outcome_of(ending) if self._interrupts else None,
        )
        return [self._started(), snapshot, finished]

    def _started(self) -> BaseEvent:
        started: BaseEvent = self._core.RunStartedEvent(
            timestamp=self._now,
            thread_id=self._thread_id,
            run_id=self._run_id,
            protocol_version=self._core.PROTOCOL_VERSION,
        )
        return started

    def _outcome_of(self, ending: RunEnd) -> Any:
        if self._interrupts:
            return self._core.RunFinishedInterruptOutcome(interrupts=self._interrupts)
        if not self._knows_outcomes:
            return None
        if ending.status is AgentStatus.COMPLETED:
            return self._core.RunFinishedSuccessOutcome()
        return self._core.RunFinishedCancelledOutcome()


def sse(part: BaseEvent) -> str:
    """Return a part as a server-sent event."""
    return f"data: {part.model_dump_json(by_alias=True)}\n\n"


class AgUiHistory:
    """The messages of a session's runs, for a client that has no messages yet."""

    def __init__(self, redaction: Redaction | None = DEFAULT_REDACTION) -> None:
        self._core = _package()
        self._redaction = redaction
        self._messages: list[Any] = []
        self._by_id: dict[str, Any] = {}
        self._calls: dict[str, Any] = {}

    def snapshot(self) -> BaseEvent:
        """Return the event with all messages."""
        snapshot: BaseEvent = self._core.MessagesSnapshotEvent(messages=self._messages)
        return snapshot

    def add_query(self, run: Iterable[AgentEvent]) -> None:
        """Add the user's message that a run works on, if it is not a resumed one."""
        begun = query_of(run)
        if begun is not None and begun.query is not None:
            own_id, text = query_id(begun.execution_id), clean(begun.query.text)
            self._messages.append(self._core.UserMessage(id=own_id, content=text))

    def add_run(self, run: Iterable[AgentEvent]) -> None:
        """Add a run: its query, its answers and the results of its tools."""
        events, stream = list(run), AgUiStream(redaction=self._redaction)
        self.add_query(events)
        for part in stream.all_parts(events):
            self._add(part)

    def _add(self, part: Any) -> None:
        core = self._core
        match part.type:
            case core.EventType.TEXT_MESSAGE_CONTENT:
                message = self._message(part.message_id, core.AssistantMessage)
                message.content = (message.content or "") + part.delta
            case core.EventType.REASONING_MESSAGE_CONTENT:
                message = self._message(part.message_id, core.ReasoningMessage, content="")
                message.content += part.delta
            case core.EventType.TOOL_CALL_START:
                if part.tool_call_id not in self._calls:
                    message = self._message(part.parent_message_id, core.AssistantMessage)
                    asked = core.FunctionCall(name=part.tool_call_name, arguments="")
                    self._calls[part.tool_call_id] = asked
                    call = core.ToolCall(id=part.tool_call_id, function=asked)
                    message.tool_calls = [*(message.tool_calls or []), call]
            case core.EventType.TOOL_CALL_ARGS:
                self._calls[part.tool_call_id].arguments += part.delta
            case core.EventType.TOOL_CALL_RESULT:
                own_id, call_id = part.message_id, part.tool_call_id
                result = core.ToolMessage(id=own_id, content=part.content, tool_call_id=call_id)
                self._messages.append(result)

    def _message(self, own_id: str, kind: Any, **fields: Any) -> Any:
        if own_id not in self._by_id:
            self._by_id[own_id] = kind(id=own_id, **fields)
            self._messages.append(self._by_id[own_id])
        return self._by_id[own_id]


def _package() -> Any:
    try:
        return importlib.import_module("ag_ui.core")
    except ImportError as error:
        raise ConfigurationError(
            f"AG-UI events need their package: {how_to_install('ag-ui')} ({error})"
        ) from None


def _step(number: int) -> str:
    return f"step {number}"


def _arguments(arguments: object) -> str:
    """Return arguments as the text that a model wrote, or could have written."""
    if isinstance(arguments, str):
        return arguments
    return msgspec.json.encode(arguments).decode()


def _usage(core: Any, usage: Usage) -> Any:
    return core.TokenUsage(
        input_tokens=min(usage.input, LARGEST_COUNT),
        output_tokens=min(usage.output, LARGEST_COUNT),
        total_tokens=min(usage.total, LARGEST_COUNT),
        cached_input_tokens=min(usage.cached, LARGEST_COUNT),
        cache_write_input_tokens=min(usage.cache_writes, LARGEST_COUNT) or None,
        reasoning_tokens=min(usage.reasoning, LARGEST_COUNT),
    )
