"""A step whose model has answered and whose tool calls have not all come to an end.

It is in a state while the calls run, while some of them wait for a person, and after the process
that ran them has died: whoever goes on finds there what was done, what was begun and what was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ApprovalError
from whyloop.values.approval import Approval, PendingCall, Verdict
from whyloop.values.messages import Message, ToolCall
from whyloop.values.model import FinishReason, ModelSource
from whyloop.values.times import Count, Moment, Seconds
from whyloop.values.tool_result import ToolResult
from whyloop.values.usage import Usage


class OpenCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """How far a tool call has come.

    It is done if it has a `result`; it waits for a person while there is a `question`; it was
    `started`, or else is still to be run. It is `uncertain` if it was running when its process
    ended. `arguments` are those that a person put in the place of the model's.
    """

    started: bool = False
    question: str | None = None
    approvals: tuple[Approval, ...] = ()
    arguments: Mapping[str, Any] | None = None
    result: ToolResult | None = None
    duration_ms: Seconds = 0.0
    uncertain: bool = False

    @property
    def is_done(self) -> bool:
        return self.result is not None

    @property
    def is_waiting(self) -> bool:
        return self.question is not None

    def decided(self, approval: Approval) -> OpenCall:
        """The call after a person's decision; one that was denied is done."""
        denied = approval.verdict is Verdict.DENIED
        return replace(
            self,
            question=None,
            approvals=(*self.approvals, approval),
            arguments=self.arguments if approval.arguments is None else approval.arguments,
            result=self._not_run(approval) if denied else None,
        )

    def _not_run(self, approval: Approval) -> ToolResult:
        """What the model is told of a call that a person did not let run."""
        why = f": {approval.reason}" if approval.reason else ""
        if self.uncertain:
            words = f"was cut off, and {approval.by} did not let it run again{why}"
            return ToolResult(f"It {words}", words)
        return ToolResult(f"Denied by {approval.by}{why}", f"denied by {approval.by}{why}")


class OpenStep(Struct, frozen=True, gc=False, omit_defaults=True):
    """What the model said, and how far each of its tool calls has come.

    `seconds` is the active time that it has taken so far, `counted` what its execution has of it.
    """

    number: Count
    started_at: Moment
    message: Message
    calls: tuple[OpenCall, ...]
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()
    source: ModelSource | None = None
    seconds: Seconds = 0.0
    counted: Seconds = 0.0

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a person."""
        return tuple(
            PendingCall(asked.id, asked.name, _arguments(asked, call), call.question)
            for asked, call in zip(self.message.tool_calls, self.calls, strict=True)
            if call.question is not None
        )

    def call_as_decided(self, index: int) -> ToolCall:
        """The call with the arguments that it is to run with."""
        asked, call = self.message.tool_calls[index], self.calls[index]
        return asked if call.arguments is None else replace(asked, arguments=call.arguments)

    def with_call(self, index: int, call: OpenCall) -> OpenStep:
        return replace(self, calls=(*self.calls[:index], call, *self.calls[index + 1 :]))

    def decided(self, call_id: str, approval: Approval) -> OpenStep:
        """The step after a person's decision about one of its calls; each is decided once."""
        asked = self.message.tool_calls
        named = [index for index, call in enumerate(asked) if call.id == call_id]
        if not named:
            known = ", ".join(call.id for call in asked)
            raise ApprovalError(f"there is no tool call {call_id!r} to decide about: there are {known}")
        waiting = [index for index in named if self.calls[index].is_waiting]
        if not waiting:
            raise ApprovalError(_not_waiting(asked[named[0]], self.calls[named[0]]))
        index = waiting[0]
        return self.with_call(index, self.calls[index].decided(approval))


def _arguments(asked: ToolCall, call: OpenCall) -> Mapping[str, Any] | str:
    return asked.arguments if call.arguments is None else call.arguments


def _not_waiting(asked: ToolCall, call: OpenCall) -> str:
    if not call.approvals:
        return f"the call {asked.id!r} of {asked.name} does not wait for a decision"
    last = call.approvals[-1]
    when = f"{last.at:%Y-%m-%d %H:%M:%S}"
    return f"the call {asked.id!r} of {asked.name} was {last.verdict} by {last.by} at {when} already"
