"""Sessions, messages, traces and executions as clients see them: page by page, without credentials."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from whyloop.broadcasting.feed import cursor_of
from whyloop.server.bodies import ExecutionSummary, History, LimitUse, SessionState, SessionSummary, Trace
from whyloop.server.inputs import MessageQuery, TraceQuery
from whyloop.server.requests import etag_of
from whyloop.stores.listing import summary_of_end
from whyloop.stores.reading import (
    OneSession,
    Reading,
    ReadsJournals,
    entries_after,
    find_execution,
    release,
    start_reading,
)
from whyloop.stores.records import Summary
from whyloop.stores.turns import reading_turns
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.encoding import copied
from whyloop.values.explanation import explanation_of
from whyloop.values.explanation_text import MOST_STEPS
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction, redacted, redacted_cut
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.step import Step, end_error
from whyloop.values.summaries import args_summary
from whyloop.values.text import shortened
from whyloop.values.transitions import Queried, Restored
from whyloop.wire.document import (
    brief,
    document,
    limits_document,
    open_step_document,
    rule_names,
    step_document,
)
from whyloop.wire.ui import each_message

# Sessions


class Tagged(Struct, frozen=True):
    """The body of an answer, with the entity tag of the session that it shows."""

    body: Any
    etag: str | None


async def summaries_view(summaries: Iterable[Summary], redaction: Redaction | None) -> list[SessionSummary]:
    """Return sessions as a list shows them."""
    turns, shown = reading_turns(), []
    for summary in summaries:
        shown.append(_summary(summary, redaction, is_running=summary.runner is not None))
        await turns.take()
    return shown


def state_view(reading: Reading, redaction: Redaction | None, *, is_running: bool | None = None) -> Tagged:
    """Return a session as it was read.

    The store says whether it runs, unless `is_running` is given.
    """
    state, listed = reading.state, reading.summary
    if is_running is None:
        is_running = listed.runner is not None
    # A list has the reason, the rule and the time of the last change of the status.
    latest = replace(summary_of_end(state, listed), version=reading.version)
    body = SessionState(
        session=_summary(latest, redaction, is_running=is_running),
        execution_id=state.execution.id,
        last_response=state.last_response,
        pending_calls=redacted(msgspec.to_builtins(list(state.pending_calls)), redaction),
    )
    return Tagged(body, etag_of(listed.identity, reading.version))


def _summary(summary: Summary, redaction: Redaction | None, *, is_running: bool) -> SessionSummary:
    """Return a session for a list, without the runner, which names a host."""
    return copied(
        summary,
        SessionSummary,
        reason=summary.reason and redacted_cut(summary.reason, redaction),
        title=redacted_cut(summary.title, redaction),
        last_query=redacted_cut(summary.last_query, redaction),
        is_running=is_running,
        metadata=redacted(msgspec.to_builtins(summary.metadata), redaction),
    )


# Messages


async def messages_page(
    store: ReadsJournals, end: Reading, query: MessageQuery, redaction: Redaction | None
) -> History:
    """Return a page of the messages that a chat shows, given the end of the session.

    The messages of a step are on one page, so a page may have a few more than its limit.
    """
    total = len(end.state.messages)
    last = total if query.before is None else min(query.before, total)
    if query.after is None:
        first = max(0, last - query.limit)
        state = await with_messages(store, end, first, last)
        first = min(first, _step_around(state, first)[0])
        more = first if first > 0 else None
    else:
        first, most = query.after, last
        last = min(most, first + query.limit)
        state = await with_messages(store, end, first, last)
        last = min(most, _step_around(state, last)[1])
        more = last if last < most else None
    after = cursor_of(end.state.execution)
    messages = await _rendered(state, first, last, redaction)
    release(state)
    return History(messages, None if after is None else str(after), more is not None, more)


async def _rendered(state: AgentState, first: int, last: int, redaction: Redaction | None) -> list[Raw]:
    messages, turns = [], reading_turns()
    for message in each_message(state, first, last):
        messages.append(message_view(message, redaction))
        await turns.take()
    return messages


async def with_messages(store: ReadsJournals, end: Reading, first: int, last: int) -> AgentState:
    """Return the session with these messages, and a step after them if there is one."""
    if end.state.messages.start <= first or first >= last:
        return end.state
    start = await start_reading(store, end.state.agent_id, message_count=first)

    def is_enough(state: AgentState) -> bool:
        step = state.steps.last
        return step is not None and step.message_count > 0 and step.first_message >= last

    return await _read_until(store, start, end, is_enough)


def _step_around(state: AgentState, index: int) -> tuple[int, int]:
    """Return the start and end of the step around a message, or its index twice."""
    steps = state.steps
    for step in reversed(steps[steps.start :]):
        first, end = step.first_message, step.first_message + step.message_count
        if first < index < end:
            return first, end
        if end <= index:
            break
    return index, index


def message_view(message: dict[str, Any], redaction: Redaction | None = DEFAULT_REDACTION) -> Raw:
    """Return a message as JSON.

    Texts of people and models stay; those of tools may have a credential.
    """
    shown = {**message}
    if "metadata" in message:
        shown["metadata"] = _metadata(redacted(message["metadata"], redaction))
    if message["role"] in ("tool", "status"):
        shown["content"] = redacted(message["content"], redaction)
    return Raw(msgspec.json.encode(shown))


def _metadata(shown: dict[str, Any]) -> dict[str, Any]:
    """Make summaries from redacted values, since a shortened secret may not match."""
    if "tool_calls" not in shown:
        return shown
    calls = [{**call, "args_summary": args_summary(call["args"])} for call in shown["tool_calls"]]
    if "args_summary" in shown:
        shown = {**shown, "args_summary": calls[0]["args_summary"]}
    return {**shown, "tool_calls": calls}


# Traces


async def trace_page(
    store: ReadsJournals,
    end: Reading,
    query: TraceQuery,
    redaction: Redaction | None,
    executions: Sequence[ExecutionSummary],
) -> Trace:
    """Return some steps of a session, and the explanation of where it is."""
    state, total, turns = end.state, len(end.state.steps), reading_turns()
    first, last = min(query.after, total), min(query.after + query.limit, total)
    # The step before the first one says how long that one waited for a provider.
    held = await with_steps(store, end, max(0, first - 1), last) if first < last else state
    steps: list[Raw] = []
    for index in range(first + 1, last + 1):
        steps.append(step_view(step_document(held, index, debug=True), redaction, is_brief=query.brief))
        await turns.take()
    release(held)
    shown = redacted(document(state, ()), redaction)
    opened = open_step_document(state, debug=True)
    explanation = explanation_of(await _execution(store, end), debug=True)
    await turns.take()
    text = str(explanation)
    await turns.take()
    return Trace(
        agent_id=state.agent_id,
        status=state.status,
        stop_reason=state.stop_reason,
        resolved_by=shown["resolved_by"],
        reason=shown["reason"],
        headline=redacted(explanation.headline, redaction),
        explanation=redacted(text, redaction),
        next_actions=redacted(msgspec.to_builtins(list(explanation.next_actions)), redaction),
        steps=steps,
        step_count=total,
        has_more=last < total,
        next=last if last < total else None,
        usage=shown["usage"],
        times=shown["times"],
        agent=state.agent,
        open_step=None if opened is None else step_view(opened, redaction, is_brief=query.brief),
        executions=executions_of(executions, first, last),
        limits=[LimitUse(**each) for each in limits_document(state)],
        rules=rule_names(state),
    )


def step_view(step: dict[str, Any], redaction: Redaction | None, *, is_brief: bool = False) -> Raw:
    """Return a step as JSON, without credentials."""
    shown = redacted(brief(step, redaction) if is_brief else step, redaction)
    return Raw(msgspec.json.encode(shown))


async def with_steps(store: ReadsJournals, end: Reading, first: int, last: int) -> AgentState:
    """Return the session with these steps.

    The outcome of a step is final once another step follows.
    """
    if end.state.steps.start <= first or first >= last:
        return end.state
    start = await start_reading(store, end.state.agent_id, step_count=first)
    return await _read_until(store, start, end, lambda state: len(state.steps) > last)


async def _execution(store: ReadsJournals, end: Reading) -> AgentState:
    """Return the session with only the steps of its execution.

    Of a long one, it has the first and the last.
    """
    state, total = end.state, len(end.state.steps)
    begin, half = total - state.execution.step_number, MOST_STEPS // 2
    stretches = [(begin, total)]
    if total - begin > MOST_STEPS:
        stretches = [(begin, begin + half), (total - half, total)]
    steps: list[Step] = []
    messages: list[Message] = []
    for first, last in stretches:
        held = await with_steps(store, end, first, last)
        for step in held.steps[first:last]:
            steps.append(replace(step, first_message=len(messages)))
            messages += held.messages_of(step)
    return replace(state, steps=Log(steps), messages=Log(messages) if messages else state.messages)


async def _read_until(
    store: ReadsJournals, start: Reading, end: Reading, is_enough: Callable[[AgentState], bool]
) -> AgentState:
    """Return the state at the end, with the history from a start on."""
    held = start.state
    async with aclosing(entries_after(store, start, end.version)) as entries:
        async for _, _, held in entries:
            if is_enough(held):
                break
    return replace(end.state, messages=held.messages, steps=held.steps)


# Executions

LONGEST_QUERY, LONGEST_REASON = 200, 300
# The number of latest executions in a trace, besides those of its steps.
MOST_LATEST = 100
# The sessions whose earlier executions are remembered.
MOST_SESSIONS = 100


class Executions:
    """The executions of the sessions of a store, without secrets.

    Those before the latest one never change. They are read once, from the checkpoint of each query.
    """

    def __init__(self, store: ReadsJournals, redaction: Redaction | None) -> None:
        self._store = store
        self._redaction = redaction
        self._earlier: OrderedDict[str, list[ExecutionSummary]] = OrderedDict()

    async def read(self, end: Reading) -> list[ExecutionSummary]:
        """Return the executions of a session up to a reading, oldest first."""
        known = self._earlier.get(end.state.identity, [])
        places = {each.id: place for place, each in enumerate(known)}
        session = OneSession(self._store, end.summary.identity)
        state, found = end.state, list[ExecutionSummary]()
        while state.execution.id:
            if (place := places.get(state.execution.id)) is not None:
                found += reversed(known[: place + 1])
                break
            latest, state = await self._before(session, state)
            found += latest
        found.reverse()
        self._earlier[end.state.identity] = found[:-1]
        self._earlier.move_to_end(end.state.identity)
        while len(self._earlier) > MOST_SESSIONS:
            self._earlier.popitem(last=False)
        return found

    async def _before(
        self, session: OneSession, state: AgentState
    ) -> tuple[list[ExecutionSummary], AgentState]:
        """Return the executions of a state, and the state before them."""
        execution_id = state.execution.id
        while execution_id:
            begin, is_found = await find_execution(session, state.agent_id, execution_id)
            before = begin.state if begin.version else AgentState.before_creation(state.agent_id)
            async with aclosing(entries_after(session, begin, begin.version + 1)) as entries:
                async for entry, _, after in entries:
                    for transition in entry.transitions:
                        if isinstance(transition, Queried):
                            return [self._current(state, transition.message.text)], before
                        if isinstance(transition, Restored):
                            return list(self._imported(state, after)), before
            # A fork gave it another id.
            execution_id = before.execution.id if is_found else ""
        return [self._current(state, "")], AgentState.before_creation(state.agent_id)

    def _imported(self, state: AgentState, restored: AgentState) -> Iterator[ExecutionSummary]:
        """Yield the executions of an imported snapshot, the latest one first."""
        firsts = [index for index, step in enumerate(restored.steps) if step.number == 1]
        ends = [*firsts, len(restored.steps)][1:]
        parts = list(zip(firsts, ends, strict=True))
        query = next((each.text for each in reversed(restored.messages) if each.is_user), "")
        if parts and restored.execution.step_count:
            first, _ = parts.pop()
            query = _query_before(restored, restored.steps[first])
        yield self._current(state, query)
        for first, end in reversed(parts):
            yield self._earlier_one(restored, restored.steps[first:end], first + 1)

    def _current(self, state: AgentState, query: str) -> ExecutionSummary:
        """Return the execution of a state."""
        execution, outcome, ended = state.execution, state.last_continuation_outcome, state.status.has_ended
        return ExecutionSummary(
            id=execution.id,
            query=self._cut(query, LONGEST_QUERY),
            status=state.status,
            stop_reason=state.stop_reason,
            resolved_by=outcome.resolved_by if outcome else None,
            reason=self._reason(outcome, state.current_step),
            first_step=len(state.steps) - execution.step_number + 1,
            step_count=execution.step_number,
            started_at=execution.started_at,
            ended_at=(execution.updated_at or execution.started_at) if ended else None,
        )

    def _earlier_one(self, state: AgentState, steps: Sequence[Step], first_step: int) -> ExecutionSummary:
        """Return an execution of a snapshot, from its steps alone."""
        first, last = steps[0], steps[-1]
        outcome = last.outcome
        return ExecutionSummary(
            id=first.execution_id,
            query=self._cut(_query_before(state, first), LONGEST_QUERY),
            status=AgentStatus.after(outcome) if outcome else AgentStatus.PENDING,
            stop_reason=outcome.stop_reason if outcome else None,
            resolved_by=outcome.resolved_by if outcome else None,
            reason=self._reason(outcome, last),
            first_step=first_step,
            step_count=len(steps),
            started_at=first.leg_started_at or first.started_at,
            ended_at=last.completed_at,
        )

    def _reason(self, outcome: ContinuationOutcome | None, step: Step | None) -> str | None:
        reason = end_error(outcome, step) if outcome else ""
        return self._cut(reason, LONGEST_REASON) if reason else None

    def _cut(self, text: str, length: int) -> str:
        return shortened(text if self._redaction is None else self._redaction.beginning(text, length), length)


def _query_before(state: AgentState, step: Step) -> str:
    before = state.messages[step.first_message - 1] if step.first_message else None
    return before.text if before is not None and before.is_user else ""


def executions_of(executions: Sequence[ExecutionSummary], first: int, last: int) -> list[ExecutionSummary]:
    """Return the latest executions, and those of the steps after `first` up to `last`."""
    begin = len(executions) - MOST_LATEST
    return [
        each
        for place, each in enumerate(executions)
        if place >= begin or (each.first_step <= last and each.first_step + each.step_count > first + 1)
    ]
