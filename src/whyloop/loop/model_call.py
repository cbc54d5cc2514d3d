"""The model call of a step: the request, the answer as it streams in, and the transition it becomes."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from msgspec.structs import replace

from whyloop.errors import ResponseValidationError
from whyloop.events import ChunkKind
from whyloop.loop.calls import CallPlan, run_context
from whyloop.loop.hooks import AroundModel, AskModel, expected
from whyloop.loop.setup import send
from whyloop.rules.classification import answer_failure, model_failure
from whyloop.rules.written_calls import without_calls, written_call
from whyloop.values.messages import Message, MessageRole, ToolCall
from whyloop.values.model import (
    NO_USAGE,
    FinishReason,
    ModelRequest,
    ModelResponse,
    ModelSource,
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
    """Return the model's response, to be awaited; its text is sent in chunks as it arrives."""
    state, setup = run.state, run.setup
    if run.handlers:
        send(run.handlers, [step_started(state, step.taken_up_at, setup.tool_names)])
    request = ModelRequest(state.messages, setup.tool_specs, setup.instructions)
    if setup.hooks.around_model:
        return _ask_through(run, step, request, setup.hooks.around_model)(request)
    return _stream(run, step, request)


def _ask_through(
    run: Run,
    step: StepInProgress,
    original: ModelRequest,
    hooks: Sequence[tuple[str, AroundModel]],
    changed_by: tuple[str, ...] = (),
) -> AskModel:
    """Return a function that asks the model through hooks, and notes which of them changed something."""
    if not hooks:
        return partial(_stream, run, step)
    (name, around_model), inner_hooks = hooks[0], hooks[1:]

    async def ask(received: ModelRequest) -> ModelResponse:
        answer: ModelResponse | None = None

        async def ask_next(request: ModelRequest) -> ModelResponse:
            nonlocal answer
            is_changed = expected(ModelRequest, request) is not received
            by = (*changed_by, name) if is_changed else changed_by
            step.request = run.setup.request_parts.changed(original, request, by)
            step.response_changed_by = ()
            answer = await _ask_through(run, step, original, inner_hooks, by)(request)
            return answer

        response = expected(ModelResponse, await around_model(received, run_context(run.state), ask_next))
        if response is not answer:
            step.response_changed_by = (*step.response_changed_by, name)
        return response

    return ask


async def _stream(run: Run, step: StepInProgress, request: ModelRequest) -> ModelResponse:
    """Read the model's stream to its end and return the complete response."""
    response, thought = None, False
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
    """Send a text that did not arrive in pieces, unless it is a call: arguments are never in a chunk."""
    if text and written_call(text, run.setup.tool_names) is None:
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


def answered(run: Run, response: ModelResponse, plan: CallPlan, step: StepInProgress) -> Answered:
    """Return the transition of a model's response, with what is wrong with it."""
    truncated, message = response.finish_reason.truncates, None
    has_results = run.state.execution.has_tool_results
    failure = answer_failure(response, run.setup.tool_names, after_results=has_results)
    if failure is None or failure.readable:
        reasoning = clean(response.reasoning) if response.reasoning else ""
        message = Message(_ASSISTANT, response.text, plan.calls, extras=response.extras, reasoning=reasoning)
    return Answered(
        run.world.now(),
        started_at=step.taken_up_at,
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


def failed(run: Run, step: StepInProgress, error: BaseException) -> ModelFailed:
    """Return the transition of a model call that failed."""
    return ModelFailed(
        run.world.now(),
        started_at=step.taken_up_at,
        failure=model_failure(error),
        usage=_UNKNOWN_USAGE if step.chunk_count else NO_USAGE,
        seconds=step.lap(run.world.monotonic()),
        request=step.request.record,
    )


def normalize_response(response: ModelResponse) -> ModelResponse:
    """The response itself where it is as it should be, else one that is; a careless model is data, too."""
    try:
        usage = response.usage
        if (
            response.text.isascii()
            and type(response.finish_reason) is FinishReason
            and type(response.tool_calls) is tuple
            and type(response.extras) is dict
            and type(response.reasoning) is str
            and response.source is None
            and not response.unsupported
            and (usage.input | usage.output | usage.cached | usage.reasoning) >= 0
        ):
            if response.text and response.tool_calls:
                return _repaired(response)
            for call in response.tool_calls:
                if not (call.name.isascii() and call.id.isascii()) or type(call.arguments) is not dict:
                    break
            else:
                if len(response.tool_calls) < 2 or _are_apart(response.tool_calls):
                    return response
        return _repaired(response)
    except (AttributeError, TypeError):
        return _repaired(response)  # Something in it is not what it should be; there it is named.


def _repaired(response: ModelResponse) -> ModelResponse:
    if not isinstance(response.text, str):
        raise ResponseValidationError(f"the model's text is {_type(response.text)} instead of str")
    if not isinstance(response.reasoning, str | None):
        raise ResponseValidationError(f"the model's reasoning is {_type(response.reasoning)} instead of str")
    if not isinstance(response.usage, Usage):
        raise ResponseValidationError(f"the model's usage is {_type(response.usage)} instead of Usage")
    word = response.finish_reason
    known = word in list(FinishReason)
    unsupported = tuple(clean(str(item)) for item in response.unsupported)
    # Nothing of a response runs that cannot be answered as a whole.
    calls = () if unsupported else _told_apart([_call(call) for call in response.tool_calls])
    return replace(
        response,
        # Whatever the model is: arguments are no language, and are not kept as text.
        text=without_calls(clean(response.text), calls),
        reasoning=response.reasoning or "",
        usage=_usage(response.usage),
        tool_calls=calls,
        finish_reason=FinishReason(word) if known else FinishReason.OTHER,
        extras=response.extras if isinstance(response.extras, dict) else {},
        source=_source(response.source),
        unsupported=unsupported,
    )


def _usage(usage: Usage) -> Usage:
    cost = usage.cost if isinstance(usage.cost, Decimal) and usage.cost.is_finite() else None
    return Usage(
        _count(usage.input),
        _count(usage.output),
        _count(usage.cached),
        _count(usage.reasoning),
        cost,
        usage.reported is not False,
    )


def _count(number: object) -> int:
    """A number of tokens, whatever a provider made of it."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
        return 0
    return max(0, int(number))


def _call(call: object) -> ToolCall:
    if not isinstance(call, ToolCall) or not isinstance(call.name, str) or not isinstance(call.id, str):
        raise ResponseValidationError(f"the model asked for {_type(call)}, which is not a valid ToolCall")
    arguments = call.arguments
    if not isinstance(arguments, Mapping | str):
        raise ResponseValidationError(f"the arguments for {call.name} are {_type(arguments)} instead of dict")
    if not isinstance(arguments, str):
        arguments = dict(arguments)
    return ToolCall(clean(call.id), clean(call.name), arguments)


def _type(value: object) -> str:
    """Return the name of a type: the value may hold arguments, and a failure is shown to people."""
    return type(value).__name__


def _are_apart(calls: Sequence[ToolCall]) -> bool:
    return len({call.id for call in calls}) == len(calls)


def _told_apart(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls with an id each, since results and decisions go by it."""
    if _are_apart(calls):
        return tuple(calls)
    taken: set[str] = set()
    apart = []
    for call in calls:
        own, number = call.id, 1
        while own in taken:
            number += 1
            own = f"{call.id}-{number}"
        taken.add(own)
        apart.append(call if own == call.id else replace(call, id=own))
    return tuple(apart)


def _source(source: object) -> ModelSource | None:
    """Where the answer came from, as far as it is said in words."""
    if not isinstance(source, ModelSource):
        return None
    model, answer, word = (
        text if isinstance(text, str) else None
        for text in (source.model, source.response_id, source.finish_word)
    )
    notes = source.notes if isinstance(source.notes, tuple) else ()
    words = tuple(note for note in notes if isinstance(note, str))
    same = (model, answer, word, words) == (
        source.model,
        source.response_id,
        source.finish_word,
        source.notes,
    )
    return source if same else ModelSource(model, answer, word, words)
