"""Searches of long texts, which stop after each slice so that other work can run in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

SLICE = 65_536
"""The most characters that a search reads between two turns of the event loop."""

Search = Generator[None, None, T]
"""A search that stops after each slice. It takes time in proportion to the text."""


def at_once(search: Search[T]) -> T:
    """Return the result of a search, without a turn for other work."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            result: T = end.value
            return result


def slices(text: str) -> list[str]:
    """Return the text in parts that are at most a slice long."""
    return [text[at : at + SLICE] for at in range(0, len(text), SLICE)]
