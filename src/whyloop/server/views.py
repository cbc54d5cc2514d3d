"""Sessions as clients see them, without credentials."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from whyloop.server.bodies import SessionState, SessionSummary
from whyloop.server.requests import etag_of
from whyloop.stores.reading import Reading
from whyloop.stores.records import Summary
from whyloop.stores.turns import reading_turns
from whyloop.stores.writing import summary_of
from whyloop.values.log import Log
from whyloop.values.redaction import Redaction, redacted
from whyloop.values.summaries import args_summary


class Tagged(Struct, frozen=True):
    """The body of an answer, with the entity tag of the session that it shows."""

    body: Any
    etag: str | None


_DEFAULT = Redaction()


async def summaries_view(
    summaries: Iterable[Summary], redaction: Redaction | None = _DEFAULT
) -> list[SessionSummary]:
    """Return sessions as a list shows them."""
    turns, shown = reading_turns(), []
    for summary in summaries:
        shown.append(_summary(summary, redaction, is_running=summary.runner is not None))
        await turns.take()
    return shown


def state_view(
    reading: Reading, redaction: Redaction | None = _DEFAULT, *, is_running: bool | None = None
) -> Tagged:
    """Return a session as it was read; whether it runs is what the store says, unless it is given."""
    state, listed = reading.state, reading.summary
    if is_running is None:
        is_running = listed.runner is not None
    # A session is listed anew when its status changes, and not with every step.
    latest = replace(_summary_of(reading), version=reading.version)
    body = SessionState(
        session=_summary(latest, redaction, is_running=is_running),
        execution_id=state.execution.id,
        last_response=state.last_response,
        pending_calls=redacted(msgspec.to_builtins(list(state.pending_calls)), redaction),
    )
    return Tagged(body, etag_of(listed.identity, reading.version))


def _summary_of(reading: Reading) -> Summary:
    state = reading.state
    if not state.messages.start:
        return summary_of(state)
    return replace(summary_of(replace(state, messages=Log())), title=reading.summary.title)


def _summary(summary: Summary, redaction: Redaction | None, *, is_running: bool) -> SessionSummary:
    """Return a session as a list shows it, without the runner: that is a host of the operator's."""
    return SessionSummary(
        agent_id=summary.agent_id,
        status=summary.status,
        stop_reason=summary.stop_reason,
        resolved_by=summary.resolved_by,
        reason=summary.reason and redacted(summary.reason, redaction),
        title=redacted(summary.title, redaction),
        agent=summary.agent,
        step_count=summary.step_count,
        pending=summary.pending,
        cost=summary.cost,
        started_at=summary.started_at,
        updated_at=summary.updated_at,
        parent_agent_id=summary.parent_agent_id,
        is_running=is_running,
        version=summary.version,
        metadata=redacted(msgspec.to_builtins(summary.metadata), redaction),
    )


def message_view(message: dict[str, Any], redaction: Redaction | None = _DEFAULT) -> Raw:
    """Return a message as JSON. Texts of people and models stay; those of tools may hold a credential."""
    shown = {**message}
    if "metadata" in message:
        shown["metadata"] = _metadata(redacted(message["metadata"], redaction))
    if message["role"] in ("tool", "status"):
        shown["content"] = redacted(message["content"], redaction)
    return Raw(msgspec.json.encode(shown))


def _metadata(shown: dict[str, Any]) -> dict[str, Any]:
    """Make summaries from what is shown: in one that was cut short a secret may not look like one."""
    if "tool_calls" not in shown:
        return shown
    calls = [{**call, "args_summary": args_summary(call["args"])} for call in shown["tool_calls"]]
    if "args_summary" in shown:
        shown = {**shown, "args_summary": calls[0]["args_summary"]}
    return {**shown, "tool_calls": calls}
