"""Models that repeat a request: the waits are backoff and no work, and a stop ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from whyloop.errors import ModelError
from whyloop.loop.agent import Agent
from whyloop.loop.attempts import wait_to_repeat
from whyloop.rules.error_policy import Backoff, ErrorPolicy
from whyloop.testing.engine_checks.stage import Gate, Stage, scenario
from whyloop.testing.fakes import Reply, ScriptedModel, call, text
from whyloop.tools.tool import tool
from whyloop.values.model import Delta, ModelRequest, ModelResponse
from whyloop.values.state import AgentState

WAIT_SECONDS = 0.05
TOLERANCE_SECONDS = 0.02


class RepeatingModel(ScriptedModel):
    """A model that repeats each of its requests once, after a wait.

    Args:
        replies: The replies of the script.
        seconds: The length of each wait.
        gate: A gate to open when the wait begins. Default: none.
    """

    def __init__(
        self, replies: Iterable[Reply | str | BaseException], seconds: float, gate: Gate | None = None
    ) -> None:
        super().__init__(replies)
        self._seconds, self._gate = seconds, gate

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Wait, and yield the reply."""
        if self._gate is not None:
            self._gate.open()
            await self._gate.wait()
        await wait_to_repeat("429", self._seconds)
        async for item in super().respond(request):
            yield item


@tool
def fetch(page: int = 1) -> str:
    """Fetch a page."""
    return f"page {page}"


@scenario
async def check_repeated_requests(stage: Stage) -> None:
    """Answers and failures have the attempts before them, and waits are in no active clock."""
    replies: list[Reply | BaseException] = [
        call("fetch", {"page": 2}),
        ModelError("bad gateway", status=502),
        text("Page 2."),
    ]
    model, policy = RepeatingModel(replies, WAIT_SECONDS), ErrorPolicy.retry_all(max_retries=2)
    soon = Backoff(base=0.01, cap=0.02)
    _, state = await stage.ask(Agent(model, [fetch], error_policy=policy, backoff=soon), "Fetch page 2")
    waited = refuse_wrong_clocks(state)
    if waited < 3 * WAIT_SECONDS:
        raise AssertionError(f"each step should have a wait of its model, and they are {waited:.3f} s in all")


@scenario
async def check_a_stop_in_a_wait_of_the_model(stage: Stage) -> None:
    """A stop ends the wait before a repeat, and the step keeps the attempt."""
    gate = stage.gate()
    session, run = await stage.hold(Agent(RepeatingModel(["Never."], 1000, gate)), "Hello", gate)
    await session.request_stop("no time")
    refuse_wrong_clocks(await run)


def refuse_wrong_clocks(state: AgentState) -> float:
    """Raise if waits of a model are active time, or no backoff; return their seconds."""
    execution = state.execution
    waited = sum([step.source.waited for step in state.steps if step.source is not None])
    if execution.backoff_seconds < waited:
        raise AssertionError(
            f"the backoff should include the waits of the model, {waited:.3f} s, and it is "
            f"{execution.backoff_seconds:.3f} s"
        )
    counted = execution.active_seconds + execution.backoff_seconds
    if counted > execution.wall_seconds + TOLERANCE_SECONDS:
        raise AssertionError(
            f"no wait should be active time too, and active time and backoff are {counted:.3f} s of "
            f"{execution.wall_seconds:.3f} s"
        )
    return waited
