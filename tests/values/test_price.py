"""Prices of models, and the cost of usage: unknown is not zero."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from whyloop import Budget, Price, Usage
from whyloop.errors import ConfigurationError
from whyloop.values.model import NO_USAGE
from whyloop.values.price import as_dollars, dollars

PRICE = Price(input=1, output=10, cached="0.1", cache_writes=1.25, reasoning=20)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(1_000_000), "1"),
        (Usage(0, 1_000_000), "10"),
        (Usage(1_000_000, 0, cached=400_000), "0.64"),
        (Usage(1_000_000, 0, cache_writes=400_000), "1.1"),
        (Usage(1_000_000, 0, cached=200_000, cache_writes=400_000), "0.92"),
        (Usage(0, 1_000_000, reasoning=500_000), "15"),
        (Usage(1, 0), "0.000001"),
        (Usage(), "0"),
    ],
)
def test_each_part_of_the_usage_has_its_price(usage: Usage, cost: str) -> None:
    priced = PRICE.priced(usage)
    assert (priced.cost, str(priced.cost)) == (Decimal(cost), cost)
    assert (priced.total, priced.cached, priced.reasoning) == (usage.total, usage.cached, usage.reasoning)


def test_a_part_without_a_price_costs_as_much_as_the_whole() -> None:
    usage = Usage(100, 100, cached=40, cache_writes=40, reasoning=40)
    assert Price(input=3, output=5).priced(usage).cost == Decimal("0.0008")


@pytest.mark.parametrize("usage", [Usage(10, 0, cached=90), Usage(10, 0, 9, cache_writes=9)])
def test_parts_above_the_whole_make_nothing_cheaper_than_all_of_it(usage: Usage) -> None:
    cost = PRICE.priced(usage).cost
    assert cost is not None
    assert cost >= Decimal("0.000001")


def test_a_usage_that_was_not_reported_has_no_cost() -> None:
    assert PRICE.priced(Usage(10, cost=Decimal(1), reported=False)).cost is None


def test_floats_are_taken_as_they_are_written() -> None:
    assert Price(input=0.1, output=0.2).priced(Usage(1_000_000, 1_000_000)).cost == Decimal("0.3")


@pytest.mark.parametrize(
    "bad", [-1, "-0.01", float("nan"), float("inf"), "1 dollar", "", True, [], 10**11, Decimal("NaN")]
)
@pytest.mark.parametrize("field", ["input", "output", "cached", "cache_writes", "reasoning"])
def test_a_price_that_is_not_an_amount_is_refused(field: str, bad: Any) -> None:
    given: dict[str, Any] = {"input": 1, "output": 1, field: bad}
    with pytest.raises(ConfigurationError, match=rf"invalid price {field}=.*: use an amount in US dollars"):
        Price(**given)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "$0.00"),
        ("0E-9", "$0.00"),
        ("1", "$1.00"),
        ("12.345", "$12.34"),
        ("1234567.891", "$1,234,567.89"),
        ("0.5", "$0.50"),
        ("0.49999", "$0.4999"),
        ("0.01", "$0.01"),
        ("0.0123456", "$0.0123"),
        ("0.00999", "$0.0099"),
        ("0.00004567", "$0.000045"),
        ("1E-7", "$0.0000001"),
    ],
)
def test_an_amount_for_people_is_rounded_down(amount: str, text: str) -> None:
    assert dollars(Decimal(amount)) == text


@given(st.decimals(0, 10**9, places=9))
def test_an_amount_for_people_is_never_above_the_amount(amount: Decimal) -> None:
    assert Decimal(dollars(amount).replace("$", "").replace(",", "")) <= amount


# Sums

counts = st.integers(0, 3)
costs = st.none() | st.decimals(0, 3, places=2)
usages = st.builds(Usage, counts, counts, counts, counts, costs, st.booleans(), counts)


@given(usages, usages, usages)
def test_the_order_of_a_sum_does_not_matter(one: Usage, two: Usage, three: Usage) -> None:
    assert (one + two) + three == one + (two + three)
    assert one + two == two + one
    assert one + NO_USAGE == one == NO_USAGE + one == one + Usage()


@given(st.lists(usages))
def test_a_sum_with_an_unknown_cost_is_unknown(parts: list[Usage]) -> None:
    total = sum(parts, NO_USAGE)
    if any(part.is_unpriced for part in parts):
        assert total.is_unpriced
        assert (total.known_cost or 0) == sum(part.cost or 0 for part in parts)
    else:
        assert (total.cost or 0) == sum(part.cost or 0 for part in parts)


def test_unknown_plus_known_is_unknown() -> None:
    known = Usage(1, 1, cost=Decimal("0.5"))
    assert (known + Usage(1, 1)).cost is None
    assert (known + Usage(reported=False)).cost is None
    assert (known + Usage()).cost == Decimal("0.5")
    assert (known + known).cost == Decimal("1.0")


# Budgets


def test_a_budget_of_money_is_exact() -> None:
    total = Budget(usd=0.1) + Budget(steps=1, usd=Decimal("0.2"))
    assert total == Budget(steps=1, usd=Decimal("0.3")) == Budget(steps=1, usd="0.3")


def test_amounts_of_other_kinds_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="invalid budget usd=-1: use an amount in US dollars"):
        Budget(usd=-1)
    with pytest.raises(ConfigurationError):
        as_dollars(object(), "cost ")
