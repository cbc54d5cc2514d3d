"""What a model call used: tokens and money."""

from __future__ import annotations

from decimal import Decimal

from msgspec import Struct

from whyloop.values.times import Count


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens read and written; `cached` is part of `input`, `reasoning` is part of `output`.

    `cost` is in US dollars, None if it is unknown. `reported` is False if the provider did not report the
    usage of some call: the numbers are then a lower bound.
    """

    input: Count = 0
    output: Count = 0
    cached: Count = 0
    reasoning: Count = 0
    cost: Decimal | None = None
    reported: bool = True

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE:
            return self
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            None if self.cost is None and other.cost is None else _total_cost(self, other),
            self.reported and other.reported,
        )


NO_USAGE = Usage()
"""The default of every field: an encoder leaves exactly this value out."""


def _total_cost(one: Usage, other: Usage) -> Decimal | None:
    """Return the cost of both; unknown plus known is unknown, but nothing used costs nothing."""
    if one.cost is not None and other.cost is not None:
        return one.cost + other.cost
    if not one.total:
        return other.cost
    return None if other.total else one.cost
