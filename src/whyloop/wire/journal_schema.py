"""The entries of a journal, field by field.

Version 1: the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome, StopReason
from whyloop.values.execution import Execution, StateInfo
from whyloop.values.failure import Failure
from whyloop.values.messages import Message
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.state import AgentStatus
from whyloop.values.step import Step
from whyloop.values.times import Moment, Seconds
from whyloop.values.usage import Usage

VERSION = 1


class Said(Struct, frozen=True, gc=False, omit_defaults=True):
    """An evaluation; what is left out is as it was after the step before."""

    reason: str
    context: Mapping[str, Any] = {}
    criterion: str | None = None
    decision: ContinuationDecision | None = None
    stop_reason: StopReason | None = None


class JournalOutcome(Struct, frozen=True, gc=False, omit_defaults=True):
    """An outcome; an evaluation that is left out was the same after the step before."""

    decision: ContinuationDecision
    resolved_by: str
    stop_reason: StopReason | None = None
    evaluations: tuple[Said | None, ...] = ()


class Result(Struct, frozen=True, gc=False, omit_defaults=True):
    """What came of a call that was still open."""

    content: str
    error: str | None = None
    duration_ms: Seconds = 0.0


class Closing(Struct, frozen=True, gc=False, omit_defaults=True):
    """How an open step came to its end; the rest of it was written when it was opened.

    Its `outcome` is here only where it is not that of the state.
    """

    at: Moment
    duration_ms: Seconds = 0.0
    results: tuple[Result, ...] = ()
    failures: tuple[Failure, ...] = ()
    interrupted: str | None = None
    outcome: ContinuationOutcome | None = None


class Entry(Struct, frozen=True, gc=False, omit_defaults=True):
    """What changed.

    `head`, `info` and `execution` are the fields of the state, of its clocks and of its execution
    that did; where they are `counted`, those that follow from the step are not among them. `opened`
    is a step whose calls are about to be run, `calls` are those that have come further since, and
    `closed` is how it ended. The last step has the `outcome` if that is `judged`.
    """

    v: int
    head: Mapping[str, Any] = {}
    info: Mapping[str, Any] = {}
    execution: Mapping[str, Any] = {}
    opened: OpenStep | None = None
    calls: Mapping[int, OpenCall] = {}
    seconds: Seconds | None = None
    closed: Closing | None = None
    messages: tuple[Message, ...] = ()
    steps: tuple[Step, ...] = ()
    counted: bool = False
    outcome: JournalOutcome | UnsetType | None = UNSET
    judged: bool = False

    @property
    def step_count(self) -> int:
        """How many steps the entry adds to the session."""
        return len(self.steps) + (self.closed is not None)


class Head(Struct, frozen=True, gc=False):
    """Everything of a state but its history."""

    parent_agent_id: str | None
    status: AgentStatus
    usage: Usage
    metadata: dict[str, Any]
    info: StateInfo
    execution: Execution
