"""The items of OpenAI's responses: how they are read, kept and sent back.

A response is a list of items: messages, function calls, reasoning, the work of tools that run at the
provider. Text and calls are kept in the message itself; of their items `extras["openai-responses"]["items"]`
has only the ids and the order, and all other items as they came. Items in an order that the message gives
back by itself are not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.prices import responses_billing, responses_usage
from whyloop.models.provider import arguments_text, language_of, new_call, parsed
from whyloop.models.response import stream_error
from whyloop.values.messages import Message, ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ModelSource

NAME = "openai-responses"

Item = Mapping[str, Any]

_COMPLETE = (None, "completed", "complete")
_UNFINISHED = ("queued", "in_progress")
_FAILED = ("failed", "cancelled")
_INCOMPLETE = {
    "max_output_tokens": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
# Items that only a client can answer, and output that a message cannot hold; with the fields that name them.
_UNSUPPORTED = {
    "mcp_approval_request": ("an mcp_approval_request", "server_label", "name"),
    "custom_tool_call": ("a custom_tool_call", "name"),
    "computer_call": ("a computer_call",),
    "local_shell_call": ("a local_shell_call",),
    "shell_call": ("a shell_call",),
    "apply_patch_call": ("an apply_patch_call",),
    "image_generation_call": ("an image (image_generation_call)",),
}
_OF_MESSAGE = frozenset({"role", "content"})
_OF_CALL = frozenset({"name", "arguments", "status"})
_REBUILT = frozenset({"type", "id", "call_id", "lengths"})


def kind_of(item: Item) -> str:
    """Return the type of an item; one with a role and no type is a message."""
    return item.get("type") or ("message" if "role" in item else "")


def texts_of(item: Item) -> list[str]:
    """Return the texts of a message, one for each part."""
    content = item.get("content") or ()
    if isinstance(content, str):
        return [content]
    return [part.get("text") or "" for part in content if part.get("type") in ("output_text", "text")]


# Reading


def response_from(document: Mapping[str, Any]) -> ModelResponse:
    """Return the response in a document, complete or put together from a stream."""
    status = document.get("status")
    if status in _UNFINISHED:
        raise ResponseValidationError(f"the response is not finished yet: its status is {status!r}")
    if document.get("error"):
        raise stream_error({"error": document["error"]})
    if status in _FAILED:
        raise ModelError(f"the provider gave up on the response: its status is {status!r}")
    output: Sequence[Item] = document["output"]
    if not output and status is None:
        raise ResponseValidationError("the response contains no answer: its output is empty")
    messages = [item for item in output if kind_of(item) == "message"]
    _check_refusal(messages)
    calls = tuple([_call(item) for item in output if kind_of(item) == "function_call"])
    text = language_of("".join([text for item in messages for text in texts_of(item)]), calls)
    kept = _kept_items(output, text, calls, stored=document.get("store") is not False)
    finish_reason, given = _finish_reason(document, calls)
    return ModelResponse(
        text=text,
        tool_calls=calls,
        finish_reason=finish_reason,
        usage=responses_usage(document.get("usage") or {}),
        reasoning="\n\n".join([thought for item in output for thought in _thoughts(item)]),
        extras={NAME: {"items": kept}} if kept else {},
        source=ModelSource(document.get("model"), document.get("id"), given),
        billing=responses_billing(document, map(kind_of, output)),
        unsupported=_unsupported(output),
    )


def _check_refusal(messages: Iterable[Item]) -> None:
    for item in messages:
        content = item.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "refusal":
                reason = part.get("refusal") or "it gave no explanation"
                raise ModelError(f"the model refused: {reason}", retryable=False)


def _call(item: Item) -> ToolCall:
    return new_call(item.get("call_id") or item.get("id"), item["name"], item.get("arguments"))


def _thoughts(item: Item) -> list[str]:
    """Return the summary of a thought; the thought itself where a model shows it."""
    if kind_of(item) != "reasoning":
        return []
    parts = item.get("summary") or item.get("content") or ()
    return [part["text"] for part in parts if part.get("text")]


def _unsupported(output: Iterable[Item]) -> tuple[str, ...]:
    """Return the items that need a client, and those that a message cannot hold."""
    answered = {item.get("call_id") for item in output if kind_of(item).endswith("_output")}
    labels = []
    for item in output:
        if kind_of(item) in _UNSUPPORTED and (item.get("call_id") is None or item["call_id"] not in answered):
            noun, *keys = _UNSUPPORTED[kind_of(item)]
            names = [str(item[key]) for key in keys if item.get(key)]
            labels.append(f"{noun} ({', '.join(names)})" if names else noun)
    return tuple(labels)


def _finish_reason(
    document: Mapping[str, Any], calls: tuple[ToolCall, ...]
) -> tuple[FinishReason, str | None]:
    """Return why the answer ended, and the provider's own term for it."""
    status = document.get("status")
    if status == "incomplete":
        reason = (document.get("incomplete_details") or {}).get("reason") or status
        return _INCOMPLETE.get(reason, FinishReason.OTHER), reason
    if status in _COMPLETE:
        return FinishReason.TOOL_CALLS if calls else FinishReason.STOP, status
    return FinishReason.OTHER, status


# Keeping


def _kept_items(output: Iterable[Item], text: str, calls: Iterable[ToolCall], *, stored: bool) -> list[Item]:
    """Return the items to keep with a message; none if they can be rebuilt from it."""
    waiting, kept = iter(calls), list[Item]()
    for item in output:
        kind = kind_of(item)
        if kind == "message":
            # A text that was hidden because it only repeated the calls is not sent back either.
            if text:
                kept.append(_kept_message(item))
        elif kind == "function_call":
            kept.append(_kept_call(item, next(waiting)))
        elif kind and (kind != "reasoning" or stored or item.get("encrypted_content") or item.get("content")):
            # Not kept: a thought without anything but its id, if the provider did not store the rest.
            kept.append(_without(item))
    # A thought that led to nothing is refused by the provider.
    while kept and kept[-1]["type"] == "reasoning":
        kept.pop()
    return [] if _can_be_rebuilt(kept) else kept


def _kept_message(item: Item) -> Item:
    lengths = [len(text) for text in texts_of(item)]
    kept = {**_without(item, _OF_MESSAGE), "type": "message", "lengths": lengths}
    if kept.get("status") == "completed":
        del kept["status"]
    return kept


def _kept_call(item: Item, call: ToolCall) -> Item:
    kept = {**_without(item, _OF_CALL), "call_id": call.id}
    arguments = item.get("arguments")
    # The exact text, blanks and all: providers find it in their cache by it.
    if isinstance(arguments, str) and arguments.strip() and arguments != arguments_text(call):
        kept["arguments"] = arguments
    return kept


def _can_be_rebuilt(kept: Sequence[Item]) -> bool:
    plain = all(item["type"] == "function_call" for item in kept[1:])
    plain = plain and (not kept or kept[0]["type"] in ("message", "function_call"))
    return plain and all(item.keys() <= _REBUILT for item in kept)


def _without(item: Item, names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the item without these fields, and without those that are null."""
    return {name: value for name, value in item.items() if value is not None and name not in names}


# Sending back


def items_of(message: Message, *, reasoning: bool) -> list[Item]:
    """Return the items of an assistant's message, in the order of the model."""
    extras = message.extras.get(NAME)
    kept: Sequence[Item] = extras.get("items", ()) if extras else ()
    # A message that was changed since is another message: the thoughts behind the old one would be refused.
    if not kept or not _fits(kept, message):
        kept = [{"type": "message", "lengths": [len(message.model_text)]}] if message.model_text else []
        kept += [{"type": "function_call"} for _ in message.tool_calls]
    elif not reasoning:
        kept = [_without_id(item) for item in kept if item["type"] != "reasoning"]
    calls, start, items = iter(message.tool_calls), 0, list[Item]()
    for item in kept:
        if item["type"] == "message":
            texts = []
            for length in item["lengths"]:
                texts.append(message.model_text[start : start + length])
                start += length
            items.append(_message_item(texts, item))
        elif item["type"] == "function_call":
            items.append(_call_item(next(calls), item))
        else:
            items.append(item)
    return items


def _fits(kept: Iterable[Item], message: Message) -> bool:
    lengths = [length for item in kept if item["type"] == "message" for length in item["lengths"]]
    calls = [item.get("call_id") for item in kept if item["type"] == "function_call"]
    return sum(lengths) == len(message.model_text) and calls == [call.id for call in message.tool_calls]


def _message_item(texts: Iterable[str], kept: Item) -> Item:
    item = {**kept, "role": "assistant"}
    del item["lengths"]
    if "id" in kept:
        item.setdefault("status", "completed")
    item["content"] = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return item


def _call_item(call: ToolCall, kept: Item) -> Item:
    arguments = kept.get("arguments")
    if arguments is None or parsed(arguments) != call.arguments:
        arguments = arguments_text(call)
    return {**kept, "call_id": call.id, "name": call.name, "arguments": arguments}


def _without_id(item: Item) -> Item:
    """Return the item, cut off from a thought that it would otherwise ask for."""
    return _without(item, frozenset({"id"})) if item["type"] in ("message", "function_call") else item
