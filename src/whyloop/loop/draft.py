"""A step in the making."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from whyloop.loop.kit import Kit
from whyloop.loop.ports import Timeout
from whyloop.values.failure import Failure
from whyloop.values.messages import Message, MessageRole, ToolCall
from whyloop.values.model import FinishReason, ModelResponse
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.state import AgentState
from whyloop.values.step import Step, ToolRun
from whyloop.values.tool_result import ToolResult
from whyloop.values.usage import Usage

Ran = tuple[ToolResult, float]
"""A call that was run to its end: its result, and how many milliseconds that took."""

_NO_USAGE = Usage()
_ASSISTANT, _TOOL = MessageRole.ASSISTANT, MessageRole.TOOL


class Draft:
    """Whatever has come of a step so far, so that it can be recorded whenever it is cut off."""

    response: ModelResponse | None = None
    failures: tuple[Failure, ...] = ()
    unrun: str | None = None
    interrupted: str | None = None
    resumable: bool = False

    def __init__(self, kit: Kit, state: AgentState, now: datetime, stopwatch: float = 0.0) -> None:
        self._kit = kit
        self._state = state
        self._taken_up_at = now
        self._stopwatch = stopwatch
        self.open = step = state.open_step
        self._before = step.seconds if step else 0.0
        self.ran: dict[int, Ran] = {}
        self.cut: dict[int, float] = {}
        if step is None:
            self.started_at = now
        else:
            self.started_at = step.started_at
            self.response = _response(step)
            self.ran = {
                index: (call.result, call.duration_ms)
                for index, call in enumerate(step.calls)
                if call.result is not None
            }

    @property
    def deadline(self) -> datetime | None:
        """When a limit on time would cut the step off; worked out only for whoever has to wait or to know."""
        return self._kit.criteria.deadline(self._state, self._taken_up_at)

    @property
    def time_given(self) -> float:
        """The seconds from when the step was taken up to its deadline, and a little more.

        Timers and clocks disagree by microseconds: a step that was cut off at its deadline has
        used up all of its time, whatever the clock says, or the limit would not forbid to go on.
        """
        deadline = self.deadline
        return 0.0 if deadline is None else (deadline - self._taken_up_at).total_seconds() + 1e-5

    def time_left(self) -> Timeout:
        """A time limit that ends with the deadline."""
        world, deadline = self._kit.world, self.deadline
        if deadline is None:
            return world.timeout(None)
        return world.timeout(max(0.0, (deadline - world.now()).total_seconds()))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.response.tool_calls if self.response else ()

    # A step that is kept open

    @property
    def step(self) -> OpenStep:
        assert self.open is not None, "the step was not opened"
        return self.open

    @property
    def stays_open(self) -> bool:
        """True if a call waits for a person, or was cut off in a way that it can be gone on with."""
        if self.open is None:
            return False
        return bool(self.open.pending) or (self.resumable and bool(self.cut))

    def opened(self, calls: tuple[OpenCall, ...]) -> OpenStep:
        """The step as it stands before its calls are run."""
        response = self.response
        assert response is not None, "only a model's answer opens a step"
        return OpenStep(
            self._state.execution.step_count + 1,
            self.started_at,
            _message(response),
            calls,
            response.finish_reason,
            response.usage,
            response.source,
            max(0.0, self._kit.world.monotonic() - self._stopwatch),
        )

    def keep(self, index: int) -> None:
        """Put what came of a call into the open step."""
        result, duration = self.came_of(index)
        call = replace(self.step.calls[index], result=result, duration_ms=duration)
        self.open = self.step.with_call(index, call)

    def left(self, state: AgentState, now: datetime, seconds: float) -> AgentState:
        """The state in which the step is left, with all that could be done without a person's word."""
        for index, call in enumerate(self.step.calls):
            if call.started and not call.is_done and not (self.resumable and index in self.cut):
                self.keep(index)
        taken = self._before + max(0.0, seconds)
        return state.with_open_step(replace(self.step, seconds=taken), now)

    # A step that is at its end

    def finished(self, state: AgentState, now: datetime, seconds: float) -> tuple[Step, list[Message]]:
        """The step as it will be recorded, and what it adds to the conversation."""
        now = max(now, self._taken_up_at + timedelta(seconds=seconds)) if self.interrupted else now
        response, execution, opened = self.response, state.execution, self.open
        calls = response.tool_calls if response else ()
        messages: list[Message] = []
        if opened is not None:
            seconds += self._before
            messages.append(opened.message)
        elif response is not None:
            messages.append(_message(response))
        runs: list[ToolRun] = []
        failures = self.failures
        for index, call in enumerate(calls):
            result, duration = self.ran.get(index) or self.came_of(index)
            call_id, name, error = call.id, call.name, result.error
            run = ToolRun(call_id, name, error is None, error, duration)
            if opened is not None and opened.calls[index].approvals:
                run = replace(run, approvals=opened.calls[index].approvals)
            runs.append(run)
            messages.append(Message(_TOOL, result.content, (), call_id, name))
            if result.failure is not None:
                failures += (result.failure,)
        step = Step(
            execution.step_count + 1,
            execution.id,
            self.started_at,
            now,
            len(state.messages),
            len(messages),
            tuple(runs),
            response.finish_reason if response else None,
            response.usage if response else _NO_USAGE,
            max(0.0, seconds * 1000),
            failures,
            self.interrupted,
            response.source if response else None,
        )
        return step, messages

    def came_of(self, index: int) -> Ran:
        """What came of a call, or what stands for it if it was not run, or not to its end."""
        if index in self.ran:
            return self.ran[index]
        words = self.unrun or self.interrupted or "it was not run"
        if index in self.cut:
            words = f"{words}. It is not known whether it was carried out"
        return ToolResult(f"Not completed: {words}", f"not completed: {words}"), self.cut.get(index, 0.0)


def _message(response: ModelResponse) -> Message:
    return Message(_ASSISTANT, response.text, response.tool_calls, None, None, response.extras)


def _response(step: OpenStep) -> ModelResponse:
    """The model's answer that opened a step."""
    said = step.message
    finished = step.finish_reason or FinishReason.OTHER
    return ModelResponse(said.text, said.tool_calls, finished, step.usage, "", said.extras, step.source)
