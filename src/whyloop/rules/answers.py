"""Whether a response is an answer, and what is wrong with it if it is not."""

from __future__ import annotations

from collections.abc import Collection

from whyloop.errors import ResponseValidationError
from whyloop.rules.classify import model_failure
from whyloop.rules.repeated import written_call
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.model import FinishReason, ModelResponse
from whyloop.values.text import shortened

EMPTY_REPLY = "the model's reply was empty: no text and no tool calls"
NAME_LENGTH = 64


def answer_failure(response: ModelResponse, tools: Collection[str], *, after_results: bool) -> Failure | None:
    """Return what is wrong with a response; None if it is an answer, asks for tools or continues.

    `tools` are the names of those that were offered. A response that is `readable` and wrong stays in the
    history, so that the model can correct itself. An empty one is an answer only after tool results.
    """
    if response.unsupported:
        arrived = ", ".join(shortened(item, 200) for item in response.unsupported)
        problem = f"the model answered with {arrived}, which whyloop does not support"
        return model_failure(ResponseValidationError(problem, retryable=False))
    if (
        response.tool_calls
        or response.finish_reason.truncates
        or response.finish_reason is FinishReason.PAUSE_TURN
    ):
        return None
    if not response.text.strip():
        return None if after_results else model_failure(ResponseValidationError(EMPTY_REPLY))
    if (name := written_call(response.text, tools)) is not None:
        problem = (
            f"the answer has a call of {shortened(name, NAME_LENGTH)} written as text, so it was not run: "
            "call the tool itself, and write no call as text"
        )
        return Failure(ErrorType.VALIDATION, problem, readable=True)
    return None
