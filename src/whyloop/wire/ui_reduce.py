"""What a live client does with each envelope."""

from __future__ import annotations

from collections.abc import Sequence

from whyloop.wire.ui_events import ENDED, EVENTS, Envelope, apply
from whyloop.wire.ui_live import Live, completed_steps
from whyloop.wire.ui_message import UiMessage, continuation_of, metadata_of
from whyloop.wire.ui_words import whole

# So many envelopes wait for one that is missing; then it goes on without.
WINDOW = 8


def reduce(messages: list[UiMessage], envelope: Envelope, *, in_order: bool = False) -> list[UiMessage]:
    """The messages after an envelope, in a new list; the same list where it changes nothing.

    An envelope that was heard already, or that says nothing of use, is ignored. One that comes too
    early is held until those before it are there, or too many wait, or the execution has ended. A
    run that is resumed may be told by somebody who counts from one again. One that was under way
    when the next of its session begins is over, and nothing more is heard of it.

    `in_order` is for a line on which nothing comes late, such as a server's replay: what is missing
    before an envelope is not waited for.
    """
    if not _is_readable(envelope):
        return messages
    live, seq = Live(messages, envelope["execution_id"]), int(envelope["seq"])
    if live.is_over:
        return messages
    if not live.is_known:
        if not _is_news(messages, envelope):
            return messages
        live.begin(envelope)
        apply(live, envelope)
        return live.messages
    if seq <= live.known["seq"] and _is_restart(live, envelope):
        live.hear(envelope)
        live.note(held=None)
        apply(live, envelope)
        return live.messages
    held = {early["seq"]: early for early in live.known.get("held", [])}
    if seq <= live.known["seq"] or (seq in held and not in_order):
        return messages
    waiting = sorted({seq: envelope, **held}.values(), key=lambda early: int(early["seq"]))
    at_once = any(_is_ending(early) for early in waiting)
    due = seq if in_order else 0
    while waiting and (
        waiting[0]["seq"] <= max(due, live.known["seq"] + 1) or len(waiting) > WINDOW or at_once
    ):
        following = waiting.pop(0)
        live.hear(following)
        apply(live, following)
    live.note(held=waiting or None)
    return live.messages


def _is_readable(envelope: object) -> bool:
    return (
        isinstance(envelope, dict)
        and whole(envelope.get("v")) == 1
        and isinstance(envelope.get("event"), str)
        and envelope["event"] in EVENTS
        and bool(whole(envelope.get("seq")))
        and isinstance(envelope.get("execution_id"), str)
        and isinstance(envelope.get("timestamp"), str)
        and isinstance(envelope.get("data"), dict)
    )


def _is_news(messages: Sequence[UiMessage], envelope: Envelope) -> bool:
    """False for what comes late, about an execution whose end is in the history."""
    execution_id, data = envelope["execution_id"], envelope["data"]
    own = (m for m in reversed(messages) if metadata_of(m).get("execution_id") == execution_id)
    end = continuation_of(next(own, {}))
    if end.get("should_continue") is not False:
        return True
    if end.get("stop_reason") == "completed":
        return False
    if envelope["event"] == "agent.status" and data.get("status") == "in_progress":
        step = (whole(data.get("step_count")) or 0) + 1
    else:
        step = whole(data.get("step_number")) or 0
    return step > completed_steps(messages, execution_id)


def _is_restart(live: Live, envelope: Envelope) -> bool:
    """True if an execution that has ended or paused goes on; false for its old start that comes again."""
    return (
        envelope["event"] == "agent.status"
        and envelope["data"].get("status") == "in_progress"
        and live.verdict.get("should_continue") is False
        and envelope["timestamp"] >= live.heard_at
    )


def _is_ending(envelope: Envelope) -> bool:
    status = envelope["data"].get("status")
    return envelope["event"] == "agent.status" and (status in ENDED or status == "paused")
