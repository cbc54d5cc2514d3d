"""Which messages of a history are kept, and how what is too long in them is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from whyloop.values.approval import Approval, Question
from whyloop.values.continuation import ContinuationOutcome
from whyloop.values.failure import Failure
from whyloop.values.messages import Content, Message, Part, TextPart, ToolCall, ToolResult
from whyloop.values.model import ModelSource
from whyloop.values.state import Execution
from whyloop.values.step import OpenCall, OpenStep, Step, ToolRun

ELLIPSIS = "…"
LEFT_OUT = f"[left out]{ELLIPSIS}"

# What is done to a piece of plain data: a text stays a text, an object an object.
Change = Callable[[Any], Any]


def kept_indices(messages: Sequence[Message], most: int | None) -> list[int]:
    """The messages that a history of at most this many keeps, the oldest dropped first.

    A call and its results stay or go together. Instructions at the beginning stay. What follows
    them begins with a user's message; where the steps since the last one are too many, that one
    is kept all the same, as without it nobody knows what they are about.
    """
    count = len(messages)
    if most is None or count <= most:
        return list(range(count))
    body = next((i for i, message in enumerate(messages) if not message.is_system), count)
    head = list(range(min(body, most - 1)))
    room = most - len(head)
    start = _start_of_latest(messages, body, room)
    user = next((i for i in range(start, count) if messages[i].is_user), None)
    if user is not None:
        return head + list(range(user, count))
    user = next((i for i in range(start - 1, body - 1, -1) if messages[i].is_user), None)
    if user is None:
        return head + list(range(start, count))
    return [*head, user, *range(_start_of_latest(messages, body, room - 1), count)]


def _start_of_latest(messages: Sequence[Message], body: int, room: int) -> int:
    """Where the latest messages begin that fit into this room; never among the results of a call."""
    start = count = len(messages)
    for index in range(count - 1, max(body, count - room) - 1, -1):
        if not messages[index].is_tool:
            start = index
    return start


def cut(data: Any, most: int | None) -> Any:
    """Plain data in which every text is at most this long."""
    if most is None:
        return data
    if isinstance(data, str):
        return data if len(data) <= most else data[: most - 1] + ELLIPSIS
    if isinstance(data, dict):
        return {key: cut(value, most) for key, value in data.items()}
    return [cut(item, most) for item in data] if isinstance(data, list) else data


# One way through a value to all texts in it; names and ids stay as they are, since values refer to them.


def changed_message(message: Message, change: Change, stand_in: str) -> Message:
    """Return the message with its content, its reasoning and its calls' arguments changed.

    A provider's extras vouch for the message word by word: where a word was changed they are left out.
    """
    changed = replace(
        message,
        content=_changed_content(message.content, change, stand_in),
        tool_calls=tuple([_changed_tool_call(call, change) for call in message.tool_calls]),
        reasoning=message.reasoning and change(message.reasoning),
    )
    return changed if is_same_request(message, changed) else replace(changed, extras={})


def is_same_request(before: Message, after: Message) -> bool:
    """Return whether two versions of a message are the same to a model and to the tools that it calls."""
    calls = zip(before.tool_calls, after.tool_calls, strict=True)
    return before.content == after.content and all(old.arguments == new.arguments for old, new in calls)


def _changed_tool_call(call: ToolCall, change: Change) -> ToolCall:
    changes = [replace(each, before=change(each.before)) for each in call.changes]
    return replace(call, arguments=change(call.arguments), changes=tuple(changes))


def _changed_content(content: Content, change: Change, stand_in: str) -> Content:
    if isinstance(content, str):
        text: str = change(content)
        return text
    return tuple([_changed_part(part, change, stand_in) for part in content])


def _changed_part(part: Part, change: Change, stand_in: str) -> Part:
    """A text is changed; an image or a file is of use only as a whole, so that words stand in for it."""
    if isinstance(part, TextPart):
        return TextPart(change(part.text))
    fields = [value for name in part.__struct_fields__ if (value := getattr(part, name)) is not None]
    if all(change(value) == value for value in fields):
        return part
    return TextPart(change(f"{part.__struct_config__.tag}: {stand_in}"))


def changed_step(step: Step, change: Change) -> Step:
    """The step with its errors, its notes and the words of its outcome changed."""
    return replace(
        step,
        tool_calls=tuple([_changed_run(run, change) for run in step.tool_calls]),
        failures=tuple([_changed_failure(failure, change) for failure in step.failures]),
        source=step.source and _changed_source(step.source, change),
        outcome=step.outcome and changed_outcome(step.outcome, change),
    )


def _changed_run(run: ToolRun, change: Change) -> ToolRun:
    return replace(
        run, error=run.error and change(run.error), approvals=_changed_approvals(run.approvals, change)
    )


def _changed_failure(failure: Failure, change: Change) -> Failure:
    return replace(failure, message=change(failure.message), details=change(failure.details))


def _changed_source(source: ModelSource, change: Change) -> ModelSource:
    return replace(source, notes=tuple(change(list(source.notes))))


def _changed_approvals(approvals: Sequence[Approval], change: Change) -> tuple[Approval, ...]:
    """Return decisions with their texts changed; the person and the time stay."""
    return tuple(
        [
            replace(
                approval,
                question=change(approval.question),
                reason=approval.reason and change(approval.reason),
                arguments=approval.arguments and change(approval.arguments),
            )
            for approval in approvals
        ]
    )


def changed_open_step(step: OpenStep, change: Change, stand_in: str) -> OpenStep | None:
    """Return the open step with its texts changed; None if that would change a call that is still to run."""
    message = step.message and changed_message(step.message, change, stand_in)
    calls = tuple([_changed_call(call, change) for call in step.calls])
    unlike = [
        new.arguments != old.arguments and not old.is_done for old, new in zip(step.calls, calls, strict=True)
    ]
    if any(unlike) or (step.message and message and not is_same_request(step.message, message)):
        return None
    return replace(
        step,
        message=message,
        calls=calls,
        source=step.source and _changed_source(step.source, change),
        failure=step.failure and _changed_failure(step.failure, change),
    )


def _changed_call(call: OpenCall, change: Change) -> OpenCall:
    return replace(
        call,
        question=call.question and _changed_question(call.question, change),
        approvals=_changed_approvals(call.approvals, change),
        arguments=call.arguments and change(call.arguments),
        result=call.result and _changed_result(call.result, change),
    )


def _changed_question(question: Question, change: Change) -> Question:
    """Return the question with its text changed; its id stays."""
    return replace(question, text=change(question.text))


def _changed_result(result: ToolResult, change: Change) -> ToolResult:
    return replace(
        result,
        content=change(result.content),
        error=result.error and change(result.error),
        failure=result.failure and _changed_failure(result.failure, change),
    )


def changed_execution(execution: Execution, change: Change) -> Execution:
    """Return the execution with its stop request, and what is or was asked about it, changed."""
    return replace(
        execution,
        stop_request=execution.stop_request and change(execution.stop_request),
        question=execution.question and _changed_question(execution.question, change),
        approvals=_changed_approvals(execution.approvals, change),
    )


def changed_outcome(outcome: ContinuationOutcome, change: Change) -> ContinuationOutcome:
    """Return the outcome with the texts and the numbers of its evaluations changed."""
    return replace(
        outcome,
        evaluations=tuple(
            [
                replace(
                    evaluation,
                    reason=change(evaluation.reason),
                    context=change(evaluation.context),
                    feedback=evaluation.feedback and change(evaluation.feedback),
                )
                for evaluation in outcome.evaluations
            ]
        ),
    )
