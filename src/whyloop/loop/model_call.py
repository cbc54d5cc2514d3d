"""The model call of a step: the request, the answer as it streams in, and the transition it becomes."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime
from typing import Any

from whyloop.errors import ResponseValidationError
from whyloop.events import ChunkKind
from whyloop.loop.calls import CallPlan
from whyloop.loop.hooks import ask_with_hooks
from whyloop.loop.readable import readable
from whyloop.loop.recorder import Recorder
from whyloop.loop.setup import Setup, send
from whyloop.loop.step_in_progress import StepInProgress
from whyloop.rules.answers import answer_failure
from whyloop.rules.classify import model_failure
from whyloop.rules.repeated import written_call
from whyloop.values.messages import Message, MessageRole
from whyloop.values.model import ModelRequest, ModelResponse, ReasoningDelta, TextDelta
from whyloop.values.state import AgentState
from whyloop.values.step import Interruption
from whyloop.values.text import clean
from whyloop.values.transitions import Answered, ModelFailed
from whyloop.values.usage import NO_USAGE, Usage
from whyloop.wire.view import chunk_received, step_started

_ASSISTANT = MessageRole.ASSISTANT
_UNKNOWN_USAGE = Usage(reported=False)


def ask_model(setup: Setup, recorder: Recorder, step: StepInProgress) -> Coroutine[Any, Any, ModelResponse]:
    """Return the model's response, to be awaited; its text is sent in chunks as it arrives."""
    state = recorder.state
    if recorder.handlers:
        send(recorder.handlers, [step_started(state, step.taken_up_at, setup.tool_names)])
    request = ModelRequest(state.messages, setup.tool_specs, setup.instructions)
    if setup.hooks.around_model:
        return ask_with_hooks(setup.hooks, request, lambda sent: _stream(setup, recorder, step, sent), step)
    return _stream(setup, recorder, step, request)


async def _stream(
    setup: Setup, recorder: Recorder, step: StepInProgress, request: ModelRequest
) -> ModelResponse:
    """Read the model's stream to its end and return the complete response."""
    response, thought = None, False
    async for item in setup.world.respond(request):
        if isinstance(item, ModelResponse):
            response = item
        elif isinstance(item, TextDelta):
            _send_chunk(setup, recorder, step, clean(item.text))
            step.chunks.append(item.text)
        elif isinstance(item, ReasoningDelta):
            thought = True
            _send_chunk(setup, recorder, step, clean(item.text), kind="reasoning")
        else:
            raise ResponseValidationError(
                f"the model yielded {type(item).__name__} instead of a ModelResponse"
            )
    if response is None:
        raise ResponseValidationError("the model's stream ended without a complete response")
    if response.reasoning and not thought:
        _send_chunk(setup, recorder, step, clean(readable(response).reasoning), kind="reasoning")
    if response.text and not step.chunks:
        _send_text(setup, recorder, step, readable(response).text)
    if step.chunk_count:
        _send_chunk(setup, recorder, step, "", is_complete=True)
    return response


def _send_text(setup: Setup, recorder: Recorder, step: StepInProgress, text: str) -> None:
    """Send a text that did not arrive in pieces, unless it is a call: arguments are never in a chunk."""
    if text and written_call(text, setup.tool_names) is None:
        _send_chunk(setup, recorder, step, text)


def _send_chunk(
    setup: Setup,
    recorder: Recorder,
    step: StepInProgress,
    text: str,
    *,
    kind: ChunkKind = "text",
    is_complete: bool = False,
) -> None:
    if recorder.handlers:
        now, index = setup.world.now(), step.chunk_count
        chunk = chunk_received(recorder.state, now, text, index, kind=kind, is_complete=is_complete)
        send(recorder.handlers, [chunk])
    step.chunk_count += 1


def answered(
    setup: Setup, state: AgentState, response: ModelResponse, plan: CallPlan, step: StepInProgress
) -> Answered:
    """Return the transition of a model's response, with what is wrong with it."""
    truncated, message = response.finish_reason.truncates, None
    failure = answer_failure(response, setup.tool_names, after_results=state.execution.has_tool_results)
    if failure is None or failure.readable:
        reasoning = clean(response.reasoning) if response.reasoning else ""
        message = Message(_ASSISTANT, response.text, plan.calls, extras=response.extras, reasoning=reasoning)
    return Answered(
        setup.world.now(),
        started_at=step.taken_up_at,
        message=message,
        finish_reason=response.finish_reason,
        usage=response.usage,
        source=response.source,
        seconds=step.lap(setup.world.monotonic()),
        started=plan.started,
        questions=plan.questions,
        failure=failure,
        interrupted=Interruption.TRUNCATED if truncated else None,
        request=step.request.record,
        response_changed_by=step.response_changed_by,
    )


def partly_answered(step: StepInProgress, now: datetime, seconds: float) -> Answered:
    """Return the transition of an answer that was cut off; without any text there is no message."""
    text = clean("".join(step.chunks))
    return Answered(
        now,
        started_at=step.taken_up_at,
        message=Message(_ASSISTANT, text, incomplete=True) if text else None,
        usage=_UNKNOWN_USAGE,
        seconds=seconds,
        interrupted=step.interrupted,
        request=step.request.record,
    )


def failed(setup: Setup, step: StepInProgress, error: BaseException) -> ModelFailed:
    """Return the transition of a model call that failed."""
    return ModelFailed(
        setup.world.now(),
        started_at=step.taken_up_at,
        failure=model_failure(error),
        usage=_UNKNOWN_USAGE if step.chunk_count else NO_USAGE,
        seconds=step.lap(setup.world.monotonic()),
        request=step.request.record,
    )
