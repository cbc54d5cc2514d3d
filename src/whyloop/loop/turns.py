"""Turns of the event loop during a long search."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from whyloop.text.turns import Search

T = TypeVar("T")


async def in_turns(search: Search[T]) -> T:
    """Return the result of a search, with a turn of the event loop after each slice."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
