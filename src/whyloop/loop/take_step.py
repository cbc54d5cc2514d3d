"""One step: ask the model, run its tools, evaluate, record, tell everyone."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from whyloop.errors import ResponseValidationError, ScriptError
from whyloop.events import AgentStepStarted, StreamChunkReceived
from whyloop.loop.emit import Emitter
from whyloop.loop.kit import Kit
from whyloop.loop.record import record_step
from whyloop.loop.run_tools import ToolRunner, skipped
from whyloop.rules.classify import model_failure
from whyloop.values.failure import Failure
from whyloop.values.messages import Message
from whyloop.values.model import ModelRequest, ModelResponse, TextDelta
from whyloop.values.state import AgentState
from whyloop.values.step import Step
from whyloop.values.usage import Usage

_NO_USAGE = Usage()
CANCELLED = "The task that ran it was cancelled"
OUT_OF_TIME = "Cut off: the time for this execution was up"


class Draft:
    """A step in the making: whatever has come of it so far, whenever it is cut off."""

    response: ModelResponse | None = None
    failure: Failure | None = None
    tools: ToolRunner | None = None
    unrun: str | None = None
    interrupted: str | None = None


async def take_step(kit: Kit, state: AgentState) -> AgentState:
    """Make the step, evaluate, record, tell everyone; in success and in failure alike."""
    world = kit.world
    emit = kit.emitter(state, state.execution.step_count + 1)
    emit(AgentStepStarted, len(state.messages), kit.tool_names)
    draft, cancelled = Draft(), None
    started_at, stopwatch = world.now(), world.monotonic()
    seconds_left = kit.criteria.seconds_left(state, started_at)
    try:
        async with world.timeout(seconds_left):
            await _attempt(kit, emit, state, draft, _deadline(started_at, seconds_left))
    except TimeoutError:
        draft.interrupted = OUT_OF_TIME
    except asyncio.CancelledError as error:
        draft.interrupted, cancelled = CANCELLED, error
    seconds = max(0.0, world.monotonic() - stopwatch)
    step, messages = _finished(state, draft, started_at, world.now(), seconds)
    if cancelled is None:
        return record_step(kit, emit, state, step, messages)
    state = record_step(kit, emit, state.with_stop_request(CANCELLED), step, messages)
    cancelled.whyloop_state = state  # type: ignore[attr-defined]  # found by errors.interrupted_state
    raise cancelled


async def _attempt(
    kit: Kit, emit: Emitter, state: AgentState, draft: Draft, deadline: datetime | None
) -> None:
    try:
        draft.response = await _ask(kit, emit, state)
    except ScriptError:
        raise
    except Exception as error:
        draft.failure = model_failure(error)
        return
    if calls := draft.response.tool_calls:
        # Whoever asked for a stop while the model was thinking does not want its tools to run.
        draft.unrun = kit.stop_request(state.execution.id)
        if draft.unrun is None:
            draft.tools = ToolRunner(kit, emit, state, calls, deadline)
            await draft.tools.run()


async def _ask(kit: Kit, emit: Emitter, state: AgentState) -> ModelResponse:
    """The model's complete response; its text goes out in pieces as it arrives."""
    request = ModelRequest(state.messages, kit.tool_specs, kit.instructions)
    response: ModelResponse | None = None
    for before in kit.hooks.before_model:
        answer = await before(request)
        if isinstance(answer, ModelResponse):
            response = answer
            break
        request = answer
    if response is None:
        response = await _stream(kit, emit, request)
    for after in kit.hooks.after_model:
        response = await after(request, response)
    return response


async def _stream(kit: Kit, emit: Emitter, request: ModelRequest) -> ModelResponse:
    chunks, response = 0, None
    async for item in kit.world.respond(request):
        if isinstance(item, TextDelta):
            emit(StreamChunkReceived, item.text, chunks, False)
            chunks += 1
        else:
            response = item
    if response is None:
        raise ResponseValidationError("the model's stream ended without a complete response")
    if chunks:
        emit(StreamChunkReceived, "", chunks, True)
    return response


def _finished(
    state: AgentState, draft: Draft, started_at: datetime, completed_at: datetime, seconds: float
) -> tuple[Step, list[Message]]:
    """The step as it will be recorded, and what it adds to the conversation."""
    response = draft.response
    messages, runs = [], []
    if response is not None:
        messages.append(Message.assistant(response.text, response.tool_calls))
        otherwise = draft.unrun or draft.interrupted or "it was not run"
        ran = (
            draft.tools.results(otherwise)
            if draft.tools
            else [skipped(call, otherwise) for call in response.tool_calls]
        )
        runs = [run for run, _ in ran]
        messages += [message for _, message in ran]
    step = Step(
        number=state.execution.step_count + 1,
        execution_id=state.execution.id,
        started_at=started_at,
        completed_at=completed_at,
        first_message=len(state.messages),
        message_count=len(messages),
        tool_calls=tuple(runs),
        finish_reason=response.finish_reason if response else None,
        usage=response.usage if response else _NO_USAGE,
        duration_ms=round(seconds * 1000, 3),
        model_failure=draft.failure,
        interrupted=draft.interrupted,
    )
    return step, messages


def _deadline(now: datetime, seconds_left: float | None) -> datetime | None:
    return None if seconds_left is None else now + timedelta(seconds=seconds_left)
