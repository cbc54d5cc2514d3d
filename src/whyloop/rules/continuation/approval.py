"""Tool calls that wait for a person."""

from __future__ import annotations

from msgspec.structs import replace

from whyloop.rules.continuation.criterion import Criterion
from whyloop.rules.continuation.resolve import resolve
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, ContinuationOutcome
from whyloop.values.state import AgentState
from whyloop.values.text import counted


class ApprovalRequired(Criterion):
    """Forbids while a tool call waits for a person: the execution is paused, not at an end.

    It is asked by itself whenever a call waits, and needs not be given to an agent.
    """

    _NOBODY = ContinuationEvaluation(
        "ApprovalRequired", ContinuationDecision.ALLOW_CONTINUATION, "No tool call waits for a person"
    )

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        pending = state.pending_calls
        if not pending:
            return self._NOBODY
        if len(pending) == 1:
            words = pending[0].question
        else:
            names = ", ".join(call.name for call in pending)
            words = f"{counted(len(pending), 'tool call')} wait for a person: {names}"
        context = {
            "pending": [
                {"id": call.id, "name": call.name, "arguments": call.arguments, "question": call.question}
                for call in pending
            ]
        }
        return ContinuationEvaluation(
            "ApprovalRequired", ContinuationDecision.FORBID_CONTINUATION, words, context
        )


_APPROVAL = ApprovalRequired()


def paused(outcome: ContinuationOutcome, state: AgentState) -> ContinuationOutcome:
    """What the criteria said of a state in which calls wait, and the pause that comes of it.

    Whoever forbade to go on at all has decided; else it is a pause, which has no stop reason.
    """
    said = tuple(e for e in outcome.evaluations if e.criterion != "ApprovalRequired")
    resolved = resolve((*said, _APPROVAL.explain(state)))
    return replace(resolved, stop_reason=None) if resolved.resolved_by == "ApprovalRequired" else resolved
