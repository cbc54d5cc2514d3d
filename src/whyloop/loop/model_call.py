"""The model call of a step: the request, the answer as it streams in, and the transition it becomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from msgspec.structs import replace

from whyloop.errors import ResponseValidationError
from whyloop.events import ChunkKind
from whyloop.loop.calls import CallPlan
from whyloop.loop.hooks import Hooks, expected
from whyloop.loop.recorder import Recorder
from whyloop.loop.setup import Setup, StepInProgress, send
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
from whyloop.values.state import AgentState
from whyloop.values.step import Interruption
from whyloop.values.step_transitions import Answered, ModelFailed
from whyloop.values.text import clean
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
        return _ask_with_hooks(setup.hooks, request, lambda sent: _stream(setup, recorder, step, sent), step)
    return _stream(setup, recorder, step, request)


async def _ask_with_hooks(
    hooks: Hooks,
    request: ModelRequest,
    ask: Callable[[ModelRequest], Awaitable[ModelResponse]],
    step: StepInProgress,
) -> ModelResponse:
    """Return the model's response with the hooks around the call; every change is noted with its hook."""
    sent, response = request, None
    changed_by: tuple[str, ...] = ()
    for name, before_model in hooks.before_model:
        answer = await before_model(sent)
        if isinstance(answer, ModelResponse):
            response, step.response_changed_by = answer, (name,)
            break
        if expected(ModelRequest, answer) is not sent:
            sent, changed_by = answer, (*changed_by, name)
            step.request = step.request.changed(request, sent, changed_by)
    if response is None:
        response = await ask(sent)
    for name, after_model in hooks.after_model:
        answer = expected(ModelResponse, await after_model(sent, response))
        if answer is not response:
            response, step.response_changed_by = answer, (*step.response_changed_by, name)
    return response


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


def readable(response: ModelResponse) -> ModelResponse:
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
