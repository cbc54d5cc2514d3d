"""The wrap-up of a run that a limit ended: one last model call, for an answer from what is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from whyloop.errors import ResponseValidationError
from whyloop.rules.classification import answer_failure
from whyloop.values.judgement import feedback_of
from whyloop.values.messages import Message, MessageRole
from whyloop.values.model import ModelRequest, ModelResponse, OutputMode

if TYPE_CHECKING:
    from whyloop.loop.run import Run
    from whyloop.loop.setup import Setup
    from whyloop.loop.step import StepInProgress

ASK = (
    "{reason}. The run ends with your next message, and no more tools can be called. Answer now with what is "
    "known so far, and say in one sentence what is missing."
)


def wrap_up_request(run: Run, request: ModelRequest) -> ModelRequest:
    """Return the request for the last answer: the same tools, none of which may be called.

    The message that asks for it is part of the request alone. It includes the feedback of the last step,
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
    """Return how the model is asked for a typed answer where it may call no tool."""
    return OutputMode.PROMPT if setup.output_mode is OutputMode.TOOL else setup.output_mode


def check_wrap_up(run: Run, step: StepInProgress, response: ModelResponse) -> None:
    """Raise a `ResponseValidationError` if the response is not an answer: there is no second attempt."""
    step.usage = response.usage
    if response.tool_calls:
        names = ", ".join(dict.fromkeys([call.name for call in response.tool_calls]))
        raise ResponseValidationError(f"the model asked for tools instead of answering: {names}")
    if step.answer is not None:
        failure = step.answer.failure
    else:
        failure = answer_failure(response, run.setup.tool_names, after_results=True)
    if failure is not None:
        raise ResponseValidationError(failure.message)
    if not response.text.strip():
        truncated = " before it was truncated" if response.finish_reason.truncates else ""
        raise ResponseValidationError(f"the answer was empty{truncated}")
