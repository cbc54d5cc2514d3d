"""Encoded messages, kept, so that what was encoded of a history is not encoded again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from whyloop.values.messages import Message

MOST_BYTES = 64 * 1024 * 1024
LARGEST_BYTES = 256 * 1024


class Fragments:
    """The JSON of each message of the histories at hand, by the identity of the message.

    Messages are frozen and a history only ever grows, so a message that was encoded once stays
    encoded. The oldest go when there is too much; what is very large, a picture, is not kept at all.
    """

    def __init__(self, encode: Callable[[Message], bytes], most: int = MOST_BYTES) -> None:
        self._encode = encode
        self._most = most
        self._size = 0
        self._changing = threading.Lock()
        # The message is kept beside its bytes: an identity means something only while it is alive.
        self._kept: dict[int, tuple[Message, bytes]] = {}

    def of(self, messages: Iterable[Message]) -> list[bytes]:
        """The fragments of these messages, in order."""
        kept, fragments = self._kept, []
        for message in messages:
            found = kept.get(id(message))
            fragments.append(found[1] if found is not None and found[0] is message else self._added(message))
        return fragments

    def _added(self, message: Message) -> bytes:
        fragment = self._encode(message)
        if len(fragment) > LARGEST_BYTES:
            return fragment
        with self._changing:
            replaced = self._kept.pop(id(message), None)
            self._kept[id(message)] = (message, fragment)
            self._size += len(fragment) - (len(replaced[1]) if replaced else 0)
            while self._size > self._most and len(self._kept) > 1:
                oldest = next(iter(self._kept))
                self._size -= len(self._kept.pop(oldest)[1])
        return fragment
