"""How long to wait before a failed model call is made again."""

from __future__ import annotations

from math import isfinite

from msgspec import Struct

from whyloop.errors import ConfigurationError


class Backoff(Struct, frozen=True):
    """Exponential, with jitter; a provider's own wish (`Retry-After`) comes first. Never above the cap."""

    base: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not (
            0 < self.base <= self.cap and isfinite(self.cap) and self.factor >= 1 and 0 <= self.jitter <= 1
        ):
            raise ConfigurationError(
                f"{self!r}: base is above zero and at most cap, factor is 1 or more, jitter is from 0 to 1"
            )

    def delay(self, failures: int, randomness: float, retry_after: float | None = None) -> float:
        """Seconds to wait after this many failures in a row; `randomness` is from 0 to 1."""
        if retry_after is not None and retry_after >= 0:
            return min(retry_after, self.cap)
        exponent = min(max(0, failures - 1), 64)  # beyond that every delay is the cap anyway
        full = min(self.cap, self.base * self.factor**exponent)
        return full * (1 - self.jitter * randomness)
