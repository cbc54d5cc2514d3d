"""The repeats of a request that failed before the first piece of its answer."""

from __future__ import annotations

from whyloop.errors import ConfigurationError
from whyloop.loop.attempts import randomness, wait_to_repeat
from whyloop.rules.error_policy import Backoff
from whyloop.values.model import ModelAttempt

DEFAULT_RETRIES = 2
MOST_SECONDS = 8.0
"""The longest wait of one request in all; what asks for more is left to the error policy."""

_BACKOFF = Backoff(base=0.5, cap=MOST_SECONDS)


class Repeats:
    """The attempts of one request.

    Args:
        most: The number of repeats.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._planned = 0.0
        self.attempts: list[ModelAttempt] = []
        """The attempts that failed and were repeated."""

    async def wait_after(self, failure: str, error: Exception) -> bool:
        """Wait before the next attempt; return False if there is none.

        Args:
            failure: Why the last attempt failed, in a word.
            error: Its error, which may name the wait that the provider asks for.
        """
        count, seconds = len(self.attempts), getattr(error, "retry_after", None)
        if count >= self._most:
            return False
        if seconds is None:
            seconds = _BACKOFF.delay(count + 1, randomness())
        self._planned += seconds
        if self._planned > MOST_SECONDS:
            return False
        self.attempts.append(await wait_to_repeat(failure, seconds))
        return True


def checked_retries(retries: object) -> int | None:
    """Return a number of repeats; None for the default."""
    if retries is not None and (type(retries) is not int or retries < 0):
        raise ConfigurationError(f"invalid retries {retries!r}: use a whole number of zero or more")
    return retries
