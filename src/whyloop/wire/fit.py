"""Making a snapshot fit a size, by asking for less of it until it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.wire.config import SlimSerializationConfig

Document = dict[str, Any]
Write = Callable[[SlimSerializationConfig], Document]

# What is given up, in this order, and how far. The trace of all steps and the arguments are asked for on
# top of a conversation, so they go before any message does; people's own notes are the last to go.
_CONCESSIONS: tuple[tuple[str, int], ...] = (
    ("max_content_length", 200),
    ("include_all_steps", False),
    ("include_tool_args", False),
    ("max_messages", 1),
    ("max_content_length", 1),
    ("include_metadata", False),
)


def fitted(write: Write, config: SlimSerializationConfig, message_count: int) -> Document:
    """The most detailed document within `max_bytes`; status, outcome and the last query are always in it."""
    document = write(config)
    most = config.max_bytes
    if most is None or size_of(document) <= most:
        return document
    # A text as long as the whole snapshot cannot be in it.
    config = replace(
        config,
        max_content_length=min(config.max_content_length or most, most),
        max_messages=min(config.max_messages or message_count, message_count) or 1,
    )
    for field, least in _CONCESSIONS:
        before = getattr(config, field)
        if before <= least:
            continue
        config = replace(config, **{field: least})
        document = write(config)
        if size_of(document) <= most:
            return _loosest(write, config, field, before, document)
    raise ConfigurationError(
        f"SlimSerializationConfig: max_bytes={most} is too small for this session, "
        f"whose smallest snapshot has {size_of(document)} bytes"
    )


def size_of(document: Document) -> int:
    """The bytes of its JSON in the longest of the usual forms: spaced, and in ASCII only."""
    return len(json.dumps(document))


def _loosest(
    write: Write, config: SlimSerializationConfig, field: str, high: int, fits: Document
) -> Document:
    """The document with as much of the field as there is room for, within a few percent."""
    low, most = getattr(config, field), config.max_bytes or 0
    while high - low > 1 + low // 32:
        middle = (low + high) // 2
        document = write(replace(config, **{field: middle}))
        if size_of(document) <= most:
            low, fits = middle, document
        else:
            high = middle
    return fits
