"""The limits as a model sees them: what is left of them, and the request for its last answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from whyloop.errors import ResponseValidationError
from whyloop.loop.turns import in_turns
from whyloop.rules.classification import answer_failure
from whyloop.rules.limits import Limit, StepsLimit
from whyloop.values.judgement import feedback_of
from whyloop.values.messages import Message, MessageRole
from whyloop.values.model import ModelRequest, ModelResponse, OutputMode
from whyloop.values.state import AgentState

if TYPE_CHECKING:
    from whyloop.loop.run import Run
    from whyloop.loop.setup import Setup
    from whyloop.loop.step import StepInProgress


ASK = (
    "{reason}. The run ends with your next message, and no more tools can be called. Answer now with what is "
    "known so far, and say in one sentence what is missing."
)


def wrap_up_request(run: Run, request: ModelRequest) -> ModelRequest:
    """Return the request for the last answer, which may not call its tools.

    The message that asks for it is only part of the request. It includes the feedback of the last step,
    which the model has not seen.
    """
    outcome, allowance = run.state.last_continuation_outcome, run.setup.wrap_up
    assert outcome is not None
    assert allowance is not None
    feedback = feedback_of(outcome, run.state.current_step)
    texts = [ASK.format(reason=outcome.reason.rstrip("."))]
    if feedback is not None:
        texts.insert(0, feedback.text)
    output = run.setup.output
    if output is not None and run.setup.output_mode is OutputMode.TOOL:
        texts.append(output.instructions(None, OutputMode.PROMPT) or "")
    asked = Message(MessageRole.DEVELOPER, "\n\n".join(texts), source=("wrap_up",))
    messages = (*request.messages, asked)
    return replace(request, messages=messages, tool_choice="none", max_tokens=allowance.tokens)


def wrap_up_mode(setup: Setup) -> OutputMode | None:
    """Return how to ask the model for a typed answer if it may not call tools."""
    return OutputMode.PROMPT if setup.output_mode is OutputMode.TOOL else setup.output_mode


async def check_wrap_up(run: Run, step: StepInProgress, response: ModelResponse) -> None:
    """Raise a `ResponseValidationError` if the response is not an answer.

    There is no second attempt.
    """
    step.usage = response.usage
    if response.tool_calls:
        names = ", ".join(dict.fromkeys([call.name for call in response.tool_calls]))
        raise ResponseValidationError(f"the model asked for tools instead of answering: {names}")
    if step.answer is not None:
        failure = step.answer.failure
    else:
        failure = await in_turns(answer_failure(response, run.setup.tool_names, after_results=True))
    if failure is not None:
        raise ResponseValidationError(failure.message)
    if not response.text.strip():
        truncated = " before it was truncated" if response.finish_reason.truncates else ""
        raise ResponseValidationError(f"the answer was empty{truncated}")


THRESHOLDS = (0.5, 0.25, 0.1)
"""The remaining shares of a limit at which the model is informed."""


class Headroom:
    """The rest of the limits of a run.

    The message about it is only part of a request, and is sent once each when half, a quarter and a tenth of
    a limit is left. A new runner may send it again.
    """

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits
        self._levels = [0] * len(limits)
        self._latest: Message | None = None

    def message(self, state: AgentState) -> Message | None:
        """Return the message for the next request; None if no threshold was crossed.

        A request that failed is made again as it was.
        """
        last, sent = state.current_step, self._latest
        shares = [max(0.0, 1 - limit.used(state) / _allowed(limit, state)) for limit in self._limits]
        levels = [sum(share <= threshold for threshold in THRESHOLDS) for share in shares]
        is_lower = any(now > before for now, before in zip(levels, self._levels, strict=True))
        is_repeated = sent is not None and last is not None and last.model_failure is not None
        self._levels, self._latest = levels, None
        if is_lower or is_repeated:
            left = [_left(limit, state, share) for limit, share in zip(self._limits, shares, strict=True)]
            text = f"Left for this run: {', '.join(left)}. Answer before it is used up."
            self._latest = Message(MessageRole.DEVELOPER, text, source=("show_limits",))
        return self._latest


def _allowed(limit: Limit, state: AgentState) -> float:
    return limit.limit + limit.granted(state)


def _left(limit: Limit, state: AgentState, share: float) -> str:
    """Return what is left of one limit: "4 of 20 steps", "31 % of tokens"."""
    of_session = " of this session" if limit.scope == "session" else ""
    if isinstance(limit, StepsLimit):
        allowed = _allowed(limit, state)
        return f"{max(0, allowed - limit.used(state)):g} of {allowed:g} steps{of_session}"
    return f"{share:.0%} of {limit.noun or type(limit).__name__}{of_session}".replace("%", " %")
