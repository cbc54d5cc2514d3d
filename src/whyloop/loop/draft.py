"""A step in the making."""

from __future__ import annotations

from datetime import datetime, timedelta

from whyloop.loop.hooks import ToolResult
from whyloop.loop.kit import Kit
from whyloop.loop.ports import Timeout
from whyloop.values.failure import Failure
from whyloop.values.messages import Message, MessageRole
from whyloop.values.model import ModelResponse
from whyloop.values.state import AgentState
from whyloop.values.step import Step, ToolRun
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

    def __init__(self, kit: Kit, state: AgentState, started_at: datetime) -> None:
        self._kit = kit
        self._state = state
        self.started_at = started_at
        self.ran: dict[int, Ran] = {}
        self.cut: dict[int, float] = {}

    @property
    def deadline(self) -> datetime | None:
        """When a limit on time would cut the step off; worked out only for whoever has to wait or to know."""
        return self._kit.criteria.deadline(self._state, self.started_at)

    @property
    def time_given(self) -> float:
        """The seconds from the start of the step to its deadline, and a little more.

        Timers and clocks disagree by microseconds: a step that was cut off at its deadline has
        used up all of its time, whatever the clock says, or the limit would not forbid to go on.
        """
        deadline = self.deadline
        return 0.0 if deadline is None else (deadline - self.started_at).total_seconds() + 1e-5

    def time_left(self) -> Timeout:
        """A time limit that ends with the deadline."""
        world, deadline = self._kit.world, self.deadline
        if deadline is None:
            return world.timeout(None)
        return world.timeout(max(0.0, (deadline - world.now()).total_seconds()))

    def finished(self, state: AgentState, now: datetime, seconds: float) -> tuple[Step, list[Message]]:
        """The step as it will be recorded, and what it adds to the conversation."""
        now = max(now, self.started_at + timedelta(seconds=seconds)) if self.interrupted else now
        response, execution = self.response, state.execution
        calls = response.tool_calls if response else ()
        messages = (
            [Message(_ASSISTANT, response.text, calls, None, None, response.extras)] if response else []
        )
        runs: list[ToolRun] = []
        failures = self.failures
        for index, call in enumerate(calls):
            result, duration = self.ran.get(index) or self._not_completed(index)
            call_id, name, error = call.id, call.name, result.error
            runs.append(ToolRun(call_id, name, error is None, error, duration))
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

    def _not_completed(self, index: int) -> Ran:
        """What stands for the result of a call that was not run, or not to its end."""
        words = self.unrun or self.interrupted or "it was not run"
        return ToolResult(f"Not completed: {words}", f"not completed: {words}"), self.cut.get(index, 0.0)
