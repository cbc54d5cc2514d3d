"""The tool calls of a step: which run, which wait for a person, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import NestingError, ScriptError, ToolExecutionError, ToolTimeoutError
from whyloop.logger import log_error
from whyloop.loop.hooks import AroundTool, Block, RunTool, WrongAnswerError, expected
from whyloop.loop.nesting import running_inside
from whyloop.loop.setup import Setup
from whyloop.rules.classification import error_text, raised_by_tool, tool_failure
from whyloop.tools.lenient import lenient
from whyloop.tools.schema import Misfit
from whyloop.tools.tool import CarriedError, RunContext, ToolContext, ToolDefinition, encoded
from whyloop.values import encoding
from whyloop.values.approval import Question
from whyloop.values.decisions import uncertain_question
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import CallChange, ToolCall, ToolResult
from whyloop.values.model import OUTPUT_TOOL, ModelResponse
from whyloop.values.state import UNNAMED_PERSON, AgentState
from whyloop.values.step import Interruption, OpenStep
from whyloop.values.step_transitions import CallFinished, Reopened
from whyloop.values.text import clean

if TYPE_CHECKING:
    from whyloop.loop.run import Run

_NO_TOOL: tuple[None, None] = (None, None)
_UNUSED = ToolResult(
    f"Not used: other calls came with it. Call {OUTPUT_TOOL} alone, after their results.",
    "not used: other calls came with the answer",
)

LENIENT = "lenient arguments"
"""The name that the trace gives to a change that makes a model's arguments fit, like that of a hook."""

# Which calls run


class CallPlan(Struct, frozen=True, gc=False):
    """The calls of an answer after the hooks, and what happens to each."""

    calls: tuple[ToolCall, ...]
    """The calls as the hooks left them."""
    started: tuple[int, ...]
    """The indices of the calls that start."""
    results: Mapping[int, ToolResult] = {}
    """The results of calls that do not start, by index."""
    questions: Mapping[int, Question] = {}
    """The questions to a person, by the index of the call."""


_NO_CALLS = CallPlan((), ())


def plan_at_once(setup: Setup, response: ModelResponse, *, truncated: bool) -> CallPlan | None:
    """Return the plan to start every call; None if `plan_calls` has to decide.

    It has to if there is a hook, an approval rule or a truncated answer.
    """
    if not response.tool_calls:
        return _NO_CALLS
    if setup.plans_calls or truncated:
        return None
    calls = _fitting(setup, response.tool_calls)
    # Most answers have one call, and `tuple(range(1))` would take 0.2 µs.
    return CallPlan(calls, (0,) if len(calls) == 1 else tuple(range(len(calls))))


def _fitting(setup: Setup, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Return the calls, with arguments corrected that only fit if read leniently."""
    for index, call in enumerate(calls):
        tool, _ = setup.tools.get(call.name, _NO_TOOL)
        if tool is None or tool.arguments.fits(call.arguments):
            continue
        if (arguments := lenient(call.arguments, tool.arguments)) is not None:
            changed = ToolCall(call.id, call.name, arguments, (CallChange(LENIENT, call.arguments),))
            calls = (*calls[:index], changed, *calls[index + 1 :])
    return calls


async def plan_calls(run: Run, response: ModelResponse) -> CallPlan:
    """Return which calls of a response start, and what happens to the others.

    Hooks change or block the calls first, and only once: a person approves what will run.
    """
    if response.finish_reason.truncates:
        text = f"{Interruption.TRUNCATED.text} ({response.finish_reason})"
        result = ToolResult(f"Not run: {text}", f"not run: {text}")
        return CallPlan(response.tool_calls, (), dict.fromkeys(range(len(response.tool_calls)), result))
    calls, results = await _run_before_hooks(run, _fitting(run.setup, response.tool_calls))
    questions = _questions(run, calls, results)
    started = tuple([i for i in range(len(calls)) if i not in results and i not in questions])
    return CallPlan(calls, started, results, questions)


async def _run_before_hooks(
    run: Run, calls: Sequence[ToolCall]
) -> tuple[tuple[ToolCall, ...], dict[int, ToolResult]]:
    """Return the calls as the hooks left them, and the results that hooks returned."""
    changed: list[ToolCall] = []
    results: dict[int, ToolResult] = {}
    for index, asked in enumerate(calls):
        call, result = asked, _UNUSED if run.setup.output is not None else None
        if asked.name != OUTPUT_TOOL or result is None:
            call, result = await _hook_call(run.setup, asked, _context(run.setup, run.state, index, asked))
        changed.append(call)
        if result is not None:
            results[index] = result
    return tuple(changed), results


async def _hook_call(
    setup: Setup, call: ToolCall, context: ToolContext
) -> tuple[ToolCall, ToolResult | None]:
    """Return a call as the hooks left it, and its result if a hook returned one."""
    for name, before_tool in setup.hooks.before_tool:
        try:
            answer = await before_tool(deepcopy(call), context)
            if isinstance(answer, Block):
                reason = clean(str(answer.reason))
                return call, ToolResult(f"Blocked: {reason}", f"blocked: {reason}", changed_by=(name,))
            if isinstance(answer, ToolResult):
                return call, replace(_textual(answer), changed_by=(name,))
            call = _changed(call, expected(ToolCall, answer), name)
        except (ScriptError, NestingError):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            raise_cancellation(error)
            return call, _hook_failed(call, context, error)
    return call, None


def _changed(call: ToolCall, answer: ToolCall, by: str) -> ToolCall:
    """Return the call as a hook changed it; its id stays, since its result needs it."""
    if answer.arguments == call.arguments and answer.name == call.name:
        return call
    changes = (*call.changes, CallChange(by, call.arguments, None if answer.name == call.name else call.name))
    arguments = answer.arguments
    if not isinstance(arguments, str):
        arguments = encoding.jsonable(arguments)  # It runs with exactly what is recorded and approved.
    return ToolCall(call.id, clean(answer.name), arguments, changes)


def _questions(run: Run, calls: Sequence[ToolCall], results: Mapping[int, ToolResult]) -> dict[int, Question]:
    questions = {}
    for index, call in enumerate(calls):
        text = None if index in results else _question(run, index, call)
        if text is not None:
            questions[index] = Question(run.world.new_id(), text)
    return questions


def _question(run: Run, index: int, call: ToolCall) -> str | None:
    """Return the question to a person before the call may run; None if it may."""
    tool, _ = run.setup.tools.get(call.name, _NO_TOOL)
    if tool is None or tool.needs_approval is False or isinstance(call.arguments, str):
        return None
    try:
        arguments = tool.arguments.complete(call.arguments)
    except Exception:
        return None  # It will not run with these arguments, and its result says so.
    try:
        if not tool.waits_for_approval(arguments, _context(run.setup, run.state, index, call)):
            return None
    except Exception as error:
        what = f"the approval rule of tool {tool.name} failed, so a person is asked"
        step_number = run.state.execution.next_step_number()
        log_error(run.state.agent_id, step_number, what, error, call.arguments)
        return f"{tool.name} waits for approval: its approval rule failed with {type(error).__name__}"
    return f"{tool.name} waits for approval"


def reopen(setup: Setup, opened: OpenStep, now: datetime) -> Reopened | None:
    """Return the calls of an open step that start now, and the questions about others.

    A call that was running when its process ended may or may not have run. It runs again only if it is
    idempotent, or if no tool could take its arguments. None if there is nothing to start or to ask.
    """
    started, questions = [], {}
    for index, (asked, call) in enumerate(zip(opened.tool_calls, opened.calls, strict=True)):
        if call.is_done or call.is_waiting:
            continue
        tool, _ = setup.tools.get(asked.name, _NO_TOOL)
        repeatable = (tool is not None and tool.idempotent) or isinstance(asked.arguments, str)
        if not call.is_running or repeatable:
            started.append(index)
        else:
            questions[index] = uncertain_question(setup.world.new_id(), asked.name)
    if not started and not questions:
        return None
    return Reopened(now, started=tuple(started), questions=questions)


def unfinished_calls(
    opened: OpenStep,
    now: datetime,
    reason: Interruption | None,
    unlaunched: Collection[int],
    *,
    waiting: bool,
) -> Iterator[CallFinished]:
    """Yield a result for every call that has none.

    A call that waits for a person gets one only if `waiting`. A call that was ever started may have run: its
    result says that its outcome is unknown.
    """
    why = reason.text if reason else "the step ended"
    for index, call in enumerate(opened.calls):
        if call.is_done or (not waiting and not call.is_running):
            continue
        known = not call.started or index in unlaunched
        text = f"not run: {why}" if known else f"outcome unknown: {why}"
        yield CallFinished(now, index=index, result=ToolResult(text[0].upper() + text[1:], text))


# Running calls


async def run_calls(run: Run, started: Sequence[int], deadline: datetime | None) -> None:
    """Run several calls at once, and record each result while others run."""
    calls = [run.world.run_call(run.setup, run.state, index, deadline) for index in started]
    running = [asyncio.ensure_future(call) for call in calls]
    try:
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            finished = [task for task in running if task in done]  # In call order, in every replay.
            running = [task for task in running if task not in done]
            _add_results(run, finished)
            if running:
                await run.record()
    finally:  # A call may finish although it is being cancelled.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        _add_results(run, [task for task in running if not task.cancelled()])


def _add_results(run: Run, tasks: Sequence[asyncio.Task[CallFinished]]) -> None:
    errors = [error for task in tasks if (error := task.exception()) is not None]
    for task in tasks:
        if task.exception() is None:
            run.add(task.result())
    if errors:
        raise errors[0]


async def run_call(setup: Setup, state: AgentState, index: int, deadline: datetime | None) -> CallFinished:
    """Run one call; an error becomes its result."""
    world, opened = setup.world, state.open_step
    assert opened is not None
    call, started = opened.call_to_run(index), world.monotonic()
    context = _context(setup, state, index, call, deadline)
    if setup.hooks.around_tool:
        result = await _run_through(setup, call, context, setup.hooks.around_tool)()
    else:
        result = await run_tool(setup, call, context)
    tool = setup.tools.get(call.name, _NO_TOOL)[0]
    if tool is not None and tool.polling:
        result = replace(result, polling=True)
    edited = opened.calls[index].arguments
    if edited is not None:
        edits = [each.by for each in opened.calls[index].approvals if each.arguments is not None]
        by = edits[-1] if edits else UNNAMED_PERSON
        # Otherwise the model would not know which arguments led to the result.
        note = f"[{by} changed the arguments to {encoding.json_text(edited)}]"
        result = replace(result, note=note)
    seconds = float(world.monotonic() - started)
    return CallFinished(world.now(), index=index, result=result, seconds=seconds if seconds > 0 else 0.0)


def run_context(setup: Setup, state: AgentState) -> RunContext:
    """Return the context of the step for hooks around the model and for instructions."""
    execution = state.execution
    return RunContext(state.agent_id, execution.id, execution.next_step_number(), state.metadata, setup.deps)


def _context(
    setup: Setup, state: AgentState, index: int, call: ToolCall, deadline: datetime | None = None
) -> ToolContext:
    execution = state.execution
    return ToolContext(
        state.agent_id,
        execution.id,
        execution.next_step_number(),
        state.metadata,
        setup.deps,
        tool_call_id=call.id,
        tool=call.name,
        deadline=deadline,
        call_index=index,
    )


def _run_through(
    setup: Setup, call: ToolCall, context: ToolContext, hooks: Sequence[tuple[str, AroundTool]]
) -> RunTool:
    """Return a function that runs the tool through hooks and records their changes."""
    if not hooks:
        return partial(run_tool, setup, call, context)
    (name, around_tool), run_next = hooks[0], _run_through(setup, call, context, hooks[1:])

    async def run() -> ToolResult:
        result: ToolResult | None = None

        async def run_inner() -> ToolResult:
            nonlocal result
            result = await run_next()
            return result

        try:
            answer = _textual(expected(ToolResult, await around_tool(deepcopy(call), context, run_inner)))
        except (ScriptError, NestingError):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            raise_cancellation(error)
            return _hook_failed(call, context, error)
        if result is None:
            return replace(answer, changed_by=(name,))
        if answer != result:
            return replace(answer, changed_by=(*result.changed_by, name))
        return result

    return run


async def run_tool(setup: Setup, call: ToolCall, context: ToolContext) -> ToolResult:
    """Run the tool; an error becomes a result that the model can act on."""
    tool, toolset = setup.tools.get(call.name, _NO_TOOL)
    if tool is None or toolset is None:
        if setup.toolset_error is not None:
            return _failed(tool_failure(ErrorType.TOOL, call, f"not run: {setup.toolset_error}"))
        return _unknown_tool(call, setup.tool_names)
    if isinstance(call.arguments, str):
        return _not_an_object(tool, call, call.arguments)
    try:
        arguments = tool.arguments.parse(call.arguments)
    except Exception as error:
        return _invalid(tool, call, call.arguments, error)
    try:
        value = await setup.local.call_tool(toolset, tool, arguments, context)
        return ToolResult(encoded(value, tool.max_result_chars))
    except ToolTimeoutError as error:
        retryable = error.retryable is not False
        failure = tool_failure(
            ErrorType.TIMEOUT, call, error_text(error), retryable=retryable, seconds=tool.timeout
        )
        return _failed(failure)
    except (KeyboardInterrupt, ScriptError):
        raise
    except NestingError as error:
        if len(running_inside.get()) > 1:
            raise  # Only the outermost agent continues, or each of them would try again in turn.
        return _raised(call, context, error)
    except BaseException as error:
        raise_cancellation(error)
        return _raised(call, context, error)


def raise_cancellation(error: BaseException) -> None:
    """Raise the error if this task is cancelled, not if a tool or a hook raised it."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


def _textual(result: ToolResult) -> ToolResult:
    """Return a hook's result with text for its content and its error."""
    error = None if result.error is None else encoded(result.error, None)
    return replace(result, content=encoded(result.content, None), error=error)


def _failed(failure: Failure, for_model: str | None = None) -> ToolResult:
    text = for_model or failure.raised or failure.message
    return ToolResult(f"Error: {text}", failure.message, failure)


def _raised(call: ToolCall, context: ToolContext, error: BaseException) -> ToolResult:
    if isinstance(error, CarriedError):
        error = error.__cause__ or error
    what = f"tool {call.name} failed"
    log_error(context.agent_id, context.step_number, what, error, call.arguments)
    return _failed(raised_by_tool(call, error))


def _hook_failed(call: ToolCall, context: ToolContext, error: BaseException) -> ToolResult:
    what = f"a hook around tool {call.name} failed"
    log_error(context.agent_id, context.step_number, what, error, call.arguments)
    text, raised = f"a hook around {call.name} failed", error_text(error)
    if isinstance(error, ToolExecutionError | WrongAnswerError):  # Their texts are for people.
        return _failed(tool_failure(ErrorType.UNKNOWN, call, f"{text}: {error}"))
    failure = tool_failure(ErrorType.UNKNOWN, call, f"{text}: {type(error).__name__}")
    return _failed(replace(failure, raised=raised), f"{text}: {raised}")


def _unknown_tool(call: ToolCall, names: Sequence[str]) -> ToolResult:
    available = f"The tools are: {', '.join(names)}." if names else "There are no tools."
    text = f"there is no tool named {call.name!r}. {available}"
    return _failed(tool_failure(ErrorType.VALIDATION, call, text))


def _not_an_object(tool: ToolDefinition, call: ToolCall, sent: str) -> ToolResult:
    text = f"invalid arguments for {tool.name}: not a JSON object"
    names = ", ".join(tool.spec.parameters.get("properties", {})) or "none"
    for_model = clean(f"{text}, but {sent[:200]!r}. Send one JSON object; the arguments are: {names}")
    return _failed(tool_failure(ErrorType.VALIDATION, call, text), for_model)


def _invalid(
    tool: ToolDefinition, call: ToolCall, arguments: Mapping[str, Any], error: Exception
) -> ToolResult:
    """Return a result that tells the model what to correct; people see no arguments."""
    try:
        problems = tool.arguments.problems(arguments)
    except Exception:  # The schema itself is invalid: it came from a toolset.
        problems = []
    problems = problems or [Misfit("they do not fit", error_text(error))]
    text = f"invalid arguments for {tool.name}"
    for_people = f"{text}: {'; '.join(problem.for_people for problem in problems)}"
    lines = [f"- {p.for_model}" + (f". Schema: {p.schema}" if p.schema else "") for p in problems]
    for_model = clean("\n".join([f"{text}:", *lines]))
    return _failed(tool_failure(ErrorType.VALIDATION, call, for_people), for_model)
