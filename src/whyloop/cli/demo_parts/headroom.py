"""How much of each limit is used, as the limits themselves report it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from whyloop.values.continuation import ContinuationEvaluation
from whyloop.values.text import shortened

_LABELS = {
    "StepsLimit": ("steps", ""),
    "TokenUsageLimit": ("tokens", ""),
    "ExecutionTimeLimit": ("time", " s"),
    "CumulativeExecutionTimeLimit": ("work", " s"),
}


class Headroom(NamedTuple):
    """One limit: what it is on, how much is used, how much there is."""

    label: str
    used: float
    limit: float
    unit: str

    @property
    def share(self) -> float:
        """The part that is used, from 0 to 1."""
        return min(1.0, max(0.0, self.used / self.limit))

    def __str__(self) -> str:
        used = f"{self.used:,.1f}" if self.unit else f"{self.used:,.6g}"
        return f"{used} of {self.limit:,.6g}{self.unit}"


def headroom_of(evaluations: Iterable[ContinuationEvaluation]) -> list[Headroom]:
    """Every limit among the evaluations; a rule of the user's own counts if it reports its numbers."""
    return [found for said in evaluations if (found := _headroom(said)) is not None]


def _headroom(said: ContinuationEvaluation) -> Headroom | None:
    used, limit = said.context.get("used"), said.context.get("limit")
    if not isinstance(used, int | float) or not isinstance(limit, int | float) or limit <= 0:
        return None
    label, unit = _LABELS.get(said.criterion, (shortened(said.criterion, 24), ""))
    return Headroom(label, used, limit, unit)
