"""What of a response's items is kept with its message, and how they are sent back as they came.

A response is a list of items: messages, function calls, reasoning, the work of tools that run at the
provider. Text and calls live in our own message; of their items only the ids and the places are kept.
Everything else is kept as it came. An order that our own message gives back by itself needs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whyloop.models.parts import arguments_of, arguments_text
from whyloop.values.messages import Message, ToolCall

NAME = "openai-responses"

Item = Mapping[str, Any]

_OF_MESSAGE = frozenset({"role", "content"})
_OF_CALL = frozenset({"name", "arguments", "status"})
_REBUILT = frozenset({"type", "id", "call_id", "lengths"})


def kind_of(item: Item) -> str:
    """The type of an item; one with a role and no type is a message."""
    return item.get("type") or ("message" if "role" in item else "")


def texts_of(item: Item) -> list[str]:
    """The texts of a message, one for each part."""
    content = item.get("content") or ()
    if isinstance(content, str):
        return [content]
    return [part.get("text") or "" for part in content if part.get("type") in ("output_text", "text")]


def kept_items(output: Iterable[Item], text: str, calls: Iterable[ToolCall], *, stored: bool) -> list[Item]:
    """What has to be kept so that these items can be sent back; nothing where they can be rebuilt."""
    waiting, kept = iter(calls), list[Item]()
    for item in output:
        kind = kind_of(item)
        if kind == "message":
            # A text that was hidden because it only repeated the calls is not said again either.
            if text:
                kept.append(_kept_message(item))
        elif kind == "function_call":
            kept.append(_kept_call(item, next(waiting)))
        elif kind and (kind != "reasoning" or _can_be_read_again(item, stored=stored)):
            kept.append(_without(item))
    # A thought that led to nothing is refused by the provider.
    while kept and kept[-1]["type"] == "reasoning":
        kept.pop()
    return [] if _can_be_rebuilt(kept) else kept


def items_of(message: Message, *, reasoning: bool = True) -> list[Item]:
    """The items of an assistant's message, in the order in which the model made them."""
    extras = message.extras.get(NAME)
    kept: Sequence[Item] = extras.get("items", ()) if extras else ()
    # A message that was changed since is another message: the thoughts behind the old one would be
    # refused without it.
    if not kept or not _fits(kept, message):
        return _plain(message)
    if not reasoning:
        kept = [_without_id(item) for item in kept if item["type"] != "reasoning"]
    calls, start, items = iter(message.tool_calls), 0, list[Item]()
    for item in kept:
        if item["type"] == "message":
            texts = []
            for length in item["lengths"]:
                texts.append(message.text[start : start + length])
                start += length
            items.append(_message(texts, item))
        elif item["type"] == "function_call":
            items.append(_call(next(calls), item))
        else:
            items.append(item)
    return items


def _kept_message(item: Item) -> Item:
    lengths = [len(text) for text in texts_of(item)]
    kept = {**_without(item, _OF_MESSAGE), "type": "message", "lengths": lengths}
    if kept.get("status") == "completed":
        del kept["status"]
    return kept


def _kept_call(item: Item, call: ToolCall) -> Item:
    kept = {**_without(item, _OF_CALL), "call_id": call.id}
    arguments = item.get("arguments")
    # The very text, blanks and all: providers find what they have cached by it.
    if isinstance(arguments, str) and arguments.strip() and arguments != arguments_text(call):
        kept["arguments"] = arguments
    return kept


def _can_be_read_again(item: Item, *, stored: bool) -> bool:
    """False for a thought of which only the id came, if the provider did not keep the rest."""
    return stored or bool(item.get("encrypted_content") or item.get("content"))


def _can_be_rebuilt(kept: Sequence[Item]) -> bool:
    plain = all(item["type"] == "function_call" for item in kept[1:])
    plain = plain and (not kept or kept[0]["type"] in ("message", "function_call"))
    return plain and all(item.keys() <= _REBUILT for item in kept)


def _fits(kept: Iterable[Item], message: Message) -> bool:
    lengths = [length for item in kept if item["type"] == "message" for length in item["lengths"]]
    calls = [item.get("call_id") for item in kept if item["type"] == "function_call"]
    return sum(lengths) == len(message.text) and calls == [call.id for call in message.tool_calls]


def _plain(message: Message) -> list[Item]:
    items: list[Item] = [_message([message.text], {"type": "message"})] if message.text else []
    return items + [_call(call, {"type": "function_call"}) for call in message.tool_calls]


def _message(texts: Iterable[str], kept: Item) -> Item:
    item = {**kept, "role": "assistant"}
    item.pop("lengths", None)
    if "id" in kept:
        item.setdefault("status", "completed")
    item["content"] = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return item


def _call(call: ToolCall, kept: Item) -> Item:
    arguments = kept.get("arguments")
    if arguments is None or arguments_of(arguments) != call.arguments:
        arguments = arguments_text(call)
    return {**kept, "call_id": call.id, "name": call.name, "arguments": arguments}


def _without(item: Item, names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The item without these fields, and without those that say nothing."""
    return {name: value for name, value in item.items() if value is not None and name not in names}


def _without_id(item: Item) -> Item:
    """The item, cut off from a thought that it would otherwise ask for."""
    return _without(item, frozenset({"id"})) if item["type"] in ("message", "function_call") else item
