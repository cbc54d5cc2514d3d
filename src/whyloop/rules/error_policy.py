"""The error policy, the criterion that applies it, and the backoff of retries."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from whyloop.errors import ConfigurationError
from whyloop.rules.criterion import Criterion
from whyloop.values import encoding
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.failure import Correction, ErrorContext, ErrorHandlingDecision, ErrorType, Failure
from whyloop.values.state import AgentState
from whyloop.values.text import counted, shortened

_STOP = ErrorHandlingDecision.STOP
_RETRY = ErrorHandlingDecision.RETRY
_IGNORE = ErrorHandlingDecision.IGNORE

_CRITERION = "ErrorPolicyCriterion"
_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION
_NO_ERROR = ErrorContext.none()


class ErrorPolicy(Struct, frozen=True):
    """One decision for each kind of error, and the number of retries in a row.

    `max_retries=3` means three retries: the fourth failure in a row stops the run.
    """

    on_tool_error: ErrorHandlingDecision = _STOP
    """After a tool that raised."""
    on_model_error: ErrorHandlingDecision = _STOP
    """After any other error of the provider, or a refusal."""
    on_validation_error: ErrorHandlingDecision = _STOP
    """After arguments that do not fit, an unknown tool, or a response that cannot be used."""
    on_rate_limit_error: ErrorHandlingDecision = _STOP
    """After HTTP 429, or from an overloaded provider."""
    on_timeout_error: ErrorHandlingDecision = _STOP
    """After a request or a tool that ran out of time."""
    on_unknown_error: ErrorHandlingDecision = _STOP
    """After any other exception of a model call."""
    max_retries: int = 0
    """The number of failures in a row that are retried."""

    def __post_init__(self) -> None:
        retries = self.max_retries
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ConfigurationError(f"invalid max_retries {retries!r}: use a whole number of zero or more")
        for error_type in ErrorType:
            field = f"on_{error_type}_error"
            try:
                force_setattr(self, field, ErrorHandlingDecision(getattr(self, field)))
            except ValueError:
                given = getattr(self, field)
                raise ConfigurationError(f"invalid {field} {given!r}: use stop, retry or ignore") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions and the number of retries as plain data."""
        document: dict[str, Any] = encoding.encode(self)
        return document

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ErrorPolicy:
        """Return the policy that `to_dict` wrote.

        Args:
            data: The plain data.
        """
        return encoding.decode(data, cls)

    @classmethod
    def stop_on_any_error(cls) -> ErrorPolicy:
        """Stop after any error; the default."""
        return cls()

    @classmethod
    def retry_tool_errors(cls, max_retries: int = 3) -> ErrorPolicy:
        """Let the model correct its calls, wait for busy providers, and otherwise stop.

        Args:
            max_retries: The number of retries in a row. Default: 3.
        """
        return cls(
            on_tool_error=_RETRY,
            on_validation_error=_RETRY,
            on_rate_limit_error=_RETRY,
            on_timeout_error=_RETRY,
            max_retries=max_retries,
        )

    @classmethod
    def ignore_tool_errors(cls) -> ErrorPolicy:
        """Continue after any failure of a tool, while the model answers."""
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
        """Retry after any error.

        Args:
            max_retries: The number of retries in a row. Default: 5.
        """
        return cls(_RETRY, _RETRY, _RETRY, _RETRY, _RETRY, _RETRY, max_retries)

    def with_max_retries(self, max_retries: int) -> ErrorPolicy:
        """Return the policy with another number of retries.

        Args:
            max_retries: The number of retries in a row.
        """
        return replace(self, max_retries=max_retries)

    def with_tool_error_handling(self, decision: ErrorHandlingDecision | str) -> ErrorPolicy:
        """Return the policy with another decision for errors of tools.

        Args:
            decision: The decision: stop, retry or ignore.
        """
        return self.with_handling(ErrorType.TOOL, decision)

    def with_handling(
        self, error_type: ErrorType | str, decision: ErrorHandlingDecision | str
    ) -> ErrorPolicy:
        """Return the policy with another decision for one kind of error.

        Args:
            error_type: The kind of error.
            decision: The decision: stop, retry or ignore.
        """
        if error_type not in list(ErrorType):
            known = ", ".join(ErrorType)
            raise ConfigurationError(f"invalid kind of error {error_type!r}: choose from {known}")
        return replace(self, **{f"on_{error_type}_error": decision})

    def handling_of(self, error_type: ErrorType) -> ErrorHandlingDecision:
        """Return the decision about this kind of error while there are retries left.

        Args:
            error_type: The kind of error.
        """
        decision: ErrorHandlingDecision = getattr(self, f"on_{error_type}_error")
        return decision

    @property
    def retries_nothing(self) -> bool:
        """True if a kind of error is set to be retried, but no retries are allowed."""
        return not self.max_retries and any(self.handling_of(kind) is _RETRY for kind in ErrorType)

    def evaluate(self, context: ErrorContext) -> ErrorHandlingDecision:
        """Return the decision about this failure.

        Args:
            context: The facts about the failure.
        """
        if not context.is_failure:
            return _IGNORE
        handling = self.handling_of(context.type)
        if handling is _RETRY and (context.consecutive_failures > self.max_retries or not context.retryable):
            return _STOP
        return handling


@runtime_checkable
class CanResolveErrorContext(Protocol):
    """A source of the facts that an error policy needs to know about a state."""

    def resolve(self, state: AgentState) -> ErrorContext:
        """Return the facts about the latest failure."""


class AgentErrorContextResolver:
    """The default resolver: the failure of the latest step, with the state's counts.

    If several calls failed, the first in call order decides; `metadata["failures"]` lists all of them.
    """

    def resolve(self, state: AgentState) -> ErrorContext:
        """Return the facts about the latest failure."""
        tally = state.execution.failures
        if not tally.total:
            return _NO_ERROR
        step = state.current_step if state.open_step is None else None
        if not tally.consecutive or step is None or not step.failures:
            return ErrorContext(ErrorType.UNKNOWN, 0, tally.total)
        first = step.failures[0]
        return ErrorContext(
            type=first.type,
            consecutive_failures=tally.consecutive,
            total_failures=tally.total,
            message=first.message,
            tool_name=first.tool,
            metadata={
                "failures": [
                    {"type": f.type.value, "tool_name": f.tool, "message": f.message, **f.details}
                    for f in step.failures
                ]
            },
            retryable=first.retryable,
        )


class ErrorPolicyCriterion(Criterion):
    """Forbids when the policy says stop; requests a retry of a failed model call.

    Args:
        policy: The policy. Default: stop on any error.
        resolver: The source of the facts about a failure. Default: `AgentErrorContextResolver()`.
    """

    acts = "handling"
    """The action of the run when this criterion decides, for a trace."""

    def __init__(
        self,
        policy: ErrorPolicy | None = None,
        resolver: CanResolveErrorContext | None = None,
    ) -> None:
        self.policy = policy or ErrorPolicy()
        """The policy."""
        self.resolver = resolver or AgentErrorContextResolver()
        """The source of the facts about a failure."""
        self._no_errors = self._nothing_wrong(_NO_ERROR)

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        if state.execution.wrap_ups and (failed := _failed_wrap_up(state)) is not None:
            return failed
        context = self.resolver.resolve(state)
        if context is _NO_ERROR:
            return self._no_errors
        if (free := _free_correction(state)) is not None:
            return self._correct(*free, context)
        if not context.is_failure:
            return self._nothing_wrong(context)
        step = state.current_step
        # The results of tool calls request the next step themselves; after a failed model call nothing does.
        with_calls = bool(step.tool_calls) if step else context.type is ErrorType.TOOL
        readable = bool(step and step.failures and step.failures[0].readable)
        retry = _ALLOW if with_calls or context.tool_name else _REQUEST
        return self._judge(context, retry, state.execution.failures.corrected, readable=readable)

    def _judge(
        self, context: ErrorContext, to_retry: ContinuationDecision, corrected: int, *, readable: bool
    ) -> ContinuationEvaluation:
        handling, wanted = self.policy.evaluate(context), self.policy.handling_of(context.type)
        if handling is ErrorHandlingDecision.IGNORE and readable:
            handling = ErrorHandlingDecision.STOP  # A wrong answer cannot be treated as a correct one.
        label, failures = ErrorType(context.type).label, context.consecutive_failures
        most = self.policy.max_retries
        match handling:
            case ErrorHandlingDecision.RETRY:
                feedback = context.message if readable else None
                text = f"{label}, retrying ({failures}/{most})"
                return self._evaluation(to_retry, text, context, handling, feedback=feedback)
            case ErrorHandlingDecision.IGNORE:
                return self._evaluation(_ALLOW, f"{label} ignored by policy", context, handling)
            case ErrorHandlingDecision.STOP:
                message = shortened(context.message or "no details", 200)
                reason = StopReason.ERROR_FORBADE
                if wanted is ErrorHandlingDecision.RETRY and not context.retryable:
                    text = f"{label}, not retried: {message}"
                elif wanted is ErrorHandlingDecision.RETRY:
                    text = f"{label} after {counted(failures + corrected, 'consecutive failure')}"
                    corrections = f"{counted(corrected, 'correction')}, " if corrected else ""
                    text = f"{text} ({corrections}max: {most})"
                    reason = StopReason.RETRY_LIMIT_REACHED
                else:
                    text = f"{label}, stopped by policy: {message}"
                return self._evaluation(_FORBID, text, context, handling, reason)

    def _correct(
        self, failure: Failure, correction: Correction, context: ErrorContext
    ) -> ContinuationEvaluation:
        """Let the model correct an answer that does not fit, without asking the policy."""
        text = f"{failure.type.label}, correcting the answer ({correction.attempt}/{correction.limit})"
        context = replace(context, type=failure.type, message=failure.message, tool_name=None)
        return self._evaluation(_REQUEST, text, context, _RETRY, feedback=failure.message)

    def _nothing_wrong(self, context: ErrorContext) -> ContinuationEvaluation:
        return self._evaluation(_ALLOW, "No errors present", context, None)

    def _evaluation(
        self,
        decision: ContinuationDecision,
        reason: str,
        context: ErrorContext,
        handling: ErrorHandlingDecision | None,
        stop_reason: StopReason | None = None,
        feedback: str | None = None,
    ) -> ContinuationEvaluation:
        numbers: dict[str, object] = {
            **context.metadata,
            "error_type": str(context.type),
            "consecutive_failures": context.consecutive_failures,
            "total_failures": context.total_failures,
            "max_retries": self.policy.max_retries,
            "handling": (handling or ErrorHandlingDecision.IGNORE).value,
            "tool_name": context.tool_name,
        }
        if context.message is not None:
            numbers["message"] = context.message
        return ContinuationEvaluation(
            _CRITERION, decision, reason, numbers, stop_reason, handling=handling, feedback=feedback
        )


def _failed_wrap_up(state: AgentState) -> ContinuationEvaluation | None:
    """Return how the wrap-up failed, if it did; a policy never handles that."""
    step = state.current_step if state.open_step is None else None
    if step is None or not step.failures or (note := step.wrap_up_note) is None:
        return None
    context = {"message": step.failures[0].message}
    return ContinuationEvaluation(_CRITERION, _ALLOW, f"{note[0].upper()}{note[1:]}", context)


def _free_correction(state: AgentState) -> tuple[Failure, Correction] | None:
    """Return the failure of an answer that is corrected without the policy."""
    step = state.current_step if state.open_step is None else None
    failure = step.failures[0] if step is not None and step.failures else None
    if failure is None or failure.correction is None or not failure.is_free:
        return None
    return failure, failure.correction


class Backoff(Struct, frozen=True):
    """The wait before a failed model call is retried: exponential, with jitter.

    The wait that a provider asks for (`Retry-After`) takes precedence.
    """

    base: float = 1.0
    """Seconds to wait after the first failure."""
    factor: float = 2.0
    """The factor by which each wait is longer than the previous one."""
    cap: float = 60.0
    """The longest wait in seconds, even if the provider asks for more."""
    jitter: float = 0.5
    """The share of a wait, from 0 to 1, that is removed at random at most."""

    def __post_init__(self) -> None:
        if not (
            0 < self.base <= self.cap and isfinite(self.cap) and self.factor >= 1 and 0 <= self.jitter <= 1
        ):
            raise ConfigurationError(
                f"invalid {self!r}: use a base above zero and up to cap, a factor of 1 or more, and a jitter "
                "from 0 to 1"
            )

    def delay(self, failures: int, randomness: float, retry_after: float | None = None) -> float:
        """Return the seconds to wait after failures in a row; `randomness` is from 0 to 1.

        Args:
            failures: The number of failures in a row.
            randomness: A random number from 0 to 1.
            retry_after: The seconds that the provider asks to wait. Default: none.
        """
        if retry_after is not None and retry_after >= 0:
            return float(min(retry_after, self.cap))
        exponent = min(max(0, failures - 1), 64)  # Beyond that, the cap limits every delay.
        full = min(self.cap, self.base * self.factor**exponent)
        return float(full * (1 - self.jitter * randomness))
