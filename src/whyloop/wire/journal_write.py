"""From two states of a session to the entry of the journal between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from whyloop.errors import StoreError
from whyloop.values import plain
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome
from whyloop.values.execution import Execution, StateInfo
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.open_step import OpenStep
from whyloop.values.state import AgentState
from whyloop.values.step import Step
from whyloop.wire.journal_schema import VERSION, Closing, Entry, JournalOutcome, Result, Said

T = TypeVar("T")

# What follows from a step, and is counted again where it is read.
_COUNTED = {"usage", "updated_at", "cumulative_execution_seconds", "step_count", "active_seconds"}


class _Fields:
    """Some fields of a value: which of them are no longer what they were."""

    def __init__(self, *names: str) -> None:
        self._names = names
        # The first one twice, since of a single name there would be no tuple.
        self._values: Callable[[object], tuple[Any, ...]] = attrgetter(*names, names[0])

    def all(self, value: object) -> dict[str, Any]:
        return dict(zip(self._names, self._values(value), strict=False))

    def changes(self, old: object, new: object) -> dict[str, Any]:
        if old is new:
            return {}
        before, after = self._values(old), self._values(new)
        if all(map(is_, before, after)):
            return {}
        pairs = zip(self._names, before, after, strict=False)
        return {name: value for name, was, value in pairs if value is not was}

    def but_counted(self) -> _Fields:
        return _Fields(*[name for name in self._names if name not in _COUNTED])


_HEAD = _Fields("parent_agent_id", "status", "usage", "metadata")
_INFO = _Fields(*StateInfo.__struct_fields__)
_EXECUTION = _Fields(*Execution.__struct_fields__)
_ALL = (_HEAD, _INFO, _EXECUTION)
_BUT_COUNTED = tuple(fields.but_counted() for fields in _ALL)
_NOTHING = AgentState(agent_id="", parent_agent_id="")

_encoder = msgspec.json.Encoder(enc_hook=plain.describe)


def entry_between(before: AgentState | None, after: AgentState) -> str:
    """The entry that leads from one recorded state of a session to the next; None is no session yet."""
    whole, old = before is None, before or _NOTHING
    messages, steps = _added(old.messages, after.messages), _added(old.steps, after.steps)
    counted = len(steps) == 1 and old.execution.id == after.execution.id and not whole
    entry = _fields(old, after, whole, counted)
    opened, outcome = old.open_step, after.last_continuation_outcome
    if outcome is not old.last_continuation_outcome:
        entry["outcome"] = outcome and _outcome(outcome, _last_outcome(old))
        entry["judged"] = judged = outcome is not None and outcome is _last_outcome(after)
    else:
        judged = False
    if opened is not None and after.open_step is None and steps:
        entry["closed"] = _closing(opened, steps[0], messages, None if judged else steps[0].outcome)
        messages, steps = messages[1 + len(opened.calls) :], steps[1:]
    elif opened is not after.open_step:
        _note_calls(entry, opened, after.open_step)
    if judged and steps:
        steps = (*steps[:-1], replace(steps[-1], outcome=None))
    return _text(Entry(VERSION, messages=messages, steps=steps, counted=counted, **entry))


def _fields(old: AgentState, new: AgentState, whole: bool, counted: bool) -> dict[str, Any]:
    """What is another than it was, beside the history."""
    head, info, execution = _BUT_COUNTED if counted else _ALL
    if whole:
        return {
            "head": head.all(new),
            "info": info.all(new.state_info),
            "execution": execution.all(new.execution),
        }
    entry = {}
    if changes := head.changes(old, new):
        entry["head"] = changes
    if changes := info.changes(old.state_info, new.state_info):
        entry["info"] = changes
    if changes := execution.changes(old.execution, new.execution):
        entry["execution"] = changes
    return entry


def _added(old: Log[T], new: Log[T]) -> tuple[T, ...]:
    return new[len(old) :] if len(new) > len(old) else ()


def _note_calls(entry: dict[str, Any], old: OpenStep | None, new: OpenStep | None) -> None:
    """How far the calls of a step have come that is open still."""
    if old is None or new is None or old.message is not new.message:
        entry["opened"] = new
        return
    changed = enumerate(zip(new.calls, old.calls, strict=True))
    entry["calls"] = {index: call for index, (call, before) in changed if call is not before}
    if new.counted != old.counted:
        entry["seconds"] = new.seconds


def _closing(
    opened: OpenStep, step: Step, messages: Sequence[Message], outcome: ContinuationOutcome | None
) -> Closing:
    """What is not known yet of a step that was open: the results of the calls that had none."""
    results = [
        Result(message.text, run.error, run.duration_ms)
        for message, run, call in zip(messages[1:], step.tool_calls, opened.calls, strict=False)
        if call.result is None
    ]
    return Closing(
        step.completed_at, step.duration_ms, tuple(results), step.failures, step.interrupted, outcome
    )


def _last_outcome(state: AgentState) -> ContinuationOutcome | None:
    return state.steps[-1].outcome if state.steps else None


def _outcome(outcome: ContinuationOutcome, previous: ContinuationOutcome | None) -> JournalOutcome:
    """The outcome, without what was said in the same words after the step before."""
    said = outcome.evaluations
    if previous is None or len(previous.evaluations) != len(said):
        written: list[Said | None] = [
            Said(e.reason, e.context, e.criterion, e.decision, e.stop_reason) for e in said
        ]
    else:
        written = [
            None if new is old else _said_anew(new, old)
            for new, old in zip(said, previous.evaluations, strict=True)
        ]
    return JournalOutcome(outcome.decision, outcome.resolved_by, outcome.stop_reason, tuple(written))


def _said_anew(new: ContinuationEvaluation, old: ContinuationEvaluation) -> Said:
    if new.criterion == old.criterion and new.decision is old.decision and new.stop_reason is old.stop_reason:
        return Said(new.reason, new.context)
    return Said(new.reason, new.context, new.criterion, new.decision, new.stop_reason)


def _text(entry: Entry) -> str:
    try:
        return _encoder.encode(entry).decode()
    except UnicodeEncodeError:
        return _encoder.encode(plain.encode(entry)).decode()
    except RecursionError:
        raise StoreError(
            "what happened is nested too deep to be stored: see the arguments of its calls"
        ) from None
