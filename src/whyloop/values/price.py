"""Money: the price of a model, and amounts of US dollars as numbers and as text."""

from __future__ import annotations

from contextlib import suppress
from decimal import ROUND_DOWN, Decimal, InvalidOperation

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from whyloop.errors import ConfigurationError
from whyloop.values.model import Usage

Dollars = Decimal | float | str
"""An amount as people write it: 0.5, 1, "0.15" or a Decimal."""

LARGEST_AMOUNT = 10**10
_LARGEST_SHOWN, _SMALLEST_SHOWN = Decimal(10**20), Decimal("0.000000000001")
_CENT = Decimal("0.01")


class Price(Struct, frozen=True, kw_only=True):
    """The price of a model, in US dollars per million tokens.

    Parts without their own price cost the same as the rest: cached and written input as much as `input`,
    reasoning as much as `output`. A model that costs nothing has `input=0, output=0`.
    """

    input: Dollars
    """The price of the tokens that the model reads."""
    output: Dollars
    """The price of the tokens that the model writes."""
    cached: Dollars | None = None
    """The price of input that comes from a cache."""
    cache_writes: Dollars | None = None
    """The price of input that is written to a cache."""
    reasoning: Dollars | None = None
    """The price of reasoning."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (value := getattr(self, name)) is not None:
                force_setattr(self, name, as_dollars(value, f"price {name}="))

    def priced(self, usage: Usage) -> Usage:
        """Return the usage with its cost; the cost stays unknown if no usage was reported.

        Args:
            usage: The tokens of an answer.
        """
        if not usage.reported:
            return replace(usage, cost=None)
        cached = min(usage.cached, usage.input)
        written = min(usage.cache_writes, usage.input - cached)
        reasoning = min(usage.reasoning, usage.output)
        parts = (
            (self.input, usage.input - cached - written),
            (self.input if self.cached is None else self.cached, cached),
            (self.input if self.cache_writes is None else self.cache_writes, written),
            (self.output, usage.output - reasoning),
            (self.output if self.reasoning is None else self.reasoning, reasoning),
        )
        per_million = sum([Decimal(price) * tokens for price, tokens in parts], Decimal(0))
        return replace(usage, cost=plain(per_million.scaleb(-6)))


def as_dollars(value: object, what: str) -> Decimal:
    """Return an amount of US dollars; refuse a negative or invalid value."""
    amount = None
    if isinstance(value, Decimal | float | int | str) and not isinstance(value, bool):
        with suppress(InvalidOperation):
            amount = Decimal(str(value))  # The shortest text of a float: 0.1, not 0.1000000000000000055.
    if amount is None or not amount.is_finite() or not 0 <= amount <= LARGEST_AMOUNT:
        raise ConfigurationError(
            f"invalid {what}{value!r}: use an amount in US dollars, from zero to {LARGEST_AMOUNT:,}"
        )
    return amount


def plain(amount: Decimal) -> Decimal:
    """Return the same amount without trailing zeros or a positive exponent."""
    reduced = amount.normalize()
    return reduced.quantize(Decimal(1)) if reduced.as_tuple().exponent > 0 else reduced  # type: ignore[operator]


def dollars(amount: Decimal) -> str:
    """Return an amount for people, rounded down: "$12.34", "$0.0123", "$0.000045"."""
    if not amount.is_finite() or amount > _LARGEST_SHOWN:  # A sum of sums; more digits than a context has.
        return f"${amount:.3g}"
    if 0 < amount < _SMALLEST_SHOWN:
        return f"less than ${_SMALLEST_SHOWN:f}"
    if amount >= 1 or not amount:
        shown = amount.quantize(_CENT, ROUND_DOWN)
    else:
        # Amounts of a cent or more have four decimals; smaller ones have their first two digits.
        decimals = 4 if amount >= _CENT else 1 - amount.adjusted()
        shown = amount.quantize(Decimal(1).scaleb(-decimals), ROUND_DOWN)
    whole, _, fraction = f"{shown:,f}".partition(".")
    return f"${whole}.{fraction.rstrip('0').ljust(2, '0')}"
