"""What went wrong in a step, in a vocabulary that a policy can act on."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from whyloop.values import encoding
from whyloop.values.scalars import Count, Seconds


class ErrorType(StrEnum):
    TOOL = "tool"
    MODEL = "model"
    VALIDATION = "validation"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"

    @property
    def label(self) -> str:
        """The words for a person: "Rate limit error"."""
        return f"{self.value.replace('_', ' ').capitalize()} error"


class ErrorHandlingDecision(StrEnum):
    STOP = "stop"
    RETRY = "retry"
    IGNORE = "ignore"


class Failure(Struct, frozen=True, gc=False, omit_defaults=True):
    """One thing that failed: the model call itself, or one tool call.

    `retryable` is False where trying again cannot succeed. `readable` marks an answer that arrived and is
    wrong: it stays in the history, and the model is told what to correct.
    """

    type: ErrorType
    message: str
    tool_name: str | None = None
    tool_call_id: str | None = None
    retry_after: Seconds | None = None
    details: Mapping[str, Any] = {}
    retryable: bool = True
    readable: bool = False

    @property
    def is_model_call(self) -> bool:
        """True if the model call itself failed, and not one of its tool calls."""
        return self.tool_call_id is None


class FailureTally(Struct, frozen=True, gc=False):
    """Failed steps of an execution, counted as they happen rather than by scanning the history."""

    consecutive: Count = 0
    total: Count = 0

    def after_step(self, *, failed: bool, forgiven: bool) -> FailureTally:
        """Return the tally after one more step; earlier failures in a row may have been forgiven."""
        if failed:
            return FailureTally(1 if forgiven else self.consecutive + 1, self.total + 1)
        return FailureTally(0, self.total) if self.consecutive else self


class ErrorContext(Struct, frozen=True, gc=False):
    """What a policy needs to know about the failure at hand."""

    type: ErrorType
    consecutive_failures: int
    total_failures: int
    message: str | None = None
    tool_name: str | None = None
    metadata: Mapping[str, Any] = {}
    retryable: bool = True

    @classmethod
    def none(cls) -> ErrorContext:
        """No failure at all."""
        return cls(ErrorType.UNKNOWN, 0, 0)

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = encoding.encode(self)
        return document

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ErrorContext:
        return encoding.decode(data, cls)

    @property
    def is_failure(self) -> bool:
        return self.consecutive_failures > 0
