"""From the entries of a journal to the state that they lead to."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from whyloop.errors import SnapshotError
from whyloop.values import plain
from whyloop.values.continuation import ContinuationEvaluation, ContinuationOutcome
from whyloop.values.log import Log
from whyloop.values.messages import Message, MessageRole
from whyloop.values.snapshot import check_open_step, current_step
from whyloop.values.state import AgentState
from whyloop.values.step import Step, ToolRun
from whyloop.wire.journal_schema import VERSION, Closing, Entry, Head, JournalOutcome, Said

_TOOL = MessageRole.TOOL
_decoder = msgspec.json.Decoder(list[Entry])

# What only an entry that begins a session has all of.
_BEGINNING = {
    "head": ("parent_agent_id", "status", "usage", "metadata"),
    "info": ("started_at",),
    "execution": ("id", "started_at", "step_count"),
}


def entries_of(texts: Sequence[str]) -> list[Entry]:
    """The entries of a journal; a `SnapshotError` names the first that cannot be read, counted from 0."""
    try:
        entries = _decoder.decode(f"[{','.join(texts)}]")
    except msgspec.ValidationError as error:
        raise plain.snapshot_error(str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise _unreadable(texts) from None
    for index, entry in enumerate(entries):
        if entry.v != VERSION:
            raise SnapshotError(
                f"version {min(entry.v, 10**9)} of an entry is not one that this whyloop reads: "
                "upgrade whyloop",
                f"$[{index}].v",
            )
    if len(entries) != len(texts):
        raise _unreadable(texts)
    return entries


def _unreadable(texts: Sequence[str]) -> SnapshotError:
    """The error that names the first text which is no object in JSON."""
    for index, text in enumerate(texts):
        try:
            msgspec.json.decode(text, type=dict)
        except msgspec.ValidationError:
            return SnapshotError("the entry is no object", f"$[{index}]")
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            return SnapshotError(f"the entry is no JSON: {error}", f"$[{index}]")
    return SnapshotError("the journal is no JSON")


def state_of(agent_id: str, texts: Sequence[str], base: AgentState | None = None) -> AgentState:
    """The state that a journal leads to, from the beginning or from an earlier state."""
    # Thousands of values are made here and none of them is garbage: looking for some would take
    # a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return folded(agent_id, entries_of(texts), base)
    finally:
        if collecting:
            gc.enable()


def folded(agent_id: str, entries: Sequence[Entry], base: AgentState | None = None) -> AgentState:
    """The state that the entries lead to, from the beginning or from an earlier state."""
    if base is None:
        _check_beginning(entries)
    fold = _Fold(base or AgentState(agent_id=agent_id))
    for index, entry in enumerate(entries):
        try:
            fold.add(entry)
        except SnapshotError as error:
            raise SnapshotError(
                "the entry has a field that cannot be", f"$[{index}]{error.path[1:]}"
            ) from None
        except (IndexError, ValueError):
            raise SnapshotError("the entry does not follow from those before it", f"$[{index}]") from None
    return fold.state(agent_id)


def _check_beginning(entries: Sequence[Entry]) -> None:
    """Refuse a journal whose first entry is not that of a session: what was before it is lost."""
    if not entries:
        raise SnapshotError("the journal has no entries")
    for part, fields in _BEGINNING.items():
        for field in fields:
            if field not in getattr(entries[0], part):
                raise SnapshotError("the journal lacks its beginning", f"$[0].{part}.{field}")


class _Fold:
    """A state in the making; the counters are kept apart, since every step moves them."""

    def __init__(self, base: AgentState) -> None:
        self.messages = list(base.messages)
        self.steps = list(base.steps)
        self.open_step = base.open_step
        self.outcome = base.last_continuation_outcome
        self.head = Head(
            base.parent_agent_id,
            base.status,
            base.usage,
            dict(base.metadata),
            base.state_info,
            base.execution,
        )
        self.uncounted: list[tuple[Step, float]] = []

    def add(self, entry: Entry) -> None:
        already = self.open_step.counted if self.open_step else 0.0
        if entry.opened is not None or entry.calls or entry.seconds is not None:
            self._open(entry)
        before = self.steps[-1].outcome if self.steps else None
        if entry.closed is not None:
            self._close(entry.closed)
        self.messages += entry.messages
        self.steps += entry.steps
        if entry.counted:
            self.uncounted.append((self.steps[-1], already))
        if entry.outcome is not UNSET:
            self.outcome = _outcome(entry.outcome, before) if entry.outcome else None
            if entry.judged:
                self.steps[-1] = replace(self.steps[-1], outcome=self.outcome)
        if entry.head or entry.info or entry.execution:
            self._count()
            head = msgspec.to_builtins(self.head)
            head |= entry.head
            head["info"] |= entry.info
            head["execution"] |= entry.execution
            self.head = plain.decode(head, Head)

    def _open(self, entry: Entry) -> None:
        step = entry.opened or self.open_step
        if step is None or len(step.calls) != len(step.message.tool_calls):
            raise ValueError("there is no open step")
        calls = list(step.calls)
        for index, call in entry.calls.items():
            if not 0 <= index < len(calls):
                raise ValueError("there is no such call")
            calls[index] = call
        step = replace(step, calls=tuple(calls))
        if entry.seconds is not None:
            step = replace(step, seconds=entry.seconds, counted=entry.seconds)
        self.open_step = step

    def _close(self, closed: Closing) -> None:
        """The step that was open joins the history, with its messages."""
        step = self.open_step
        if step is None:
            raise ValueError("there is no open step")
        first, results, runs = len(self.messages), iter(closed.results), []
        self.messages.append(step.message)
        for asked, call in zip(step.message.tool_calls, step.calls, strict=True):
            known = call.result
            if known is None:
                result = next(results, None)
                if result is None:
                    raise ValueError("a result is missing")
                content, error, duration = result.content, result.error, result.duration_ms
            else:
                content, error, duration = known.content, known.error, call.duration_ms
            self.messages.append(Message(_TOOL, content, (), asked.id, asked.name))
            runs.append(ToolRun(asked.id, asked.name, error is None, error, duration, call.approvals))
        self.steps.append(
            Step(
                step.number,
                self.head.execution.id,
                step.started_at,
                closed.at,
                first,
                len(self.messages) - first,
                tuple(runs),
                step.finish_reason,
                step.usage,
                closed.duration_ms,
                closed.failures,
                closed.interrupted,
                step.source,
                closed.outcome,
            )
        )
        self.open_step = None

    def _count(self) -> None:
        """Move the counters on by the steps that were taken since, just as taking them did."""
        if not self.uncounted:
            return
        head = self.head
        usage, info, execution = head.usage, head.info, head.execution
        spent, active, cumulative = (
            execution.usage,
            execution.active_seconds,
            info.cumulative_execution_seconds,
        )
        for step, already in self.uncounted:
            usage += step.usage
            spent += step.usage
            seconds = max(0.0, step.duration_ms / 1000 - already) if already else step.duration_ms / 1000
            active += seconds
            cumulative += seconds
        now = self.uncounted[-1][0].completed_at
        self.head = replace(
            head,
            usage=usage,
            info=replace(info, updated_at=now, cumulative_execution_seconds=cumulative),
            execution=replace(
                execution,
                updated_at=now,
                step_count=execution.step_count + len(self.uncounted),
                usage=spent,
                active_seconds=active,
            ),
        )
        self.uncounted = []

    def state(self, agent_id: str) -> AgentState:
        self._count()
        check_open_step(self.open_step, "$.open_step")
        head = self.head
        return AgentState(
            agent_id=agent_id,
            parent_agent_id=head.parent_agent_id,
            status=head.status,
            messages=Log(self.messages),
            steps=Log(self.steps),
            current_step=current_step(head.execution, self.steps),
            usage=head.usage,
            metadata=head.metadata,
            state_info=head.info,
            execution=head.execution,
            last_continuation_outcome=self.outcome,
            open_step=self.open_step,
        )


def _outcome(stored: JournalOutcome, previous: ContinuationOutcome | None) -> ContinuationOutcome:
    said = stored.evaluations
    if previous is not None and len(previous.evaluations) == len(said):
        evaluations = [
            old if new is None else _evaluation(new, old)
            for new, old in zip(said, previous.evaluations, strict=True)
        ]
    else:
        evaluations = [_evaluation(new, None) for new in said]
    return ContinuationOutcome(stored.decision, stored.resolved_by, stored.stop_reason, tuple(evaluations))


def _evaluation(said: Said | None, previous: ContinuationEvaluation | None) -> ContinuationEvaluation:
    if said is not None and said.criterion is not None and said.decision is not None:
        return ContinuationEvaluation(
            said.criterion, said.decision, said.reason, said.context, said.stop_reason
        )
    if said is None or previous is None:
        raise ValueError("it refers to what was never said")
    return ContinuationEvaluation(
        previous.criterion, previous.decision, said.reason, said.context, previous.stop_reason
    )
