"""Write your own rule: stop once 100 has been refunded for one query.

A criterion judges a step after it has happened. To keep a call from running at all, block it with a hook.
"""

from whyloop import Agent, AgentState, ContinuationDecision, ContinuationEvaluation, tool
from whyloop.testing import ScriptedModel, call, text


@tool
def refund(order: str, amount: float) -> str:
    """Pay money back for an order."""
    return f"{amount:.2f} refunded for order {order}"


class RefundBudget:
    """Forbid continuing once the refunds of this execution reach the budget."""

    def __init__(self, budget: float) -> None:
        self.budget = budget

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        spent = sum(
            call.arguments["amount"]
            for step in state.execution_steps
            for message in state.messages_of(step)
            for call in message.tool_calls
            if call.name == "refund" and not isinstance(call.arguments, str)
        )
        over = spent >= self.budget
        return ContinuationEvaluation(
            criterion="RefundBudget",
            decision=(
                ContinuationDecision.FORBID_CONTINUATION if over else ContinuationDecision.ALLOW_CONTINUATION
            ),
            reason=f"{spent:.2f} of {self.budget:.2f} refunded",
            context={"used": spent, "limit": self.budget, "remaining": max(0.0, self.budget - spent)},
        )


model = ScriptedModel(
    [
        call("refund", {"order": "A1", "amount": 40.0}),
        call("refund", {"order": "A2", "amount": 70.0}),
        text("All refunded."),
    ]
)
agent = Agent(model, tools=[refund], criteria=[RefundBudget(100)])
state = agent.run_sync("Refund orders A1 and A2, and whatever else I ask for")

print(state.explain())
outcome = state.last_continuation_outcome
assert outcome is not None
evaluation = outcome.evaluation_for(RefundBudget)
print()
print(f"stop reason: {state.stop_reason}, numbers: {evaluation.context if evaluation else None}")
