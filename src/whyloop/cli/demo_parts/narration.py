"""From events to lines that say what happens; how a line looks is up to the view."""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto
from typing import NamedTuple

from whyloop.cli.demo_parts.headroom import Headroom, headroom_of
from whyloop.cli.session_parts.arguments import summary
from whyloop.events import (
    AgentEvent,
    AgentExecutionStarted,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    StreamChunkReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome, StopReason
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.text import counted, printable, shortened

_LONG_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))

# Time that passes between two events of one step is work; anything longer between steps is a wait.
NOTICEABLE_SECONDS = 0.05


class Kind(Enum):
    """What a line is about."""

    QUERY = auto()
    WAITED = auto()
    STEP = auto()
    SAID = auto()
    DONE = auto()
    FAILED = auto()
    RESULT = auto()
    ERROR = auto()
    POLICY = auto()
    GO_ON = auto()
    COMPLETE = auto()
    STOP = auto()


class Line(NamedTuple):
    """One thing that happened: the word that matters, the rest, and a measure of it."""

    kind: Kind
    text: str
    head: str = ""
    measure: str = ""

    def plain(self) -> str:
        """Return the line as text, for pipes and files."""
        measure = f" ({self.measure})" if self.measure else ""
        text = self.text.replace("\n", "\n    ")
        match self.kind:
            case Kind.QUERY:
                return f"\nuser: {text}"
            case Kind.STEP:
                return f"\n{text}"
            case Kind.WAITED:
                return f"\n({text})"
            case Kind.SAID:
                return f"  {self.head or 'assistant'}: {text}"
            case Kind.DONE:
                return f"  {self.head}({text}) ok{measure}"
            case Kind.FAILED if measure:
                return f"  {self.head}({text}) failed{measure}"
            case Kind.FAILED:
                return f"  {self.head}: {text}" if text else f"  {self.head}"
            case Kind.RESULT | Kind.ERROR:
                return f"    {text}"
        return f"  {self.head}, {text}{measure}"


class Narrator:
    """Follows the events of a run; all that it gives out is safe to show."""

    def __init__(self) -> None:
        self.activity = "starting"
        self.headroom: list[Headroom] = []
        self.tokens = 0
        self._last_time: datetime | None = None
        self._text = ""
        self._arguments: dict[str, str] = {}
        self._began = False

    def lines(self, event: AgentEvent) -> list[Line]:
        """What there is to say about the event."""
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
                self._arguments[event.tool_call_id] = summary(event.args)
                self.activity = f"{shortened(event.tool)} is at work"
            case ToolCallCompleted():
                return self._tool(event)
            case TokenUsageReported():
                self.tokens = event.execution_usage.total
            case ContinuationEvaluated():
                self.headroom = headroom_of(event.outcome.evaluations)
            case AgentStepCompleted():
                return self._decision(event)
        return []

    def _query(self, event: AgentExecutionStarted, waited: float) -> list[Line]:
        self.tokens, self.headroom = 0, []
        pause = [Line(Kind.WAITED, f"{duration(waited)} later")] if waited > NOTICEABLE_SECONDS else []
        return [*pause, Line(Kind.QUERY, printable(event.query.text))] if event.query else pause

    def _step(self, event: AgentStepStarted, waited: float) -> list[Line]:
        self.activity, self._text = "the model thinks", ""
        self._arguments.clear()
        self._began = True  # And was not left open earlier, with tools that have run.
        step = Line(Kind.STEP, f"step {event.step_number}")
        if waited <= NOTICEABLE_SECONDS:
            return [step]
        return [Line(Kind.WAITED, f"waited {duration(waited)} before the next attempt"), step]

    def _chunk(self, event: StreamChunkReceived) -> list[Line]:
        self._text += event.chunk
        return [Line(Kind.SAID, printable(self._text))] if event.is_complete else []

    def _tool(self, event: ToolCallCompleted) -> list[Line]:
        tool, arguments = shortened(event.tool), self._arguments.get(event.tool_call_id, "")
        took = duration(event.duration_ms / 1000)
        if event.success:
            return [Line(Kind.DONE, arguments, tool, took), Line(Kind.RESULT, shortened(event.result))]
        error = shortened(event.error or "it did not say why")
        return [Line(Kind.FAILED, arguments, tool, took), Line(Kind.ERROR, error)]

    def _decision(self, event: AgentStepCompleted) -> list[Line]:
        outcome, said = event.outcome, event.outcome.resolving_evaluation
        retried = outcome.handling is ErrorHandlingDecision.RETRY
        self.activity = "waiting to try again" if retried else "going on"
        words = _words(said) if said else shortened(outcome.resolved_by)
        spent = [counted(event.usage.total, "token")] if event.usage.total else []
        measure = " · ".join([*spent, duration(event.duration_ms / 1000)])
        match outcome.stop_reason:
            case None:
                decision = Line(Kind.GO_ON, words, "continue", measure)
            case StopReason.COMPLETED:
                decision = Line(Kind.COMPLETE, words, "stop", measure)
            case _:
                decision = Line(Kind.STOP, words, "stop", measure)
        untold, self._began = self._without_tools(event), False
        return [*untold, *_policy(outcome), decision]

    def _without_tools(self, event: AgentStepCompleted) -> list[Line]:
        """What no event of its own tells: a model call that failed, and tools that were never started."""
        if self._arguments or not self._began:
            return []
        if event.error_count:
            return [Line(Kind.FAILED, shortened(_error_text(event.outcome)), "the model call failed")]
        if event.has_tool_calls:
            return [Line(Kind.FAILED, "", "the tools that it asked for were not run")]
        return []


def _policy(outcome: ContinuationOutcome) -> list[Line]:
    """Return what the policy did about a failure, where another rule decided."""
    policy, handling = outcome.policy_evaluation, outcome.handling
    if policy is None or handling is None or policy is outcome.resolving_evaluation:
        return []
    return [Line(Kind.POLICY, _words(policy), str(handling))]


def _error_text(outcome: ContinuationOutcome) -> str:
    """Return the message of the failure, as the error policy shows it."""
    policy = outcome.policy_evaluation
    return str(policy.context.get("message", "")) if policy else ""


def _words(said: ContinuationEvaluation) -> str:
    return shortened(f"{said.criterion}: {said.reason}", 120)


def duration(seconds: float) -> str:
    """A span of time in the unit that suits it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    size, noun = next(unit for unit in _LONG_UNITS if seconds >= unit[0])
    return counted(int(seconds // size), noun)
