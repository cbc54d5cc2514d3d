"""The explanation of a tool call: how far it has come, and why it did not succeed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from whyloop.values.approval import Approval, Verdict
from whyloop.values.failure import Failure
from whyloop.values.messages import Message, ToolCall
from whyloop.values.next_action import NAME_LENGTH
from whyloop.values.step import OpenCall, OpenStep, Step, ToolRun
from whyloop.values.text import shortened

ERROR_LENGTH, RAISED_LENGTH = 80, 1000


class CallStatus(StrEnum):
    """The progress of a tool call.

    One that is not completed was blocked, denied, not run or cut off.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_COMPLETED = "not_completed"
    WAITING = "waiting"
    STARTED = "started"
    NOT_STARTED = "not_started"


def closed_call_status(run: ToolRun, *, failed: bool) -> CallStatus:
    """Return how a call of a closed step ended."""
    if run.success:
        return CallStatus.SUCCEEDED
    return CallStatus.FAILED if failed else CallStatus.NOT_COMPLETED


def open_call_status(call: OpenCall) -> CallStatus:
    """Return how far a call of an open step has come."""
    if call.result is not None:
        if call.result.error is None:
            return CallStatus.SUCCEEDED
        return CallStatus.FAILED if call.result.failure else CallStatus.NOT_COMPLETED
    if call.is_waiting:
        return CallStatus.WAITING
    return CallStatus.STARTED if call.started else CallStatus.NOT_STARTED


class CallExplanation(Struct, frozen=True, kw_only=True):
    """The explanation of one tool call of a step."""

    tool_call_id: str
    """The provider's id of the call."""
    tool: str
    """The tool that the model asked for."""
    status: CallStatus
    """How far the call has come."""
    error: str | None = None
    """Why it did not succeed, for people."""
    approvals: tuple[Approval, ...] = ()
    """The decisions of people about it, as recorded."""
    changed_by: tuple[str, ...] = ()
    """The changes before it ran: hooks by their names, "lenient arguments"."""

    @property
    def text(self) -> str:
        """The call on one line: "search failed: no such index"."""
        by = [f"{each.verdict} by {shortened(each.by, 40)}" for each in self.approvals if _permits(each)]
        by += [f"changed by {name}" for name in self.changed_by]
        match self.status:
            case CallStatus.SUCCEEDED:
                result = "ok"
            case CallStatus.FAILED:
                result = f"failed: {self.error or 'no reason given'}"
            case CallStatus.NOT_COMPLETED:
                result = self.error or "not completed"
            case CallStatus.WAITING:
                result = "waits for a person"
            case CallStatus.STARTED:
                result = "started"
            case CallStatus.NOT_STARTED:
                result = "" if by else "not started"
        return f"{self.tool} {', '.join(filter(None, [result, *by]))}"


def failure_text(failure: Failure, debug: bool) -> str:
    """Return the error for people, or with `debug` the message of an exception."""
    if debug and failure.raised:
        return shortened(failure.raised, RAISED_LENGTH)
    return shortened(failure.message, ERROR_LENGTH)


def calls_of(step: Step, messages: Sequence[Message], debug: bool = False) -> tuple[CallExplanation, ...]:
    """Return the explanations of the calls of a closed step."""
    failed = {failure.tool_call_id: failure for failure in step.failures}
    asked = {call.id: call for message in messages for call in message.tool_calls}
    return tuple(_call(run, failed.get(run.id), asked, debug) for run in step.tool_calls)


def _call(
    run: ToolRun, failure: Failure | None, asked: Mapping[str, ToolCall], debug: bool
) -> CallExplanation:
    return CallExplanation(
        tool_call_id=shortened(run.id, NAME_LENGTH),
        tool=shortened(run.name, NAME_LENGTH),
        status=closed_call_status(run, failed=failure is not None),
        error=_error(run.error, failure, debug),
        approvals=run.approvals,
        changed_by=_changed_by(asked[run.id]) if run.id in asked else (),
    )


def _error(error: str | None, failure: Failure | None, debug: bool) -> str | None:
    if debug and failure is not None and failure.raised:
        return failure_text(failure, debug)
    return None if error is None else shortened(error, ERROR_LENGTH)


def open_calls_of(step: OpenStep, debug: bool = False) -> tuple[CallExplanation, ...]:
    """Return the explanations of the calls of an open step."""
    calls = zip(step.tool_calls, step.calls, strict=True)
    return tuple(_open_call(asked, call, debug) for asked, call in calls)


def _open_call(asked: ToolCall, call: OpenCall, debug: bool) -> CallExplanation:
    result = call.result
    error = None if result is None else _error(result.error, result.failure, debug)
    return CallExplanation(
        tool_call_id=shortened(asked.id, NAME_LENGTH),
        tool=shortened(asked.name, NAME_LENGTH),
        status=open_call_status(call),
        error=error,
        approvals=call.approvals,
        changed_by=_changed_by(asked),
    )


def _changed_by(call: ToolCall) -> tuple[str, ...]:
    """Return the hooks that changed the call."""
    return tuple(shortened(change.by, NAME_LENGTH) for change in call.changes)


def _permits(approval: Approval) -> bool:
    """Return whether the call was allowed to run; a denial is in the call's error."""
    return approval.verdict is not Verdict.DENIED
