"""A run as AG-UI events, for the user interfaces that speak the Agent User Interaction Protocol."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from whyloop.errors import ConfigurationError
from whyloop.events import AgentEvent, AgentExecutionStarted, ToolCallCompleted
from whyloop.values.state import AgentStatus
from whyloop.values.text import clean
from whyloop.values.usage import Usage
from whyloop.wire.run_stream import Call, Ending, RunStream, as_json

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent, Interrupt

CONTINUATION = "whyloop.continuation"
"""The name of the custom event that says after every step why the run goes on or stops."""

WAITS_FOR_APPROVAL = "tool_call"
"""The reason of an interrupt for a tool call that waits for a person."""

_LARGEST = 2**53 - 1
_DECISION = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["approved"],
}


class AgUiStream(RunStream["BaseEvent"]):
    """Gives the AG-UI events for each event of one run.

    A session is a thread, and a run is a run: the ids that the client chose can be given.
    """

    def __init__(
        self, *, thread_id: str | None = None, run_id: str | None = None, agent_id: str | None = None
    ) -> None:
        super().__init__(agent_id=agent_id)
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
                self._run_id += f":{self._now}"  # An execution that is taken up again is another run.
        yield self._core.RunStartedEvent(
            timestamp=self._now,
            thread_id=self._thread_id,
            run_id=self._run_id,
            protocol_version=self._core.PROTOCOL_VERSION,
        )

    def _step_begins(self, number: int, goes_on: bool) -> Iterator[BaseEvent]:
        yield self._core.StepStartedEvent(timestamp=self._now, step_name=_step(number))

    def _step_ends(self, number: int) -> Iterator[BaseEvent]:
        yield self._core.StepFinishedEvent(timestamp=self._now, step_name=_step(number))

    def _text_begins(self, text_id: str) -> Iterator[BaseEvent]:
        yield self._core.TextMessageStartEvent(timestamp=self._now, message_id=text_id, role="assistant")

    def _text_goes_on(self, text_id: str, words: str) -> Iterator[BaseEvent]:
        yield self._core.TextMessageContentEvent(timestamp=self._now, message_id=text_id, delta=words)

    def _text_ends(self, text_id: str) -> Iterator[BaseEvent]:
        yield self._core.TextMessageEndEvent(timestamp=self._now, message_id=text_id)

    def _call_begins(self, call: Call) -> Iterator[BaseEvent]:
        core, now, told_id = self._core, self._now, call.told_id
        parent = None if self._step is None else self._message_id(self._step)
        yield core.ToolCallStartEvent(
            timestamp=now, tool_call_id=told_id, tool_call_name=call.name, parent_message_id=parent
        )
        # Clients append: arguments that were told in an earlier run would be there twice.
        if call.arguments is not None and not call.known:
            yield core.ToolCallArgsEvent(
                timestamp=now, tool_call_id=told_id, delta=_arguments(call.arguments)
            )
        yield core.ToolCallEndEvent(timestamp=now, tool_call_id=told_id)

    def _call_ends(self, told_id: str, event: ToolCallCompleted) -> Iterator[BaseEvent]:
        about = {
            "success": event.success,
            "error": event.error and clean(event.error),
            "duration_ms": round(event.duration_ms, 3),
        }
        yield self._core.ToolCallResultEvent(
            timestamp=self._now,
            message_id=f"{self._message_id(event.step_number)}:{told_id}",
            tool_call_id=told_id,
            content=clean(event.result),
            role="tool",
            metadata={"whyloop": about},
        )

    def _call_waits(self, call_id: str, told_id: str, question: str) -> Iterator[BaseEvent]:
        interrupt = self._core.Interrupt(
            id=clean(call_id),
            reason=WAITS_FOR_APPROVAL,
            message=question,
            tool_call_id=told_id,
            response_schema=_DECISION,
        )
        self._interrupts.append(interrupt)
        yield from ()

    def _evaluated(self, step: int, verdict: dict[str, Any]) -> Iterator[BaseEvent]:
        yield self._core.CustomEvent(timestamp=self._now, name=CONTINUATION, value=verdict)

    def _run_ends(self, ending: Ending) -> Iterator[BaseEvent]:
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

    def _outcome_of(self, ending: Ending) -> Any:
        if self._interrupts:
            return self._core.RunFinishedInterruptOutcome(interrupts=self._interrupts)
        if ending.status is AgentStatus.COMPLETED:
            return self._core.RunFinishedSuccessOutcome()
        return self._core.RunFinishedCancelledOutcome()


def _package() -> Any:
    try:
        return importlib.import_module("ag_ui.core")
    except ImportError as error:
        raise ConfigurationError(
            f"telling a run as AG-UI events needs their package: pip install 'whyloop[ag-ui]' ({error})"
        ) from None


def _step(number: int) -> str:
    return f"step {number}"


def _arguments(arguments: object) -> str:
    """Arguments as the text that a model wrote, or could have written."""
    if isinstance(arguments, str):
        return clean(arguments)
    return msgspec.json.encode(as_json(arguments)).decode()


def _usage(core: Any, usage: Usage) -> Any:
    return core.TokenUsage(
        input_tokens=min(usage.input, _LARGEST),
        output_tokens=min(usage.output, _LARGEST),
        total_tokens=min(usage.total, _LARGEST),
        cached_input_tokens=min(usage.cached, _LARGEST),
        reasoning_tokens=min(usage.reasoning, _LARGEST),
    )
