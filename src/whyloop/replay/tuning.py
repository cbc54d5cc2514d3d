"""Tuning: good values for the limits of an agent, from its recorded runs."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence

from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.replay.interval import share_interval
from whyloop.replay.recording import AnyRun, Filters
from whyloop.replay.result import Amounts
from whyloop.replay.survey import Row, Survey, survey
from whyloop.rules.limits import (
    CostLimit,
    CumulativeExecutionTimeLimit,
    ExecutionTimeLimit,
    Limit,
    StepsLimit,
    TokenUsageLimit,
)
from whyloop.stores.store import Store
from whyloop.values.text import counted

_ROUND = (10, 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90)
_STEPS = (*range(1, 61), *range(65, 101, 5), *range(110, 201, 10), *range(250, 1001, 50))
_TOKENS = [number * 10**power for power in range(1, 7) for number in _ROUND]
_SECONDS = [number * 10**power / 100 for power in range(1, 8) for number in _ROUND]
_DOLLARS = [f"{number * 10**power / 100_000:.5f}" for power in range(1, 8) for number in _ROUND]

# Each limit by its keyword of `Agent`, with the values to try and the amount that it mainly saves.
LIMITS: dict[str, Callable[[], list[Limit]]] = {
    "max_steps": lambda: [StepsLimit(value) for value in _STEPS],
    "max_tokens": lambda: [TokenUsageLimit(value) for value in _TOKENS],
    "timeout": lambda: [ExecutionTimeLimit(value) for value in _SECONDS],
    "cumulative_timeout": lambda: [CumulativeExecutionTimeLimit(value) for value in _SECONDS],
    "max_cost": lambda: [CostLimit(value, unknown="allow") for value in _DOLLARS],
}
_MEASURES = {"timeout": "seconds", "cumulative_timeout": "seconds", "max_cost": "cost"}
# The amount that a limit counts, and the text if it is unknown.
_COUNTED = {
    "max_tokens": ("tokens", "no tokens are known"),
    "timeout": ("seconds", "no time is known"),
    "cumulative_timeout": ("seconds", "no time is known"),
    "max_cost": ("cost", "no cost is known"),
}
_NAMES = {"steps": "steps", "tokens": "tokens", "seconds": "the time", "cost": "the cost"}


LEAST_RUNS = 30
"""The number of completed runs below which no value is recommended.

If a value cuts none of 30, it may still cut up to 12 % of the next ones; with ten runs, 31 %.
"""


class Curve(Struct, frozen=True):
    """The cuts and savings of each value of one limit."""

    name: str
    """The limit, by its keyword of an agent: `max_steps`."""
    rows: tuple[Row, ...]
    """One row for each value, from the last that cuts the most runs to the first that cuts none."""
    measure: str
    """The amount that the limit is meant to save: `tokens`, `seconds`, `cost` or `steps`."""
    knee: float | None
    """The value above which few more completed runs are kept; None if the curve is flat."""
    recommended: float | None
    """The lowest value that keeps the requested share of completed runs; None if none does, or if fewer than
    `LEAST_RUNS` had completed."""
    sentence: str
    """The recommendation in words, with its numbers."""
    interval: tuple[float, float] | None = None
    """The share of future completed runs that the recommended value would cut: a 95 % interval, 0 to 1."""

    def share(self, row: Row, used: Amounts) -> float | None:
        """Return the share that a value would have saved, from 0 to 1, or None.

        Args:
            row: The row of the value.
            used: What all runs used.
        """
        return _share(self.measure, row, used)


def rules_for(limits: Iterable[str] = ("max_steps", "max_tokens", "timeout", "max_cost")) -> list[Limit]:
    """Return the values of these limits to survey.

    Args:
        limits: The limits, by their keywords of an agent. Default: those on steps, tokens, time and cost.
    """
    rules: list[Limit] = []
    for name in limits:
        if name not in LIMITS:
            raise ConfigurationError(f"invalid limit {name!r}: choose from {', '.join(LIMITS)}")
        rules += LIMITS[name]()
    return rules


async def tune(
    source: Store | Iterable[AnyRun] | AsyncIterable[AnyRun],
    limits: Iterable[str] = ("max_steps", "max_tokens", "timeout", "max_cost"),
    *,
    keep: float = 1.0,
    filters: Filters | None = None,
) -> list[Curve]:
    """Return a curve over the values of each limit, with a recommendation.

    Args:
        source: A store, or states and other recorded runs.
        limits: The limits, by their keywords of an agent. Default: those on steps, tokens, time and cost.
        keep: The share of completed runs that a recommended value must not cut. Default: 1.0, all.
        filters: The conditions that sessions of a store must meet. Default: none.
    """
    return curves_of(await survey(source, rules_for(limits), filters=filters), keep=keep)


def curves_of(found: Survey, *, keep: float = 1.0, period: str = "") -> list[Curve]:
    """Return the curves of a survey of `rules_for` limits.

    Args:
        found: The survey.
        keep: The share of completed runs that a recommended value must not cut. Default: 1.0, all.
        period: The end of the sentence about the runs: "of the last 30 days". Default: none.
    """
    if not 0 < keep <= 1:
        raise ConfigurationError(f"invalid keep {keep!r}: use a share above 0 and up to 1")
    by_kind: dict[object, list[Row]] = {}
    for row in found.rows:
        by_kind.setdefault(type(row.rule), []).append(row)
    kinds = {type(make()[0]): name for name, make in LIMITS.items()}
    return [_curve(kinds[kind], rows, found, keep, period) for kind, rows in by_kind.items()]  # type: ignore[index]


def _curve(name: str, rows: Sequence[Row], found: Survey, keep: float, period: str) -> Curve:
    rows = sorted(rows, key=_value)
    end = next((index for index, row in enumerate(rows) if not row.cut), len(rows) - 1)
    cuts = [(row.cut, row.saved.steps) for row in rows]
    start = next((index for index in range(end) if cuts[index] != cuts[index + 1]), 0)
    rows = rows[start : end + 1]
    measure = _MEASURES.get(name, "tokens")
    if measure == "tokens" and not found.used.tokens:
        measure = "steps"
    enough = found.completed >= LEAST_RUNS
    allowed = found.completed - int(-(-found.completed * keep // 1)) if keep < 1 else 0
    chosen = next((row for row in rows if row.completed <= allowed), None)
    recommended = chosen if enough and chosen is not None and chosen.cut else None
    return Curve(
        name,
        tuple(rows),
        measure,
        _knee(rows, found),
        None if recommended is None else _value(recommended),
        _sentence(name, chosen, found, measure, period),
        None if recommended is None else share_interval(recommended.completed, found.completed),
    )


def _value(row: Row) -> float:
    value: float = row.rule.limit
    return value


def _share(measure: str, row: Row, used: Amounts) -> float | None:
    saved, total = getattr(row.saved, measure), getattr(used, measure)
    return None if not total else float(saved) / float(total)


def _knee(rows: Sequence[Row], found: Survey) -> float | None:
    """Return the value where the curve of kept runs is furthest above its chord."""
    kept = [found.completed - row.completed for row in rows]
    if len(rows) < 3 or kept[0] == kept[-1]:
        return None
    span, rise = len(rows) - 1, kept[-1] - kept[0]
    heights = [(each - kept[0]) / rise - index / span for index, each in enumerate(kept)]
    best = max(range(len(rows)), key=lambda index: heights[index])
    return _value(rows[best]) if heights[best] > 0 else None


def _sentence(name: str, row: Row | None, found: Survey, measure: str, period: str) -> str:
    of = f" {period}" if period else ""
    if not found.runs:
        return f"{name}: there are no runs to judge."
    measured, unknown = _COUNTED.get(name, ("steps", ""))
    if unknown and not getattr(found.used, measured):
        return f"{name}: {unknown}, so no value can be judged."
    if row is None:
        return f"{name}: every value that was tried cuts completed runs{of}."
    if not row.cut:
        return f"{name}: no value saves anything without cutting completed runs{of}."
    if found.completed < LEAST_RUNS:
        return (
            f"{name}: no recommendation from {counted(found.completed, 'completed run')}{of}: "
            f"it takes at least {LEAST_RUNS}."
        )
    share = _share(measure, row, found.used)
    saved = "" if share is None else f" and saves {percent(share)} of {_NAMES[measure]}"
    kept = "every completed run"
    if row.completed:
        kept = f"{percent((found.completed - row.completed) / found.completed)} of completed runs"
    cut = f"it would have cut {row.cut:,} of {counted(found.runs, 'run')}"
    low, high = share_interval(row.completed, found.completed)
    return (
        f"{name}={value_text(name, _value(row))} keeps {kept}{of}{saved}; {cut}. Of future runs that would "
        f"complete, it may cut {percent(low)} to {percent(high)} (95 % interval)."
    )


def percent(share: float) -> str:
    """Return a share as text: "11 %"."""
    number = share * 100
    if 0 < number < 0.1:
        return "less than 0.1 %"
    return f"{number:.1f} %" if number < 10 or 99 < number < 100 else f"{number:.0f} %"


def value_text(name: str, value: float) -> str:
    """Return the value of a limit as it is written in code.

    Args:
        name: The limit, by its keyword.
        value: The value.
    """
    return f"{value:_}" if isinstance(value, int) else f"{value:g}"
