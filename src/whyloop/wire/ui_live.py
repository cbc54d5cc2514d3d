"""A list of messages while an execution is under way.

Everything that is known about the execution is in the list: its status, the last message of it, also
remembers how far the envelopes have been heard, and holds those that came too early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whyloop.wire.ui_message import (
    UiMessage,
    continuation_of,
    metadata_of,
    position,
    status_id,
    status_message,
    with_metadata,
)
from whyloop.wire.ui_words import text, whole


class Live:
    """The messages of a UI while one envelope after the other changes them."""

    def __init__(self, messages: Sequence[UiMessage], execution_id: str) -> None:
        self.messages = list(messages)
        self.execution_id = execution_id
        # True if what comes just before the latest envelope was not heard.
        self.after_gap = True
        self._status = position(messages, status_id(execution_id))

    @property
    def is_known(self) -> bool:
        """True if an envelope of the execution was heard before; a history knows of none."""
        return self._status >= 0 and bool(self.known.get("seq"))

    @property
    def is_over(self) -> bool:
        """True if another execution has begun since, so that nothing more is heard of this one."""
        return self._status >= 0 and "seq" not in self.known

    def begin(self, envelope: Mapping[str, Any]) -> None:
        """The first envelope that is heard of an execution, wherever it is by then."""
        if self._status < 0:
            step = completed_steps(self.messages, self.execution_id) + 1
            agent_id, told_at = text(envelope.get("agent_id")), envelope["timestamp"]
            self._status = len(self.messages)
            self.messages.append(status_message(self.execution_id, agent_id, step, "", told_at))
        self.hear(envelope)
        self.after_gap = True

    def hear(self, envelope: Mapping[str, Any]) -> None:
        """Remember how far the envelopes have been heard, and of what moment the last one told."""
        self.after_gap = envelope["seq"] != self.known["seq"] + 1
        self.note(seq=int(envelope["seq"]))
        self.messages[self._status] = {**self.messages[self._status], "timestamp": envelope["timestamp"]}

    # The status

    @property
    def known(self) -> Mapping[str, Any]:
        """What is known about the execution."""
        return metadata_of(self.messages[self._status])

    @property
    def verdict(self) -> Mapping[str, Any]:
        """What was decided last about the execution."""
        return continuation_of(self.messages[self._status])

    @property
    def heard_at(self) -> str:
        """The moment that the last envelope told of."""
        moment: str = self.messages[self._status]["timestamp"]
        return moment

    @property
    def step(self) -> int:
        step: int = self.known["step_number"]
        return step

    def note(self, **entries: object) -> None:
        """Remember something about the execution; None forgets it."""
        self.messages[self._status] = with_metadata(self.messages[self._status], **entries)

    def say(self, status_type: str, words: str) -> None:
        self.note(status_type=status_type)
        self.messages[self._status] = {**self.messages[self._status], "content": words}

    def end_others(self) -> None:
        """A session runs one execution at a time: what was under way when this one began is over.

        Agents within a tool have sessions of their own. What it has said is left to the history.
        """
        over = {
            metadata_of(message).get("execution_id")
            for message in self.messages
            if _is_under_way(message)
            and metadata_of(message).get("agent_id") == self.known.get("agent_id")
            and message["timestamp"] <= self.heard_at
        } - {self.execution_id, None}
        if over:
            self.messages = [
                _ended(message) if metadata_of(message).get("execution_id") in over else message
                for message in self.messages
            ]

    # The other messages

    def get(self, id: str) -> UiMessage | None:
        place = position(self.messages, id)
        return self.messages[place] if place >= 0 else None

    def put(self, message: UiMessage) -> None:
        """The message in the place of the one with its id, or as a new one."""
        place = position(self.messages, message["id"])
        if place >= 0:
            self.messages[place] = message
        else:
            self.messages.insert(self._status, message)
            self._status += 1

    def drop(self, id: str) -> None:
        place = position(self.messages, id)
        if place >= 0:
            del self.messages[place]
            self._status -= place < self._status


def completed_steps(messages: Sequence[UiMessage], execution_id: str) -> int:
    """How many steps of an execution the messages show to be at their end."""
    own = [metadata_of(m) for m in messages if metadata_of(m).get("execution_id") == execution_id]
    last = max((whole(known.get("step_number")) or 0 for known in own), default=0)
    is_open = any(
        known.get("status_type") == "tool_call" and known.get("step_number") == last for known in own
    )
    return last - 1 if is_open else last


def is_running(messages: Sequence[UiMessage]) -> bool:
    """True while an execution is under way, as far as its envelopes and the history tell."""
    return any(map(_is_under_way, messages))


def _is_under_way(message: UiMessage) -> bool:
    return (
        message.get("role") == "status"
        and "seq" in metadata_of(message)
        and continuation_of(message).get("should_continue") is not False
    )


def _ended(message: UiMessage) -> UiMessage:
    """A message of an execution that is over; its status has heard all that it will."""
    if _is_under_way(message):
        return {**with_metadata(message, status_type="info", seq=None, held=None), "content": ""}
    return with_metadata(message, streaming=None)


def missing(messages: Sequence[UiMessage]) -> list[dict[str, Any]]:
    """The envelopes that have not come while later ones have: `{execution_id, first, last}`."""
    return [
        {"execution_id": m["execution_id"], "first": m["seq"] + 1, "last": int(m["held"][0]["seq"]) - 1}
        for m in map(metadata_of, messages)
        if m.get("held")
    ]
