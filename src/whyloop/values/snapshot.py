"""The full snapshot of a state: its schema and its version.

Version 1: the first. Until the first release it may change without an upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct

from whyloop.errors import SnapshotError
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.encoding import copied
from whyloop.values.execution import AgentStatus, Execution
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.model import Usage
from whyloop.values.scalars import Count
from whyloop.values.state import AgentState, StateInfo
from whyloop.values.step import OpenCall, OpenStep, RequestPart, Step

VERSION = 1

Document = dict[str, Any]

# These fields have defaults in code, but must be present in a snapshot.
_REQUIRED = (("execution", "id"), ("execution", "started_at"), ("state_info", "started_at"))


class Snapshot(Struct, frozen=True, kw_only=True):
    """The document of a full snapshot."""

    version: int
    agent_id: str
    identity: str
    parent_agent_id: str | None
    agent: str
    status: AgentStatus
    messages: tuple[Message, ...]
    steps: tuple[Step, ...]
    usage: Usage
    metadata: dict[str, Any]
    state_info: StateInfo
    execution: Execution
    last_continuation_outcome: ContinuationOutcome | None
    open_step: OpenStep | None
    request_parts: tuple[RequestPart, ...]
    wrap_ups: Count = 0
    execution_started_at: datetime | None = None
    """When the process that wrote the snapshot began the leg; a reader ignores it."""


class Head(Struct, frozen=True, kw_only=True):
    """A state without its history and its metadata, for a checkpoint of a journal.

    The last step of the execution is included: if its failure was ignored, the next one counts anew.
    """

    identity: str
    parent_agent_id: str | None
    agent: str
    status: AgentStatus
    message_count: int
    step_count: int
    part_count: int
    usage: Usage
    state_info: StateInfo
    execution: Execution
    last_continuation_outcome: ContinuationOutcome | None
    last_step: Step | None
    wrap_ups: Count = 0


def state_to_dict(state: AgentState) -> Document:
    """Return the full snapshot of a state."""
    snapshot = copied(
        state,
        Snapshot,
        version=VERSION,
        messages=tuple(state.messages),
        steps=tuple(state.steps),
        metadata=dict(state.metadata),
        request_parts=tuple(state.request_parts),
    )
    document: Document = encoding.encode(snapshot)
    return document


def state_from_dict(data: Mapping[str, Any]) -> AgentState:
    """Return the state in a full snapshot."""
    check_version(data, VERSION)
    for path in _REQUIRED:
        part = data.get(path[0])
        if isinstance(part, Mapping) and path[1] not in part:
            raise SnapshotError(f"`{path[0]}` lacks the field `{path[1]}`", f"$.{'.'.join(path)}")
    snapshot = encoding.decode(dict(data), Snapshot)
    check_open_step(snapshot.open_step, "$.open_step")
    return copied(
        snapshot,
        AgentState,
        messages=Log(snapshot.messages),
        steps=Log(snapshot.steps),
        execution_started_at=None,
        decoded_output=UNSET,
        request_parts=Log(snapshot.request_parts),
    )


def check_version(data: object, newest: int) -> None:
    """Reject a snapshot that is not an object, or of an unknown version."""
    if not isinstance(data, Mapping):
        raise SnapshotError(f"invalid snapshot: expected an object, got {type(data).__name__}")
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SnapshotError("invalid snapshot: the version must be a number from 1 on", "$.version")
    if version > newest:
        raise SnapshotError(
            f"version {min(version, 10**9)} is newer than {newest}, the newest that this whyloop reads: "
            "upgrade whyloop",
            "$.version",
        )


def head_of(state: AgentState) -> Head:
    """Return a state without its history."""
    return copied(
        state,
        Head,
        message_count=len(state.messages),
        step_count=len(state.steps),
        part_count=len(state.request_parts),
        last_step=state.current_step,
    )


def state_from_head(agent_id: str, head: Head) -> AgentState:
    """Return a state whose history so far was left out."""
    return AgentState(
        agent_id=agent_id,
        identity=head.identity,
        parent_agent_id=head.parent_agent_id,
        agent=head.agent,
        status=head.status,
        messages=Log(start=head.message_count),
        steps=Log(start=head.step_count, last=head.last_step),
        usage=head.usage,
        state_info=head.state_info,
        execution=head.execution,
        last_continuation_outcome=head.last_continuation_outcome,
        request_parts=Log(start=head.part_count),
        wrap_ups=head.wrap_ups,
    )


def check_open_step(step: OpenStep | None, path: str) -> None:
    """Reject an open step that contradicts itself: no runner could continue it."""
    if step is None:
        return
    if step.message is not None and not step.message.is_assistant:
        raise SnapshotError("the message of an open step must be an assistant's", f"{path}.message")
    if len(step.calls) != len(step.tool_calls):
        raise SnapshotError(
            f"there are {len(step.tool_calls)} tool calls in the message and {len(step.calls)} here",
            f"{path}.calls",
        )
    for index, call in enumerate(step.calls):
        problem = _contradiction(call)
        if problem is not None:
            raise SnapshotError(problem, f"{path}.calls[{index}]")


def _contradiction(call: OpenCall) -> str | None:
    """Return the contradiction in the progress of a call, if there is one."""
    if call.is_waiting and call.is_done:
        return "a call that waits for a person cannot have a result"
    if call.arguments is not None and not call.approvals:
        return "a call has edited arguments but no decision that edited them"
    return None
