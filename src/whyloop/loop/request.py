"""The parts of a model request that are not in the history, recorded once each, by hash."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from whyloop.values import plain
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.model import ModelRequest, ToolSpec
from whyloop.values.step import RequestPart, RequestRecord

_HASH_LENGTH = 16


class RequestParts(Struct, frozen=True):
    """What every request of an agent has in common: how it is recorded, and the texts behind it."""

    record: RequestRecord
    parts: tuple[RequestPart, ...]

    @classmethod
    def of(cls, instructions: str | None, tools: tuple[ToolSpec, ...]) -> RequestParts:
        given = None if instructions is None else _part(instructions)
        offered = _part(_json(tools)) if tools else None
        record = RequestRecord(given.hash if given else None, offered.hash if offered else None)
        return cls(record, tuple([part for part in (given, offered) if part is not None]))

    def changed(self, before: ModelRequest, sent: ModelRequest, changed_by: tuple[str, ...]) -> RequestParts:
        """Return the record of a request that hooks changed, with the texts that it needs."""
        if not changed_by:
            return self
        own = RequestParts.of(sent.instructions, sent.tools)
        record, parts = replace(own.record, changed_by=changed_by), list(own.parts)
        if sent.messages is not before.messages:
            places, added = _places(before.messages, sent.messages)
            record = replace(record, messages=places)
            parts += added
        return RequestParts(record, tuple(parts))


def _places(
    history: Sequence[Message], sent: Sequence[Message]
) -> tuple[tuple[tuple[int, int] | str, ...], list[RequestPart]]:
    """Return where each message of a request is found: ranges of the history, or hashes of new texts."""
    index_of = {id(message): index for index, message in enumerate(Log.of(history))}
    places: list[tuple[int, int] | str] = []
    parts: list[RequestPart] = []
    for message in sent:
        index = index_of.get(id(message))
        if index is None:
            part = _part(_json(message))
            parts.append(part)
            places.append(part.hash)
            continue
        last = places[-1] if places else None
        if isinstance(last, tuple) and last[1] == index:
            places[-1] = (last[0], index + 1)
        else:
            places.append((index, index + 1))
    return tuple(places), parts


def _part(text: str) -> RequestPart:
    return RequestPart(sha256(text.encode("utf-8", "replace")).hexdigest()[:_HASH_LENGTH], text)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=plain.describe).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(plain.encode(value)).decode()
