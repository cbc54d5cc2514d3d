"""The full snapshot of a state: its schema, its versions, and how older ones are read.

Version 1: the first.
Version 2: `open_step`, a step whose tool calls have not all come to an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from whyloop.errors import SnapshotError
from whyloop.values import plain
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.execution import Execution, StateInfo
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step
from whyloop.values.usage import Usage

VERSION = 2

Document = dict[str, Any]

# What can be left out when a value is made by hand, and not when it is read.
_REQUIRED = (
    ("execution", "id"),
    ("execution", "started_at"),
    ("execution", "step_count"),
    ("state_info", "started_at"),
)


class Snapshot(Struct, frozen=True, kw_only=True):
    """What is written of a state: everything but the clock reading that only this process can use."""

    version: int
    agent_id: str
    parent_agent_id: str | None
    status: AgentStatus
    messages: tuple[Message, ...]
    steps: tuple[Step, ...]
    usage: Usage
    metadata: dict[str, Any]
    state_info: StateInfo
    execution: Execution
    last_continuation_outcome: ContinuationOutcome | None
    open_step: OpenStep | None


def state_to_dict(state: AgentState) -> Document:
    snapshot = Snapshot(
        version=VERSION,
        agent_id=state.agent_id,
        parent_agent_id=state.parent_agent_id,
        status=state.status,
        messages=tuple(state.messages),
        steps=tuple(state.steps),
        usage=state.usage,
        metadata=dict(state.metadata),
        state_info=state.state_info,
        execution=state.execution,
        last_continuation_outcome=state.last_continuation_outcome,
        open_step=state.open_step,
    )
    document: Document = plain.encode(snapshot)
    return document


def state_from_dict(data: Mapping[str, Any]) -> AgentState:
    if not isinstance(data, Mapping):
        raise SnapshotError(f"a snapshot is an object, this is {type(data).__name__}")
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SnapshotError("a snapshot names its version with a number from 1 on", "$.version")
    if version > VERSION:
        raise SnapshotError(
            f"version {min(version, 10**9)} is newer than {VERSION}, the newest that this whyloop reads: "
            "upgrade whyloop",
            "$.version",
        )
    for path in _REQUIRED:
        part = data.get(path[0])
        if isinstance(part, Mapping) and path[1] not in part:
            raise SnapshotError(f"`{path[0]}` lacks the field `{path[1]}`", f"$.{'.'.join(path)}")
    document = dict(data)
    for older in range(version, VERSION):
        document = _UPGRADES[older](document)
    snapshot = plain.decode(document, Snapshot)
    check_open_step(snapshot.open_step, "$.open_step")
    return AgentState(
        agent_id=snapshot.agent_id,
        parent_agent_id=snapshot.parent_agent_id,
        status=snapshot.status,
        messages=Log(snapshot.messages),
        steps=Log(snapshot.steps),
        current_step=current_step(snapshot.execution, snapshot.steps),
        usage=snapshot.usage,
        metadata=snapshot.metadata,
        state_info=snapshot.state_info,
        execution=snapshot.execution,
        last_continuation_outcome=snapshot.last_continuation_outcome,
        open_step=snapshot.open_step,
    )


def current_step(execution: Execution, steps: Sequence[Step]) -> Step | None:
    """The latest step of the execution; one that came from a slim snapshot counts more than were kept."""
    return steps[-1] if execution.step_count and steps else None


def _from_1(document: Document) -> Document:
    return {**document, "version": 2, "open_step": None}


# From each older version to the one after it.
_UPGRADES: dict[int, Callable[[Document], Document]] = {1: _from_1}


def check_open_step(step: OpenStep | None, path: str) -> None:
    """Refuse an open step that contradicts itself: nobody could go on with it."""
    if step is None:
        return
    if not step.message.is_assistant or not step.message.tool_calls:
        raise SnapshotError("an open step has an assistant's message with tool calls", f"{path}.message")
    if len(step.calls) != len(step.message.tool_calls):
        raise SnapshotError(
            f"there are {len(step.message.tool_calls)} tool calls in the message and {len(step.calls)} here",
            f"{path}.calls",
        )
    for index, call in enumerate(step.calls):
        words = _contradiction(call)
        if words is not None:
            raise SnapshotError(words, f"{path}.calls[{index}]")


def _contradiction(call: OpenCall) -> str | None:
    if call.is_waiting and (call.started or call.is_done):
        return "a call that waits for a person was neither started nor done"
    if call.arguments is not None and not call.approvals:
        return "a call has other arguments, and nobody who changed them"
    return None
