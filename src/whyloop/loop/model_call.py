"""The model call of a step: the request, the stream, and the resulting transition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING

from whyloop.errors import ResponseValidationError, WhyloopError
from whyloop.events import ChunkKind
from whyloop.loop.calls import CallPlan, run_context
from whyloop.loop.hooks import AroundModel, AskModel, expected
from whyloop.loop.setup import RequestParts, send
from whyloop.rules.classification import answer_failure, error_text, model_failure, normalize_response
from whyloop.rules.written_calls import VisibleText, written_call
from whyloop.tools.tool import RunContext
from whyloop.values.messages import NO_EXTRAS, Message, MessageRole
from whyloop.values.model import (
    NO_USAGE,
    ModelRequest,
    ModelResponse,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from whyloop.values.step import Interruption
from whyloop.values.step_transitions import Answered, ModelFailed
from whyloop.values.text import clean
from whyloop.wire.view import chunk_received, step_started

if TYPE_CHECKING:
    from whyloop.loop.run import Run, StepInProgress

_ASSISTANT = MessageRole.ASSISTANT
_UNKNOWN_USAGE = Usage(reported=False)


def ask_model(run: Run, step: StepInProgress) -> Awaitable[ModelResponse]:
    """Return an awaitable of the response; its text is sent in chunks as it arrives."""
    state, setup = run.state, run.setup
    if run.handlers:
        send(run.handlers, [step_started(state, step.begun_at, setup.tool_names)])
    if setup.instructions is None or isinstance(setup.instructions, str):
        return _ask(run, step, ModelRequest(state.messages, setup.tool_specs, setup.instructions))
    return _ask_instructed(run, step, setup.instructions)


async def _ask_instructed(
    run: Run, step: StepInProgress, instruct: Callable[[RunContext], str | Awaitable[str]]
) -> ModelResponse:
    """Make the instructions for this request, and ask the model with them."""
    try:
        made = instruct(run_context(run.setup, run.state))
        text = await made if isawaitable(made) else made
    except (WhyloopError, SystemExit):
        raise
    except Exception as error:
        raise RuntimeError(f"the instructions could not be made: {error_text(error)}") from error
    if not isinstance(text, str):
        raise TypeError(f"the function for the instructions returned {type(text).__name__}: return a text")
    text = clean(text)
    step.request = run.setup.request_parts.instructed(text)
    return await _ask(run, step, ModelRequest(run.state.messages, run.setup.tool_specs, text))


def _ask(run: Run, step: StepInProgress, request: ModelRequest) -> Awaitable[ModelResponse]:
    if hooks := run.setup.hooks.around_model:
        return _ask_through(run, step, request, step.request, hooks)(request)
    return _stream(run, step, request)


def _ask_through(
    run: Run,
    step: StepInProgress,
    original: ModelRequest,
    parts: RequestParts,
    hooks: Sequence[tuple[str, AroundModel]],
    changed_by: tuple[str, ...] = (),
) -> AskModel:
    """Return a function that asks the model through hooks and records their changes."""
    if not hooks:
        return partial(_stream, run, step)
    (name, around_model), inner_hooks = hooks[0], hooks[1:]

    async def ask(received: ModelRequest) -> ModelResponse:
        answer: ModelResponse | None = None

        async def ask_next(request: ModelRequest) -> ModelResponse:
            nonlocal answer
            is_changed = expected(ModelRequest, request) is not received
            by = (*changed_by, name) if is_changed else changed_by
            step.request = parts.changed(original, request, by)
            step.response_changed_by = ()
            answer = await _ask_through(run, step, original, parts, inner_hooks, by)(request)
            return answer

        response = expected(
            ModelResponse, await around_model(received, run_context(run.setup, run.state), ask_next)
        )
        if response is not answer:
            step.response_changed_by = (*step.response_changed_by, name)
        return response

    return ask


async def _stream(run: Run, step: StepInProgress, request: ModelRequest) -> ModelResponse:
    """Read the model's stream to its end and return the complete response."""
    response, thought = None, False
    step.chunks = []  # A hook may ask again, and what it had heard before is not part of this answer.
    async for item in run.world.respond(request):
        if isinstance(item, ModelResponse):
            response = item
        elif isinstance(item, TextDelta):
            _send_chunk(run, step, clean(item.text))
            step.chunks.append(item.text)
        elif isinstance(item, ReasoningDelta):
            thought = True
            _send_chunk(run, step, clean(item.text), kind="reasoning")
        else:
            raise ResponseValidationError(
                f"the model yielded {type(item).__name__} instead of a ModelResponse"
            )
    if response is None:
        raise ResponseValidationError("the model's stream ended without a complete response")
    if response.reasoning and not thought:
        _send_chunk(run, step, clean(normalize_response(response).reasoning), kind="reasoning")
    if response.text and not step.chunks:
        _send_text(run, step, normalize_response(response).text)
    if step.chunk_count:
        _send_chunk(run, step, "", is_complete=True)
    return response


def _send_text(run: Run, step: StepInProgress, text: str) -> None:
    """Send a text that did not arrive in pieces, without a call in it: arguments are never in a chunk."""
    shown = _shown(run, text)
    if text := text if shown is None else shown:
        _send_chunk(run, step, text)


def _send_chunk(
    run: Run,
    step: StepInProgress,
    text: str,
    *,
    kind: ChunkKind = "text",
    is_complete: bool = False,
) -> None:
    if run.handlers:
        now, index = run.world.now(), step.chunk_count
        chunk = chunk_received(run.state, now, text, index, kind=kind, is_complete=is_complete)
        send(run.handlers, [chunk])
    step.chunk_count += 1


def answer_transition(run: Run, response: ModelResponse, plan: CallPlan, step: StepInProgress) -> Answered:
    """Return the transition of a model's response, with what is wrong with it."""
    truncated, message = response.finish_reason.truncates, None
    has_results = run.state.execution.has_tool_results
    failure = answer_failure(response, run.setup.tool_names, after_results=has_results)
    if failure is None or failure.readable:
        reasoning = clean(response.reasoning) if response.reasoning else ""
        message = Message(
            _ASSISTANT,
            response.text,
            plan.calls,
            extras=response.extras or NO_EXTRAS,
            reasoning=reasoning,
            shown=_shown(run, response.text) if failure or truncated else None,
        )
    return Answered(
        run.world.now(),
        started_at=step.begun_at,
        message=message,
        finish_reason=response.finish_reason,
        usage=response.usage,
        source=response.source,
        seconds=step.lap(run.world.monotonic()),
        started=plan.started,
        questions=plan.questions,
        failure=failure,
        interrupted=Interruption.TRUNCATED if truncated else None,
        request=step.request.record,
        response_changed_by=step.response_changed_by,
    )


def _shown(run: Run, text: str) -> str | None:
    """Return the text before a call that is written as text; None if there is no such call."""
    if written_call(text, run.setup.tool_names) is None:
        return None
    shown = VisibleText(run.setup.tool_specs).add(text).rstrip()
    return shown if written_call(shown, run.setup.tool_names) is None else ""


def partial_answer_transition(step: StepInProgress, now: datetime, seconds: float) -> Answered:
    """Return the transition of an answer that was cut off; no text, no message."""
    text = clean("".join(step.chunks))
    return Answered(
        now,
        started_at=step.begun_at,
        message=Message(_ASSISTANT, text, incomplete=True) if text else None,
        usage=_UNKNOWN_USAGE,
        seconds=seconds,
        interrupted=step.interrupted,
        request=step.request.record,
    )


def failure_transition(run: Run, step: StepInProgress, error: BaseException) -> ModelFailed:
    """Return the transition of a model call that failed."""
    return ModelFailed(
        run.world.now(),
        started_at=step.begun_at,
        failure=model_failure(error),
        usage=_UNKNOWN_USAGE if step.chunk_count else NO_USAGE,
        seconds=step.lap(run.world.monotonic()),
        request=step.request.record,
    )
