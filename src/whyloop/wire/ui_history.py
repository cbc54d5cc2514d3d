"""When the history comes: it takes the place of what was put together from envelopes."""

from __future__ import annotations

from collections.abc import Sequence

from whyloop.wire.ui_message import UiMessage, is_status, metadata_of


def reconcile(streamed: Sequence[UiMessage], canonical: Sequence[UiMessage]) -> list[UiMessage]:
    """The history as it is stored, in the place of what was streamed.

    Two things of what was streamed stay: an error of the client's own, such as a lost connection,
    after the message that it came after; and at the end what a user has sent that is not stored yet.
    """
    places = {message["id"]: index for index, message in enumerate(canonical)}
    by_call = {
        call_id: index
        for index, message in enumerate(canonical)
        if (call_id := metadata_of(message).get("tool_call_id")) is not None
    }
    kept: dict[int, list[UiMessage]] = {}
    last = len(canonical) - 1
    place = last
    for message in streamed:
        known = places.get(message["id"], by_call.get(metadata_of(message).get("tool_call_id")))
        if known is not None:
            place = known
        elif is_status(message, "error") and metadata_of(message).get("execution_id") is None:
            kept.setdefault(place, []).append(message)
    merged = kept.get(-1, []) if last < 0 else []
    for index, message in enumerate(canonical):
        merged += [message, *kept.get(index, [])]
    return merged + _not_stored_yet(streamed, canonical)


def _not_stored_yet(streamed: Sequence[UiMessage], canonical: Sequence[UiMessage]) -> list[UiMessage]:
    """What the user has sent beyond what the history has, with no answer to it so far."""
    answered = max((i for i, message in enumerate(streamed) if message["role"] in _ANSWERS), default=-1)
    more = _questions(streamed) - _questions(canonical)
    sent = [message for message in streamed[answered + 1 :] if message["role"] == "user"]
    return sent[max(0, len(sent) - more) :] if more > 0 else []


_ANSWERS = ("assistant", "tool")


def _questions(messages: Sequence[UiMessage]) -> int:
    return sum(message["role"] == "user" for message in messages)
