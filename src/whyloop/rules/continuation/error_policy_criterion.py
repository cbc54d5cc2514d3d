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
        # Tool calls ask for the next step themselves; after a failed model call nobody else does.
        step = state.current_step
        of_a_tool = bool(step.tool_calls) if step else context.type is ErrorType.TOOL
        return self._judge(context, _ALLOW if of_a_tool or context.tool_name else _REQUEST)

    def _judge(self, context: ErrorContext, to_retry: ContinuationDecision) -> ContinuationEvaluation:
        handling = self.policy.evaluate(context)
        label, failures, most = (
            ErrorType(context.type).label,
            context.consecutive_failures,
            self.policy.max_retries,
        )
        match handling:
            case ErrorHandlingDecision.RETRY:
                return self._evaluation(to_retry, f"{label}, retrying ({failures}/{most})", context, handling)
            case ErrorHandlingDecision.IGNORE:
                return self._evaluation(_ALLOW, f"{label} ignored by policy", context, handling)
            case ErrorHandlingDecision.STOP:
                ran_out = self.policy.handling_of(context.type) is ErrorHandlingDecision.RETRY
                words = (
                    f"{label} after {counted(failures, 'consecutive failure')} (max: {most})"
                    if ran_out
                    else f"{label}, stopped by policy: {shortened(context.message or 'no details', 200)}"
                )
                reason = StopReason.RETRY_LIMIT_REACHED if ran_out else StopReason.ERROR_FORBADE
                return self._evaluation(_FORBID, words, context, handling, reason)

    def _nothing_wrong(self, context: ErrorContext) -> ContinuationEvaluation:
        return self._evaluation(_ALLOW, "No errors present", context, ErrorHandlingDecision.IGNORE)

    def _evaluation(
        self,
        decision: ContinuationDecision,
        words: str,
        context: ErrorContext,
        handling: ErrorHandlingDecision,
        stop_reason: StopReason | None = None,
    ) -> ContinuationEvaluation:
        numbers: dict[str, object] = {
            **context.metadata,
            "error_type": str(context.type),
            "consecutive_failures": context.consecutive_failures,
            "total_failures": context.total_failures,
            "max_retries": self.policy.max_retries,
            "handling": handling.value,
            "tool_name": context.tool_name,
        }
        if context.message is not None:
            numbers["message"] = context.message
        return ContinuationEvaluation(_NAME, decision, words, numbers, stop_reason)
