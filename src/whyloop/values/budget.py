"""More of what a limit counts, granted by a person."""

from __future__ import annotations

from msgspec import Struct

from whyloop.errors import ConfigurationError

LARGEST = 10**10


class Budget(Struct, frozen=True, gc=False, omit_defaults=True):
    """Steps, tokens and seconds on top of what the limits allow, for one execution.

    What was used stays counted; it is the limit that moves, and the trace says by how much.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            whole = isinstance(value, int) or name == "seconds"
            if isinstance(value, bool) or not isinstance(value, int | float) or not whole:
                raise ConfigurationError(f"a budget's {name} is a number, not {value!r}")
            if not 0 <= value <= LARGEST:
                raise ConfigurationError(f"a budget's {name} is from zero to {LARGEST:,}")

    def __add__(self, other: Budget) -> Budget:
        return Budget(self.steps + other.steps, self.tokens + other.tokens, self.seconds + other.seconds)
