"""The model call of a step: the request, the stream, and the resulting transition."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from whyloop.errors import NestingError, ResponseValidationError, ScriptError, WhyloopError
from whyloop.events import ChunkKind
from whyloop.logger import log_error
from whyloop.loop.attempts import asking
from whyloop.loop.calls import CallPlan, plan_at_once, plan_calls, run_context
from whyloop.loop.hooks import AroundModel, AskModel, WrongAnswerError, expected
from whyloop.loop.output import Output, json_start, language_before_call
from whyloop.loop.setup import RequestParts, Setup, send
from whyloop.loop.turns import in_turns
from whyloop.loop.wrap_up import check_wrap_up, wrap_up_mode, wrap_up_request
from whyloop.rules.classification import (
    OwnCodeError,
    answer_failure,
    model_failure,
    normalize_response,
    repair,
)
from whyloop.text.turns import SLICE, slices
from whyloop.text.visible_text import VisibleText
from whyloop.tools.tool import RunContext
from whyloop.values.failure import Failure
from whyloop.values.messages import NO_EXTRAS, Message, MessageRole
from whyloop.values.model import (
    NO_USAGE,
    FinishReason,
    ModelRequest,
    ModelResponse,
    ModelSource,
    OutputDelta,
    OutputMode,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from whyloop.values.step import Interruption
from whyloop.values.step_transitions import Answered, AnyTransition, CallFinished, ModelFailed
from whyloop.values.text import clean
from whyloop.wire.view import chunk_received, output_chunk, step_started

if TYPE_CHECKING:
    from whyloop.loop.run import Run
    from whyloop.loop.step import StepInProgress

_ASSISTANT = MessageRole.ASSISTANT
_UNKNOWN_USAGE = Usage(reported=False)


async def answer_transitions(run: Run, step: StepInProgress) -> Sequence[AnyTransition]:
    """Ask the model; return the transitions of its answer or its failure.

    They include the results of calls that do not start.
    """
    token = asking.set((run.world, step))
    try:
        if run.must_list:
            await run.list_tools(step)
        setup = run.setup
        if run.handlers:
            send(run.handlers, [step_started(run.state, step.begun_at, setup.tool_names)])
        instructions, output = setup.instructions, setup.output
        if instructions is not None and not isinstance(instructions, str):
            instructions = await _make_instructions(run, step, instructions)
        elif output is not None:
            instructions = output.instructions(instructions, setup.output_mode)
        response = await _ask(run, step, instructions)
        response = await in_turns(repair(response)) if _is_long(response) else normalize_response(response)
        if output is not None:
            response = await read_answer(run, step, output, response)
        if run.state.execution.wrap_up is not None:
            await check_wrap_up(run, step, response)
    except (ScriptError, NestingError):
        raise
    except (Exception, SystemExit) as error:
        return (*run.noted(step), failure_transition(run, step, error))
    finally:
        asking.reset(token)
    truncated = response.finish_reason.truncates
    plan = plan_at_once(setup, response, truncated=truncated)
    if plan is None:
        step.interruptible = False
        plan = await plan_calls(run, response)
    noted = run.noted(step)
    failure, shown = None, None
    if step.answer is not None:
        failure, shown = step.answer.failure, step.answer.shown
    elif response.text or response.unsupported or not response.tool_calls:
        failure, shown = await _judge_answer(run, response, truncated=truncated)
    answered = answer_transition(run, response, plan, step, failure=failure, shown=shown, truncated=truncated)
    results = [CallFinished(answered.at, index=index, result=plan.results[index]) for index in plan.results]
    return [*noted, answered, *results]


async def _make_instructions(
    run: Run, step: StepInProgress, instruct: Callable[[RunContext], str | Awaitable[str]]
) -> str:
    """Return the instructions that the agent's function makes for this request."""
    try:
        made = instruct(run_context(run.setup, run.state))
        text = await made if isawaitable(made) else made
    except (WhyloopError, SystemExit):
        raise
    except Exception as error:
        raise _own_code(run, "the instructions could not be made", error) from error
    if not isinstance(text, str):
        raise TypeError(f"the function for the instructions returned {type(text).__name__}: return a string")
    text = clean(text)
    if run.setup.output is not None:
        text = run.setup.output.instructions(text, run.setup.output_mode) or ""
    step.request = run.setup.request_parts.instructed(text)
    return text


def _own_code(run: Run, what: str, error: Exception) -> OwnCodeError:
    """Log an exception of the application's own code; return the one that people see."""
    log_error(run.state.agent_id, run.state.execution.next_step_number(), what, error)
    return OwnCodeError(what, error)


def _ask(run: Run, step: StepInProgress, instructions: str | None) -> Awaitable[ModelResponse]:
    """Return an awaitable of the response; its text is sent in chunks as it arrives."""
    setup, state = run.setup, run.state
    request = ModelRequest(state.messages, setup.tool_specs, instructions, setup.output_format)
    if state.execution.wrap_up is not None:
        request = wrap_up_request(run, request)
        step.request = step.request.with_options(state.messages, request)
    elif step.left is not None:
        request = replace(request, messages=(*request.messages, step.left))
        step.request = step.request.with_options(state.messages, request)
    if hooks := setup.hooks.around_model:
        return _ask_through(run, step, step.request, hooks)(request)
    return _stream(run, step, request)


def _ask_through(
    run: Run,
    step: StepInProgress,
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
        failed: Exception | None = None

        async def ask_next(request: ModelRequest) -> ModelResponse:
            nonlocal answer, failed
            is_changed = expected(ModelRequest, request) is not received
            by = (*changed_by, name) if is_changed else changed_by
            step.request = parts.changed(run.state.messages, request, by)
            step.response_changed_by = ()
            try:
                answer = await _ask_through(run, step, parts, inner_hooks, by)(request)
            except Exception as error:
                failed = error
                raise
            return answer

        try:
            response = expected(
                ModelResponse, await around_model(received, run_context(run.setup, run.state), ask_next)
            )
        except (WhyloopError, WrongAnswerError):
            raise
        except Exception as error:
            if error is failed:
                raise
            raise _own_code(run, f"the hook {name} failed", error) from error
        if response is not answer:
            step.response_changed_by = (*step.response_changed_by, name)
        return response

    return ask


async def _stream(run: Run, step: StepInProgress, request: ModelRequest) -> ModelResponse:
    """Read the model's stream to its end and return the complete response."""
    response, thought = None, False
    if step.chunks:  # A hook asked again: chunks of the previous answer are not part of this one.
        step.chunks, step.holds_back, step.sent = [], False, 0
    visible: VisibleText | None = None
    async for item in run.setup.local.respond(request):
        if isinstance(item, ModelResponse):
            response = item
        elif isinstance(item, TextDelta):
            visible = visible or _visible_text(run.setup)
            if visible is not None and len(item.text) > SLICE:
                await _take_long_text(run, step, visible, clean(item.text))
            else:
                _take_text(run, step, clean(item.text) if visible is None else visible.add(clean(item.text)))
        elif isinstance(item, ReasoningDelta):
            thought = True
            _send_chunk(run, step, clean(item.text), kind="reasoning")
        elif isinstance(item, OutputDelta):
            _send_output(run, item.text)
        else:
            raise ResponseValidationError(
                f"the model yielded {type(item).__name__} instead of a ModelResponse"
            )
    if response is None:
        raise ResponseValidationError("the model's stream ended without a complete response")
    if response.reasoning and not thought:
        _send_chunk(
            run, step, clean(normalize_response(replace(response, text="")).reasoning), kind="reasoning"
        )
    if run.setup.output is None:  # Otherwise the rest follows once it is known whether the answer fits.
        await _send_rest(run, step, response)
    return response


def _is_long(response: ModelResponse) -> bool:
    """Return whether a response is read in several turns of the event loop."""
    return isinstance(response.text, str) and len(response.text) > SLICE


def _visible_text(setup: Setup) -> VisibleText | None:
    """Return the filter for an answer's text; None if it cannot contain a call.

    A typed answer is itself JSON; its text is held back from the first sign of JSON on.
    """
    is_text = setup.output is None or setup.output_mode is OutputMode.TEXT
    return VisibleText(setup.tool_specs) if is_text and setup.tool_specs else None


async def read_answer(
    run: Run, step: StepInProgress, output: Output, response: ModelResponse
) -> ModelResponse:
    """Read a response as an output, and send the held-back text that people may see."""
    step.usage = response.usage
    mode = run.setup.output_mode if run.state.execution.wrap_up is None else wrap_up_mode(run.setup)
    response, step.answer = await output.read(run, response, mode or OutputMode.TOOL)
    text = response.text if step.answer.shown is None else step.answer.shown
    sent = clean("".join(step.chunks))[: step.sent]
    if (rest := text.removeprefix(sent)) and text.startswith(sent):
        _send_chunk(run, step, rest)
    if step.chunk_count:
        _send_chunk(run, step, "", is_complete=True)
    return response


def _take_text(run: Run, step: StepInProgress, text: str) -> None:
    """Send a piece of the answer that people may see, and keep it."""
    send_text = _send_chunk if run.setup.output is None else _send_typed
    if text:
        send_text(run, step, text)
        step.chunks.append(text)


async def _take_long_text(run: Run, step: StepInProgress, visible: VisibleText, text: str) -> None:
    """Send and keep the part of a long piece that can be shown, a slice in each turn."""
    for part in slices(text):
        _take_text(run, step, visible.add(part))
        await sleep(0)


def _send_typed(run: Run, step: StepInProgress, text: str) -> None:
    """Send the prose of a typed answer as text, and its JSON as output pieces."""
    is_first = not any(map(str.strip, step.chunks))
    start = 0 if step.holds_back else json_start(text, is_first=is_first)
    if run.setup.output_mode is OutputMode.TEXT:
        start = None
    if language := text[:start]:
        step.sent += len(language)
        _send_chunk(run, step, language)
    if start is not None:
        step.holds_back = True
        _send_output(run, text[start:])


def _send_output(run: Run, text: str) -> None:
    output = run.setup.output
    if run.handlers and output is not None:
        chunk = output_chunk(run.state, run.world.now(), text, is_wrapped=output.is_wrapped)
        send(run.handlers, [chunk])


async def _send_rest(run: Run, step: StepInProgress, response: ModelResponse) -> None:
    """Send the text that was not streamed or was held back, without calls, and the end."""
    sent = "".join(step.chunks)
    if response.text and sent != response.text:
        response = await in_turns(repair(response)) if _is_long(response) else normalize_response(response)
        shown = await in_turns(language_before_call(run.setup, response))
        text = response.text if shown is None else shown
        if text.startswith(sent) and (rest := text[len(sent) :]):
            _send_chunk(run, step, rest)
    if step.chunk_count:
        _send_chunk(run, step, "", is_complete=True)


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


async def _judge_answer(
    run: Run, response: ModelResponse, *, truncated: bool
) -> tuple[Failure | None, str | None]:
    """Return the failure of a response, and its text for people if that differs."""
    has_results = run.state.execution.has_tool_results
    failure = await in_turns(answer_failure(response, run.setup.tool_names, after_results=has_results))
    # In a complete answer without calls, a call in the text is the failure.
    is_plain = not (failure or truncated or response.tool_calls)
    if not response.text or (is_plain and response.finish_reason is not FinishReason.PAUSE_TURN):
        return failure, None
    return failure, await in_turns(language_before_call(run.setup, response))


def answer_transition(
    run: Run,
    response: ModelResponse,
    plan: CallPlan,
    step: StepInProgress,
    *,
    failure: Failure | None,
    shown: str | None,
    truncated: bool,
) -> Answered:
    """Return the transition of a model's response, including what is wrong with it."""
    message, answer = None, step.answer
    if failure is None or failure.readable:
        reasoning = clean(response.reasoning) if response.reasoning else ""
        message = Message(
            _ASSISTANT,
            response.text,
            plan.calls,
            extras=response.extras or NO_EXTRAS,
            reasoning=reasoning,
            shown=shown,
        )
    return Answered(
        run.world.now(),
        started_at=step.begun_at,
        message=message,
        finish_reason=response.finish_reason,
        usage=response.usage,
        source=_source(step, response.source) if step.attempts or response.source else None,
        seconds=step.lap(run.world.monotonic()),
        started=plan.started,
        questions=plan.questions,
        failure=failure,
        interrupted=Interruption.TRUNCATED if truncated else None,
        request=step.request.record,
        response_changed_by=step.response_changed_by,
        output=None if answer is None else answer.output,
    )


def partial_answer_transition(step: StepInProgress, now: datetime, seconds: float) -> Answered:
    """Return the transition of a partial answer; without text it adds no message."""
    text = clean("".join(step.chunks))
    shown = text[: step.sent] if step.holds_back else None
    return Answered(
        now,
        started_at=step.begun_at,
        message=Message(_ASSISTANT, text, incomplete=True, shown=shown) if text else None,
        usage=step.usage or _UNKNOWN_USAGE,
        source=_source(step),
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
        usage=step.usage or (_UNKNOWN_USAGE if step.chunk_count else NO_USAGE),
        source=_source(step),
        seconds=step.lap(run.world.monotonic()),
        request=step.request.record,
    )


def _source(step: StepInProgress, source: ModelSource | None = None) -> ModelSource | None:
    """Return the source of an answer with the attempts of its step.

    Attempts that the model only reports, such as those of a recording, made nobody wait here.
    """
    if step.attempts:
        return replace(source or ModelSource(), attempts=step.attempts)
    if source is not None and source.attempts:
        attempts = tuple([replace(attempt, waited=0.0) for attempt in source.attempts])
        return replace(source, attempts=attempts)
    return source
