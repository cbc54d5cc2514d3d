"""A step in the making."""

from __future__ import annotations

from datetime import datetime

from whyloop.loop.hooks import ToolResult
from whyloop.loop.run_tools import Ran, ToolRuns
from whyloop.values.failure import Failure
from whyloop.values.messages import Message, MessageRole
from whyloop.values.model import ModelResponse
from whyloop.values.state import AgentState
from whyloop.values.step import Step, ToolRun
from whyloop.values.usage import Usage

_NO_USAGE = Usage()
_ASSISTANT, _TOOL = MessageRole.ASSISTANT, MessageRole.TOOL


class Draft:
    """Whatever has come of a step so far, so that it can be recorded whenever it is cut off."""

    __slots__ = ("deadline", "interrupted", "model_failure", "response", "started_at", "tools", "unrun")

    def __init__(self, started_at: datetime, deadline: datetime | None) -> None:
        self.started_at = started_at
        self.deadline = deadline
        self.response: ModelResponse | None = None
        self.model_failure: Failure | None = None
        self.tools: ToolRuns | None = None
        self.unrun: str | None = None
        self.interrupted: str | None = None

    def finished(self, state: AgentState, now: datetime, seconds: float) -> tuple[Step, list[Message]]:
        """The step as it will be recorded, and what it adds to the conversation."""
        response, execution = self.response, state.execution
        messages: list[Message] = []
        runs: list[ToolRun] = []
        failures = [self.model_failure] if self.model_failure else []
        if response is not None:
            messages.append(Message(_ASSISTANT, response.text, response.tool_calls))
            ran = self.tools.ran if self.tools else [None] * len(response.tool_calls)
            for call, done in zip(response.tool_calls, ran, strict=True):
                result, taken = done or self._not_completed()
                error = result.error
                runs.append(ToolRun(call.id, call.name, error is None, error, taken * 1000))
                messages.append(Message(_TOOL, result.content, (), call.id, call.name))
                if result.failure is not None:
                    failures.append(result.failure)
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
            tuple(failures),
            self.interrupted,
        )
        return step, messages

    def _not_completed(self) -> Ran:
        """What stands for the result of a call that was not run, or not to its end."""
        words = self.unrun or self.interrupted or "it was not run"
        return Ran(ToolResult(f"Not completed: {words}", words), 0.0)
