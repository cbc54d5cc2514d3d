"""Failures of a step, in a form that a policy can act on."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from whyloop.values import encoding
from whyloop.values.scalars import Count, Seconds


class ErrorType(StrEnum):
    """The type of a failure, by which a policy chooses what to do."""

    TOOL = "tool"
    """A tool raised."""
    MODEL = "model"
    """The provider answered with an error, or could not be reached."""
    VALIDATION = "validation"
    """A call or an answer of the model is invalid."""
    RATE_LIMIT = "rate_limit"
    """The provider is busy."""
    TIMEOUT = "timeout"
    """A model or tool call took too long."""
    UNKNOWN = "unknown"
    """Any other error."""

    @property
    def label(self) -> str:
        """The name for people: "Rate limit error"."""
        return f"{self.value.replace('_', ' ').capitalize()} error"


class ErrorHandlingDecision(StrEnum):
    """A policy's decision about a failure."""

    STOP = "stop"
    """End the run."""
    RETRY = "retry"
    """Try again, as often as the policy allows."""
    IGNORE = "ignore"
    """Continue as if nothing had happened."""


class Correction(Struct, frozen=True, gc=False):
    """A request to the model to correct an answer that does not fit the output type."""

    for_model: str
    """The problem with the answer, with its path and the relevant part of the schema."""
    attempt: Count
    """The number of this correction within the execution, starting at 1."""
    limit: Count
    """The number of corrections before the error policy is asked."""

    @property
    def is_free(self) -> bool:
        """True if the correction needs no decision of the error policy."""
        return self.attempt <= self.limit


class Failure(Struct, frozen=True, gc=False, omit_defaults=True):
    """A failure of the model call itself, or of one tool call."""

    type: ErrorType
    """The type of the failure."""
    message: str
    """The error for people and the wire, without arguments and schemas."""
    tool: str | None = None
    """The tool that failed; None if the model call failed."""
    tool_call_id: str | None = None
    """The call that failed; None if the model call failed."""
    retry_after: Seconds | None = None
    """The seconds that a provider asks to wait."""
    details: Mapping[str, Any] = {}
    """More about the failure, for display."""
    retryable: bool = True
    """False if another attempt cannot succeed."""
    readable: bool = False
    """True for an answer that arrived but is wrong: it stays in the history, to be corrected."""
    correction: Correction | None = None
    """The text for the model about an answer that does not fit the output type; people see `message`."""
    raised: str | None = None
    """The class and the message of an exception of the application's own code, such as a tool.

    They may quote arguments, so only people who look for the fault see them. For an answer that a validator
    rejected, the message for people and the validator's own, which explanations show.
    """

    def __repr__(self) -> str:
        """Return one short line, without the message of an exception."""
        named = "" if self.tool is None else f", tool={self.tool!r}"
        return f"Failure({self.type.value}, {self.message!r}{named})"

    @property
    def is_free(self) -> bool:
        """True if the answer is corrected without asking the error policy."""
        return self.correction is not None and self.correction.is_free

    @property
    def is_model_call(self) -> bool:
        """True if the model call itself failed, and not one of its tool calls."""
        return self.tool_call_id is None


class FailureTally(Struct, frozen=True, gc=False):
    """The failed steps of an execution, counted as they happen."""

    consecutive: Count = 0
    """The failed steps in a row, up to the latest."""
    total: Count = 0
    """All failed steps."""
    corrected: Count = 0
    """The failed steps in a row that were corrected without the error policy."""

    def after_step(self, *, failed: bool, forgiven: bool, free: bool = False) -> FailureTally:
        """Return the tally after one more step, which may reset the failures in a row.

        A `free` failure does not count as one in a row, because it does not concern the error policy.
        """
        before = FailureTally(0, self.total) if forgiven else self
        if free:
            return FailureTally(before.consecutive, self.total + 1, before.corrected + 1)
        if failed:
            return FailureTally(before.consecutive + 1, self.total + 1, before.corrected)
        return FailureTally(0, self.total) if self.consecutive or self.corrected else self


class ErrorContext(Struct, frozen=True, gc=False):
    """The facts about a failure on which a policy bases its decision."""

    type: ErrorType
    """The type of the first failure, in call order."""
    consecutive_failures: int
    """The failed steps in a row, up to the latest; zero if it did not fail."""
    total_failures: int
    """All failed steps of the execution."""
    message: str | None = None
    """The error for people."""
    tool_name: str | None = None
    """The tool that failed; None if the model call failed."""
    metadata: Mapping[str, Any] = {}
    """More about the failures of the step, for display."""
    retryable: bool = True
    """False if another attempt cannot succeed."""

    @classmethod
    def none(cls) -> ErrorContext:
        """Return the context of a step without a failure."""
        return cls(ErrorType.UNKNOWN, 0, 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the context as plain data."""
        document: dict[str, Any] = encoding.encode(self)
        return document

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ErrorContext:
        """Return the context that `to_dict` wrote.

        Args:
            data: The plain data that `to_dict` returned.
        """
        return encoding.decode(data, cls)

    @property
    def is_failure(self) -> bool:
        """True if the latest step failed."""
        return self.consecutive_failures > 0
