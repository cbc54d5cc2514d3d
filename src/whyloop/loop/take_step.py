"""One step: ask the model, run its tools, evaluate, record, tell everyone."""

from __future__ import annotations

import asyncio
from datetime import datetime

from whyloop.errors import (
    DeadlineExceeded,
    NestingError,
    ResponseValidationError,
    ScriptError,
    leave_state,
)
from whyloop.events import AgentStepStarted, StreamChunkReceived, ToolCallCompleted
from whyloop.loop.draft import Draft
from whyloop.loop.emit import Emitter
from whyloop.loop.hooks import expected
from whyloop.loop.kit import Kit
from whyloop.loop.open_calls import run_open
from whyloop.loop.readable import readable
from whyloop.loop.record import record_step, settle
from whyloop.loop.run_tools import run_call, together
from whyloop.loop.waiting import DONE, begun, ended_within
from whyloop.rules.classify import model_failure
from whyloop.values.approval import Verdict
from whyloop.values.model import ModelRequest, ModelResponse, TextDelta
from whyloop.values.state import AgentState
from whyloop.values.text import clean

CANCELLED = "The task that ran it was cancelled"
OUT_OF_TIME = "Cut off: the time for this execution was up"


async def take_step(kit: Kit, state: AgentState) -> AgentState:
    """Make the step, evaluate, record, tell everyone; in success and in failure alike."""
    world = kit.world
    now, stopwatch = world.now(), world.monotonic()
    emit = Emitter(kit.listeners, state, state.execution.step_count + 1)
    draft = Draft(kit, state, now, stopwatch)
    if draft.open is None:
        emit(AgentStepStarted, now, len(state.messages), kit.tool_names)
    cancelled: BaseException | None = None
    try:
        attempt = _attempt(kit, emit, state, draft)
        waiting_for = begun(attempt)
        if waiting_for is not DONE:
            await ended_within(draft.time_left, attempt, waiting_for)
    except DeadlineExceeded:
        draft.interrupted = OUT_OF_TIME
        stopwatch = min(stopwatch, world.monotonic() - draft.time_given)
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        draft.interrupted, cancelled = CANCELLED, error
        # What a deploy cuts off is like a crash: whoever goes on will find the calls as they were.
        draft.resumable = kit.journal is not None
        state = state.with_stop_request(CANCELLED)
    now, seconds = world.now(), world.monotonic() - stopwatch
    if draft.cut:
        _tell_unfinished(emit, now, draft)
    if draft.open is not None and draft.stays_open:
        state = await settle(kit, emit, draft.left(state, now, seconds), now)
    else:
        if state.open_step is not None:
            _tell_denied(emit, now, draft)
        step, messages = draft.finished(state, now, seconds)
        state = await record_step(kit, emit, state, step, messages)
    if cancelled is not None:
        leave_state(cancelled, state)
        raise cancelled
    return state


def _tell_unfinished(emit: Emitter, now: datetime, draft: Draft) -> None:
    """Nobody who heard of a call that was cut off is left without its end."""
    for index, call in enumerate(draft.calls):
        if index in draft.cut:
            result, duration = draft.came_of(index)
            words = result.error or ""
            emit(ToolCallCompleted, now, call.name, call.id, False, words, duration, words)


def _tell_denied(emit: Emitter, now: datetime, draft: Draft) -> None:
    """What a person said no to comes to its end with the step, and no tool tells of it."""
    for asked, call in zip(draft.calls, draft.step.calls, strict=True):
        if call.result is not None and call.approvals and call.approvals[-1].verdict is Verdict.DENIED:
            error = call.result.error or ""
            emit(ToolCallCompleted, now, asked.name, asked.id, False, error, 0.0, call.result.content)


async def _attempt(kit: Kit, emit: Emitter, state: AgentState, draft: Draft) -> None:
    """Ask the model and run the tools that it asks for; the draft keeps what came of it."""
    if draft.open is not None:
        await run_open(kit, emit, state, draft)  # The model has answered already.
        return
    ask = _ask_hooked if kit.hooks.around_model else _ask
    try:
        request = ModelRequest(state.messages, kit.tool_specs, kit.instructions)
        response = readable(await ask(kit, emit, request))
    except (ScriptError, NestingError):
        raise
    except (Exception, SystemExit) as error:
        draft.failures = (model_failure(error),)
        return
    draft.response = response
    if response.tool_calls:
        # Whoever asked for a stop while the model was thinking does not want its tools to run.
        draft.unrun = kit.stops.words.get(state.execution.id)
        if draft.unrun is not None:
            return
        calls = response.tool_calls
        if kit.journal is not None or kit.asks_people:
            await run_open(kit, emit, state, draft)
        elif len(calls) == 1:
            await run_call(kit, emit, state, draft, 0, calls[0])
        else:
            await together([run_call(kit, emit, state, draft, *each) for each in enumerate(calls)])


async def _ask_hooked(kit: Kit, emit: Emitter, request: ModelRequest) -> ModelResponse:
    """The model's response, with the agent's hooks around the call."""
    response: ModelResponse | None = None
    for before in kit.hooks.before_model:
        answer = await before(request)
        if isinstance(answer, ModelResponse):
            response = answer
            break
        request = expected(ModelRequest, answer)
    if response is None:
        response = await _ask(kit, emit, request)
    for after in kit.hooks.after_model:
        response = expected(ModelResponse, await after(request, response))
    return response


async def _ask(kit: Kit, emit: Emitter, request: ModelRequest) -> ModelResponse:
    """The model's complete response; its text goes out in pieces as it arrives."""
    chunks, response = 0, None
    async for item in kit.world.respond(request):
        if isinstance(item, TextDelta):
            emit(StreamChunkReceived, kit.world.now(), clean(item.text), chunks, False)
            chunks += 1
        elif isinstance(item, ModelResponse):
            response = item
        else:
            raise ResponseValidationError(f"the model yielded {item!r} instead of a ModelResponse")
    if response is None:
        raise ResponseValidationError("the model's stream ended without a complete response")
    if chunks:
        emit(StreamChunkReceived, kit.world.now(), "", chunks, True)
    return response
