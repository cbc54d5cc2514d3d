"""What to do about each kind of error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from whyloop.errors import ConfigurationError
from whyloop.values import plain
from whyloop.values.failure import ErrorContext, ErrorHandlingDecision, ErrorType

_STOP = ErrorHandlingDecision.STOP
_RETRY = ErrorHandlingDecision.RETRY
_IGNORE = ErrorHandlingDecision.IGNORE


class ErrorPolicy(Struct, frozen=True):
    """One decision a kind of error, and how many retries in a row are worth it.

    `max_retries=3` means three retries: the fourth failure in a row stops the run.
    """

    on_tool_error: ErrorHandlingDecision = _STOP
    on_model_error: ErrorHandlingDecision = _STOP
    on_validation_error: ErrorHandlingDecision = _STOP
    on_rate_limit_error: ErrorHandlingDecision = _STOP
    on_timeout_error: ErrorHandlingDecision = _STOP
    on_unknown_error: ErrorHandlingDecision = _STOP
    max_retries: int = 0

    def __post_init__(self) -> None:
        retries = self.max_retries
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ConfigurationError(f"max_retries is a whole number from zero on, not {retries!r}")
        for error_type in ErrorType:
            field = f"on_{error_type}_error"
            try:
                force_setattr(self, field, ErrorHandlingDecision(getattr(self, field)))
            except ValueError:
                given = getattr(self, field)
                raise ConfigurationError(f"{field} is stop, retry or ignore, not {given!r}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions and the number of retries as plain data."""
        document: dict[str, Any] = plain.encode(self)
        return document

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ErrorPolicy:
        return plain.decode(data, cls)

    @classmethod
    def stop_on_any_error(cls) -> ErrorPolicy:
        return cls()

    @classmethod
    def retry_tool_errors(cls, max_retries: int = 3) -> ErrorPolicy:
        """Let the model correct its calls and wait out busy providers; stop on anything else."""
        return cls(
            on_tool_error=_RETRY,
            on_validation_error=_RETRY,
            on_rate_limit_error=_RETRY,
            on_timeout_error=_RETRY,
            max_retries=max_retries,
        )

    @classmethod
    def ignore_tool_errors(cls) -> ErrorPolicy:
        """Go on whatever the tools do, as long as the model answers."""
        return cls(
            on_tool_error=_IGNORE,
            on_validation_error=_IGNORE,
            on_rate_limit_error=_RETRY,
            on_timeout_error=_RETRY,
            on_unknown_error=_IGNORE,
            max_retries=3,
        )

    @classmethod
    def retry_all(cls, max_retries: int = 5) -> ErrorPolicy:
        return cls(_RETRY, _RETRY, _RETRY, _RETRY, _RETRY, _RETRY, max_retries)

    def with_max_retries(self, max_retries: int) -> ErrorPolicy:
        return replace(self, max_retries=max_retries)

    def with_tool_error_handling(self, decision: ErrorHandlingDecision | str) -> ErrorPolicy:
        return self.with_handling(ErrorType.TOOL, decision)

    def with_handling(
        self, error_type: ErrorType | str, decision: ErrorHandlingDecision | str
    ) -> ErrorPolicy:
        """The same policy with another decision for one kind of error."""
        if error_type not in list(ErrorType):
            known = ", ".join(ErrorType)
            raise ConfigurationError(f"{error_type!r} is no kind of error: choose from {known}")
        return replace(self, **{f"on_{error_type}_error": decision})

    def handling_of(self, error_type: ErrorType) -> ErrorHandlingDecision:
        """What the policy says about this kind of error while retries last."""
        decision: ErrorHandlingDecision = getattr(self, f"on_{error_type}_error")
        return decision

    @property
    def retries_nothing(self) -> bool:
        """True if some kind of error is to be retried, zero times."""
        return not self.max_retries and any(self.handling_of(kind) is _RETRY for kind in ErrorType)

    def evaluate(self, context: ErrorContext) -> ErrorHandlingDecision:
        """What to do about the failure at hand."""
        if not context.is_failure:
            return _IGNORE
        handling = self.handling_of(context.type)
        if handling is _RETRY and (context.consecutive_failures > self.max_retries or not context.retryable):
            return _STOP
        return handling
