"""From a session to its summary: how lists show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from whyloop.stores.records import LONGEST_ID, Summary, searchable
from whyloop.values.continuation import ContinuationDecision, ContinuationOutcome
from whyloop.values.failure import ErrorHandlingDecision
from whyloop.values.redaction import DEFAULT_REDACTION, LONGEST, Redaction, redacted
from whyloop.values.state import AgentState
from whyloop.values.step import Step
from whyloop.values.text import shortened

LONGEST_TITLE = 80
LONGEST_REASON = 300
MOST_MARKS = 24
# A query is right before the first step of its execution, but for a note or two.
_LOOK_BACK = 8

_RETRY = ErrorHandlingDecision.RETRY
_ALLOW_STOP = ContinuationDecision.ALLOW_STOP


def summary_of(state: AgentState) -> Summary:
    """Return how a session in this state is listed. It takes the same time for a session of any length."""
    outcome, usage = state.last_continuation_outcome, state.usage
    first_query, last_query = _first_query(state), _last_query(state)
    title = shortened(first_query, LONGEST_TITLE)
    summary = Summary(
        agent_id=state.agent_id,
        status=state.status,
        started_at=state.state_info.started_at,
        updated_at=state.state_info.updated_at,
        stop_reason=state.stop_reason,
        parent_agent_id=state.parent_agent_id,
        step_count=state.step_count,
        title=title,
        metadata=state.metadata,
        identity=state.identity,
        agent=state.agent,
        resolved_by=outcome.resolved_by if outcome else None,
        reason=shortened(outcome.reason, LONGEST_REASON) if outcome and outcome.reason else None,
        pending=state.question_count,
        cost=None if usage.cost is None else str(usage.cost),
        tokens=usage.total,
        tokens_known=usage.reported,
        active_seconds=state.state_info.cumulative_execution_seconds,
        step_limit=_step_limit(outcome),
        last_query=title if last_query == first_query else shortened(last_query, LONGEST_TITLE),
        step_marks=_step_marks(state),
    )
    texts = (first_query, "" if last_query == first_query else last_query, state.last_response)
    return replace(summary, search=_search_text(summary, texts))


def summary_of_end(state: AgentState, listed: Summary) -> Summary:
    """Return how a session is listed of which only the end of its history was read.

    Args:
        listed: How the store lists the session, now or later.
    """
    found = summary_of(state)
    if not state.messages.start:
        return found
    found = replace(found, title=listed.title, search="")
    if listed.updated_at > found.updated_at:
        return found
    marks = listed.step_marks if listed.step_count == found.step_count else found.step_marks
    return replace(found, last_query=found.last_query or listed.last_query, step_marks=marks)


# Searching

LONGEST_SEARCHED = 400
"""How many characters of each text are searched; of an id, all."""


def _search_text(summary: Summary, texts: Sequence[str]) -> str:
    """Return the text in which a search looks for its words: a line for each part.

    A client of the server may search, so a search must not find what the client cannot see. Queries and
    answers are part of the chat, which shows them as they are. The reason and the metadata are shown
    without secrets: those by the default rules are removed here, and a server with rules of its own checks
    what was found (`can_find`).
    """
    lines = [summary.agent_id, *[text[:LONGEST_SEARCHED] for text in texts]]
    lines += _guarded(summary, DEFAULT_REDACTION)
    return "\n".join([searchable(line)[:LONGEST_ID] for line in lines])


def _guarded(summary: Summary, redaction: Redaction | None) -> list[str]:
    """Return the searched texts that views show without secrets."""
    reason = summary.reason and redacted(summary.reason, redaction)
    return [reason or "", _metadata_text(summary.metadata, redaction)]


def _metadata_text(metadata: Mapping[str, Any], redaction: Redaction | None) -> str:
    read: dict[str, Any] = {}
    length = 0
    for key, value in metadata.items():
        if length >= LONGEST_SEARCHED:
            break
        read[key] = value[: LONGEST_SEARCHED + LONGEST] if isinstance(value, str) else value
        length += len(key) + (len(value) if isinstance(value, str) else 1)
    texts = [
        f"{key} {value}" if isinstance(value, str) else f"{key} {msgspec.json.encode(value).decode()}"
        for key, value in redacted(read, redaction).items()
    ]
    return " ".join(texts)[:LONGEST_SEARCHED]


def can_find(summary: Summary, words: Sequence[str], redaction: Redaction | None) -> bool:
    """Return whether each word is in a text that a client sees under these rules.

    Args:
        summary: A session that a search for these words has found.
        words: The words.
        redaction: The rules by which a server removes secrets.
    """
    if redaction in (None, DEFAULT_REDACTION):
        return True
    *lines, _, _ = summary.search.split("\n")
    lines += [searchable(text) for text in _guarded(summary, redaction)]
    return all(any(word in line for line in lines) for word in words)


def _first_query(state: AgentState) -> str:
    if state.messages.start:
        return ""
    return next((message.text for message in state.messages if message.is_user), "")


def _step_limit(outcome: ContinuationOutcome | None) -> int | None:
    evaluation = outcome.evaluation_for("StepsLimit") if outcome else None
    limit = evaluation.context.get("limit") if evaluation else None
    return limit if isinstance(limit, int) and limit >= 0 else None


def _last_query(state: AgentState) -> str:
    messages, steps = state.messages, state.steps
    end, first_step = len(messages), len(steps) - state.execution.step_number
    if steps.start <= first_step < len(steps):
        end = min(end, steps[first_step].first_message)
    for index in range(end - 1, max(messages.start, end - _LOOK_BACK) - 1, -1):
        if messages[index].is_user:
            return messages[index].text
    return ""


def _step_marks(state: AgentState) -> str:
    steps = state.steps
    marks = [_mark(step) for step in steps[max(steps.start, len(steps) - MOST_MARKS) :]]
    if state.question_count:
        marks.append("p")
    return "".join(marks[-MOST_MARKS:])


def _mark(step: Step) -> str:
    outcome = step.outcome
    if outcome is not None and outcome.stop_reason is not None and step.wrap_up is None:
        return "s" if outcome.decision is _ALLOW_STOP else "f"
    if step.failures:
        is_retry = step.model_failure is not None and outcome is not None and outcome.handling is _RETRY
        return "r" if is_retry else "e"
    if any(call.approvals for call in step.tool_calls):
        return "p"
    return "e" if any(not call.success for call in step.tool_calls) else "."
