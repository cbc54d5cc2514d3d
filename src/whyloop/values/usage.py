"""What a model call cost, in tokens."""

from __future__ import annotations

from msgspec import Struct

from whyloop.values.times import Count


class Usage(Struct, frozen=True, gc=False):
    """Tokens read and written; `cached` is part of `input`, `reasoning` is part of `output`."""

    input: Count = 0
    output: Count = 0
    cached: Count = 0
    reasoning: Count = 0

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
        )
