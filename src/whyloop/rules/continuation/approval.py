"""Tool calls that wait for a person."""

from __future__ import annotations

from whyloop.rules.continuation.criterion import Criterion
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation
from whyloop.values.state import AgentState
from whyloop.values.text import counted


class ApprovalRequired(Criterion):
    """Forbids while a tool call waits for a person: the execution pauses. Every agent has it."""

    acts = "pauses"

    _NOTHING_PENDING = ContinuationEvaluation(
        "ApprovalRequired", ContinuationDecision.ALLOW_CONTINUATION, "No tool call waits for a person"
    )

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        if state.open_step is None and state.execution.question is None:
            return self._NOTHING_PENDING
        pending = state.pending_calls
        if not pending:
            return self._NOTHING_PENDING
        if len(pending) == 1:
            reason = pending[0].question
        else:
            names = ", ".join(call.name for call in pending)
            reason = f"{counted(len(pending), 'tool call')} wait for a person: {names}"
        context = {
            "pending": [
                {"id": call.id, "call_id": call.call_id, "name": call.name, "question": call.question}
                for call in pending
            ]
        }
        return ContinuationEvaluation(
            "ApprovalRequired", ContinuationDecision.FORBID_CONTINUATION, reason, context, pauses=True
        )
