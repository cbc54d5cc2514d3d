"""Running the tool calls of a step that is kept open: recorded before they run, or when a person agrees."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import msgspec
from msgspec.structs import replace

from whyloop.loop.draft import Draft
from whyloop.loop.emit import Emitter
from whyloop.loop.kit import Kit
from whyloop.loop.run_tools import run_call, together
from whyloop.rules.classify import words_of
from whyloop.values.messages import ToolCall
from whyloop.values.open_step import OpenCall, OpenStep
from whyloop.values.plain import describe
from whyloop.values.state import SOMEBODY, AgentState
from whyloop.values.text import clean, shortened

_STARTED = OpenCall(started=True)


async def run_open(kit: Kit, emit: Emitter, state: AgentState, draft: Draft) -> None:
    """Run what may run of a step that was just opened, or that was left open earlier."""
    step = draft.open
    draft.open = step = draft.opened(_asked(kit, draft)) if step is None else _gone_on_with(kit, step)
    running = [index for index, call in enumerate(step.calls) if call.started and not call.is_done]
    if running and kit.journal is not None:
        await kit.journal.record(state.with_open_step(step))
        # Whoever asked for a stop until now does not want the tools to run.
        draft.unrun = kit.stops.words.get(state.execution.id)
        if draft.unrun is not None:
            return
    if len(running) == 1:
        await _run(kit, emit, state, draft, running[0])
    elif running:
        await together([_run_and_record(kit, emit, state, draft, index) for index in running])


async def _run(kit: Kit, emit: Emitter, state: AgentState, draft: Draft, index: int) -> None:
    step = draft.step
    await run_call(kit, emit, state, draft, index, step.call_as_decided(index))
    arguments = step.calls[index].arguments
    if arguments is not None:
        result, duration = draft.ran[index]
        edits = [said.by for said in step.calls[index].approvals if said.arguments is not None]
        by = edits[-1] if edits else SOMEBODY
        # The model would not know what its result is the result of.
        told = f"[{by} changed the arguments to {_json(arguments)}]\n{result.content}"
        draft.ran[index] = replace(result, content=told), duration


async def _run_and_record(kit: Kit, emit: Emitter, state: AgentState, draft: Draft, index: int) -> None:
    """One of several calls: its result is safe before the others have ended."""
    await _run(kit, emit, state, draft, index)
    draft.keep(index)
    if kit.journal is not None:
        await kit.journal.record(state.with_open_step(draft.step))


def _asked(kit: Kit, draft: Draft) -> tuple[OpenCall, ...]:
    """The calls of a new step: those that need a person's word wait, the others start."""
    if not kit.asks_people:
        return (_STARTED,) * len(draft.calls)
    questions = [_question(kit, call) for call in draft.calls]
    return tuple([OpenCall(question=words) if words else _STARTED for words in questions])


def _question(kit: Kit, call: ToolCall) -> str | None:
    """What a person is asked before the call may run; None if it may."""
    tool = kit.tools.get(call.name)
    if tool is None or tool.needs_approval is False or isinstance(call.arguments, str):
        return None
    try:
        # A copy, so that no rule can change what will be run.
        arguments = tool.arguments.complete(deepcopy(call.arguments))
    except Exception:
        return None  # It will not run with these arguments, and the model is told.
    try:
        if tool.needs_approval is not True and not tool.needs_approval(arguments):
            return None
    except Exception as error:
        words = f"whether it needs approval could not be found out: {words_of(error)}"
        return f"{_spelled(call)} waits for approval: {words}"
    return f"{_spelled(call)} waits for approval"


def _gone_on_with(kit: Kit, step: OpenStep) -> OpenStep:
    """The step as it is taken up again.

    What is done stays done and who waits still waits. A call that was running when its process
    ended may have been carried out or not: it is run again only if that does no harm.
    """
    calls = []
    for asked, call in zip(step.message.tool_calls, step.calls, strict=True):
        tool = kit.tools.get(asked.name)
        if call.is_done or call.is_waiting:
            calls.append(call)
        elif not call.started or (tool is not None and tool.idempotent):
            calls.append(replace(call, started=True))
        else:
            words = (
                f"It is not known whether {_spelled(asked, call.arguments)} was carried out: it was cut off "
                "before it could tell. Find out, then approve to run it again, or deny and say what became "
                "of it, for the model to know"
            )
            calls.append(replace(call, started=False, uncertain=True, question=words))
    return replace(step, calls=tuple(calls))


def _spelled(call: ToolCall, edited: Mapping[str, Any] | None = None) -> str:
    """A call as a person reads it."""
    arguments = call.arguments if edited is None else edited
    if isinstance(arguments, str):
        return f"{call.name}({shortened(arguments, 200)})"
    pairs = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    return f"{shortened(call.name, 64)}({shortened(pairs, 200)})"


def _json(value: object) -> str:
    """The value as JSON, as far as there is a way to write it."""
    try:
        return msgspec.json.encode(value, enc_hook=describe).decode()
    except (TypeError, ValueError, RecursionError):
        return clean(repr(value))
