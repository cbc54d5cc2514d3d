"""From the body of a response to our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.failures import stream_error
from whyloop.models.openai_responses.items import NAME, Item, kept_items, kind_of, texts_of
from whyloop.models.parts import arguments_of, count, json_of, new_call_id, usage
from whyloop.rules.written_calls import without_calls
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ModelSource
from whyloop.values.usage import Usage

_COMPLETE = (None, "completed", "complete")
_UNFINISHED = ("queued", "in_progress")
_FAILED = ("failed", "cancelled")
_INCOMPLETE = {
    "max_output_tokens": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


def _named(noun: str, *keys: str) -> Callable[[Item], str]:
    def described(item: Item) -> str:
        names = [str(item[key]) for key in keys if item.get(key)]
        return f"{noun} ({', '.join(names)})" if names else noun

    return described


# Items that only a client can answer, and output that a message cannot hold.
_NEEDS_CLIENT: dict[str, Callable[[Item], str]] = {
    "mcp_approval_request": _named("an mcp_approval_request", "server_label", "name"),
    "custom_tool_call": _named("a custom_tool_call", "name"),
    "computer_call": _named("a computer_call"),
    "local_shell_call": _named("a local_shell_call"),
    "shell_call": _named("a shell_call"),
    "apply_patch_call": _named("an apply_patch_call"),
    "image_generation_call": _named("an image (image_generation_call)"),
}


def decode(body: bytes) -> ModelResponse:
    """The response in a complete body."""
    document = json_of(body, "the response")
    if not isinstance(document, dict):
        raise ResponseValidationError("the response is no object")
    return build(document)


def build(document: Mapping[str, Any]) -> ModelResponse:
    """The response that a document, complete or put together from a stream, amounts to."""
    status = document.get("status")
    if status in _UNFINISHED:
        raise ResponseValidationError(f"the response is not finished yet: its status is {status!r}")
    if document.get("error") or status in _FAILED:
        raise _failure(document)
    try:
        output = document["output"]
        if not output and status is None:
            raise ResponseValidationError("the response has no answer in it: its output is empty")
        return _response(document, output)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        shape = f"{type(error).__name__}: {error}"
        raise ResponseValidationError(f"the response has no answer in it: {shape}") from None


def _response(document: Mapping[str, Any], output: Iterable[Item]) -> ModelResponse:
    by_kind: dict[str, list[Item]] = {}
    for item in output:
        by_kind.setdefault(kind_of(item), []).append(item)
    messages = by_kind.get("message", [])
    _check_refusal(messages)
    calls = tuple([_call(item) for item in by_kind.get("function_call", ())])
    text = without_calls("".join([text for item in messages for text in texts_of(item)]), calls)
    answered = {
        item.get("call_id") for kind, items in by_kind.items() if kind.endswith("_output") for item in items
    }
    kept = kept_items(output, text, calls, stored=document.get("store") is not False)
    reason, word = _finish(document, calls)
    return ModelResponse(
        text=text,
        tool_calls=calls,
        finish_reason=reason,
        usage=_usage(document),
        reasoning="\n\n".join(
            [thought for item in by_kind.get("reasoning", ()) for thought in _thoughts(item)]
        ),
        extras={NAME: {"items": kept}} if kept else {},
        source=ModelSource(_text(document.get("model")), _text(document.get("id")), _text(word)),
        unsupported=tuple(
            [
                described(item)
                for kind, described in _NEEDS_CLIENT.items()
                for item in by_kind.get(kind, ())
                if item.get("call_id") is None or item.get("call_id") not in answered
            ]
        ),
    )


def _failure(document: Mapping[str, Any]) -> ModelError:
    if error := document.get("error"):
        return stream_error({"error": error})
    return ModelError(f"the response was given up: its status is {document.get('status')!r}")


def _check_refusal(messages: Iterable[Item]) -> None:
    for item in messages:
        content = item.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "refusal":
                words = part.get("refusal") or "it did not say why"
                raise ModelError(f"the model refused: {words}", retryable=False)


def _call(item: Item) -> ToolCall:
    call_id = _text(item.get("call_id") or item.get("id")) or new_call_id()
    if not isinstance(name := item["name"], str):
        raise TypeError(f"{name!r} is no name of a tool")
    return ToolCall(call_id, name, arguments_of(item.get("arguments")))


def _thoughts(item: Item) -> list[str]:
    """The summary of a thought; the thought itself where a model shows it."""
    parts = item.get("summary") or item.get("content") or ()
    return [part["text"] for part in parts if part.get("text")]


def _finish(document: Mapping[str, Any], calls: tuple[ToolCall, ...]) -> tuple[FinishReason, str | None]:
    """Why it ended, in our words and in the provider's."""
    status = document.get("status")
    if status == "incomplete":
        word = (document.get("incomplete_details") or {}).get("reason") or status
        return _INCOMPLETE.get(word, FinishReason.OTHER), word
    if status in _COMPLETE:
        return FinishReason.TOOL_CALLS if calls else FinishReason.STOP, status
    return FinishReason.OTHER, status


def _usage(document: Mapping[str, Any]) -> Usage:
    counted = document.get("usage") or {}
    read = counted.get("input_tokens_details") or {}
    written = counted.get("output_tokens_details") or {}
    return usage(
        read=count(counted.get("input_tokens")),
        written=count(counted.get("output_tokens")),
        cached=read.get("cached_tokens"),
        reasoning=written.get("reasoning_tokens"),
        total=counted.get("total_tokens"),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
