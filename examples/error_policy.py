"""Compare three error policies on a tool that fails twice before it works."""

from collections.abc import Callable

from whyloop import Agent, Backoff, ErrorPolicy, tool
from whyloop.errors import RateLimitError
from whyloop.testing import FakeClock, ScriptedModel, call, text


def flaky_search(failures: int) -> Callable[[str], list[str]]:
    """Return a search that fails this many times before it works."""
    left = failures

    def search(query: str) -> list[str]:
        """Search the catalogue."""
        nonlocal left
        left -= 1
        if left >= 0:
            raise ConnectionError("the index is being rebuilt")
        return [f"a {query}"]

    return search


policies = {
    "stop on any error": ErrorPolicy.stop_on_any_error(),
    "retry once": ErrorPolicy.retry_tool_errors(max_retries=1),
    "retry three times": ErrorPolicy.retry_tool_errors(max_retries=3),
}
for name, policy in policies.items():
    script = [call("search", {"query": "lamp"})] * 3 + [text("I found a lamp.")]
    agent = Agent(ScriptedModel(script), tools=[tool(flaky_search(failures=2))], error_policy=policy)
    state = agent.run_sync("Find me a lamp")
    print(f"{name}: {state.status} ({state.stop_reason})")
    for step in state.steps:
        evaluation = step.outcome and step.outcome.evaluation_for("ErrorPolicyCriterion")
        print(f"  step {step.number}: {evaluation.reason if evaluation else ''}")

# A failed model call is retried after a wait. With a fake clock, the wait takes no time.
clock = FakeClock()
agent = Agent(
    ScriptedModel([RateLimitError(), RateLimitError(retry_after=7), text("Good morning.")]),
    error_policy=ErrorPolicy.retry_all(),
    backoff=Backoff(jitter=0),
    clock=clock,
)
state = agent.run_sync("Good morning")
print(f"busy provider: {state.status}, waited {clock.sleeps} seconds")
