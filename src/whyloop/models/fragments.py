"""Encoded messages, kept, so that what was encoded of a history is not encoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whyloop.values.messages import Message


class Fragments:
    """The JSON of each message of the histories at hand, by the identity of the message.

    Messages are frozen and a history only ever grows, so a message that was encoded once stays
    encoded. The oldest go when there are too many.
    """

    def __init__(self, encode: Callable[[Message], bytes], most: int = 20_000) -> None:
        self._encode = encode
        self._most = most
        # The message is kept beside its bytes: an identity means something only while it is alive.
        self._kept: dict[int, tuple[Message, bytes]] = {}

    def of(self, messages: Iterable[Message]) -> list[bytes]:
        """The fragments of these messages, in order."""
        kept, fragments = self._kept, []
        for message in messages:
            found = kept.get(id(message))
            if found is None or found[0] is not message:
                found = kept[id(message)] = (message, self._encode(message))
                if len(kept) > self._most:
                    del kept[next(iter(kept))]
            fragments.append(found[1])
        return fragments
