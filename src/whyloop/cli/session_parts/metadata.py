"""Entries of metadata, as a command line names them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from whyloop.errors import ConfigurationError
from whyloop.values.text import clean, shortened

Plain = str | int | float | bool | None


def parse_metadata(words: Iterable[str]) -> dict[str, Plain]:
    """From "key=value" to entries; a value that is JSON is taken as such, any other as text."""
    return dict(_entry(clean(word)) for word in words)


def _entry(word: str) -> tuple[str, Plain]:
    key, equals, value = word.partition("=")
    if not key or not equals:
        raise ConfigurationError(f"--metadata {shortened(word, 80)}: write key=value")
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return key, value
    if isinstance(parsed, dict | list):
        raise ConfigurationError(
            f"--metadata {shortened(word, 80)}: only text, numbers, true, false and null can be looked for"
        )
    return key, parsed
