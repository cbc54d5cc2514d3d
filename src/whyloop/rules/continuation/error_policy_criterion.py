"""The criterion that applies an error policy."""

from __future__ import annotations

from whyloop.rules.continuation.criterion import Criterion
from whyloop.rules.error_context import AgentErrorContextResolver, CanResolveErrorContext
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.failure import ErrorContext, ErrorHandlingDecision, ErrorType
from whyloop.values.state import AgentState
from whyloop.values.text import counted, shortened

_NAME = "ErrorPolicyCriterion"
_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION


class ErrorPolicyCriterion(Criterion):
    """Forbids when the policy says stop; requests another attempt when a model call is to be retried."""

    acts = "handling"

    def __init__(
        self,
        policy: ErrorPolicy | None = None,
        resolver: CanResolveErrorContext | None = None,
    ) -> None:
        self.policy = policy or ErrorPolicy()
        self.resolver = resolver or AgentErrorContextResolver()
        self._no_errors = self._nothing_wrong(ErrorContext.none())

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        context = self.resolver.resolve(state)
        if not context.is_failure:
            return self._nothing_wrong(context) if context.total_failures else self._no_errors
        step = state.current_step
        # The results of tool calls request the next step themselves; after a failed model call nothing does.
        with_calls = bool(step.tool_calls) if step else context.type is ErrorType.TOOL
        readable = bool(step and step.failures and step.failures[0].readable)
        retry = _ALLOW if with_calls or context.tool_name else _REQUEST
        return self._judge(context, retry, readable=readable)

    def _judge(
        self, context: ErrorContext, to_retry: ContinuationDecision, *, readable: bool
    ) -> ContinuationEvaluation:
        handling, wanted = self.policy.evaluate(context), self.policy.handling_of(context.type)
        if handling is ErrorHandlingDecision.IGNORE and readable:
            handling = ErrorHandlingDecision.STOP  # A wrong answer cannot be passed off as a right one.
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
                    text = f"{label} after {counted(failures, 'consecutive failure')} (max: {most})"
                    reason = StopReason.RETRY_LIMIT_REACHED
                else:
                    text = f"{label}, stopped by policy: {message}"
                return self._evaluation(_FORBID, text, context, handling, reason)

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
            _NAME, decision, reason, numbers, stop_reason, handling=handling, feedback=feedback
        )
