"""The interval of a share that was counted in a few runs."""

from __future__ import annotations

from math import exp, lgamma, log, log1p

CONFIDENCE = 0.95


def share_interval(count: int, total: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a share, from 0 to 1.

    It holds for any number of runs and also if nothing was counted, where a normal approximation says zero.
    And it holds although the value of the limit was chosen on the same runs: how much of the future lies
    above the k-th largest run does not depend on how they are distributed, and has exactly this upper bound.

    Args:
        count: How many were counted.
        total: Among how many.
        confidence: How often such intervals contain the share. Default: 0.95.
    """
    tail = (1 - confidence) / 2
    lower = 0.0 if count == 0 else _quantile(tail, count, total - count + 1)
    upper = 1.0 if count == total else _quantile(1 - tail, count + 1, total - count)
    return lower, upper


def _quantile(share: float, a: float, b: float) -> float:
    """Return where the distribution function of a beta distribution has a value."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _beta(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """Return the distribution function of a beta distribution (the regularised incomplete beta function)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # There its continued fraction converges slowly.
        return 1 - _beta(1 - x, b, a)
    front = exp(a * log(x) + b * log1p(-x) + lgamma(a + b) - lgamma(a) - lgamma(b)) / a
    return front * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function, by the method of Lentz."""
    tiny, c = 1e-300, 1.0
    d = 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    result = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            result *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return result
