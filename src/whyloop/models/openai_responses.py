"""OpenAI's responses: requests and streams. See also `openai_response_items.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from whyloop.models.openai_response_items import NAME, Item, items_of, kind_of, response_from, texts_of
from whyloop.models.provider import EncodedMessages, ProviderApi, Settings, StreamReader, data_url
from whyloop.models.structured_output import schema_format
from whyloop.values.messages import ImagePart, Message, Part, TextPart
from whyloop.values.model import (
    OUTPUT_TOOL,
    Delta,
    ModelRequest,
    ModelResponse,
    OutputDelta,
    ReasoningDelta,
    TextDelta,
)

ENCRYPTED_REASONING = "reasoning.encrypted_content"

_REASONS = re.compile(r"(?:^|[/:])(?:o\d|gpt-[5-9]|codex)")
_NEVER_REASONS = re.compile(r"(?:^|[/:])(?:gpt-[34]|chatgpt|gpt-.*-chat)")


class OpenAIResponses(ProviderApi):
    """OpenAI's responses."""

    name = NAME

    def __init__(self) -> None:
        self._messages = EncodedMessages(encode_message)

    def path(self, settings: Settings) -> str:
        return "/responses"

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        options = msgspec.json.encode(_options(request, settings))
        encoded = self._messages.of(request.messages, _takes_reasoning(settings))
        # An empty message of the assistant leaves nothing to send.
        return options[:-1] + b',"input":[' + b",".join([items for items in encoded if items]) + b"]}"

    def read_document(self, document: Any) -> ModelResponse:
        return response_from(document)

    def reader(self) -> StreamReader:
        return ResponsesStream()


# Requests


def encode_message(message: Message, reasoning: Any = True) -> bytes:
    """Return the items of one message as JSON, with its thoughts or without."""
    return b",".join([msgspec.json.encode(item) for item in message_items(message, reasoning=reasoning)])


def message_items(message: Message, *, reasoning: bool) -> list[Item]:
    """Return one message as items: an assistant's may be several, or none."""
    if message.is_tool:
        output = _content(message.content)
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": output}]
    if message.is_assistant:
        return items_of(message, reasoning=reasoning)
    return [{"role": str(message.role), "content": _content(message.content)}]


def _takes_reasoning(settings: Settings) -> bool:
    """Return whether the model, and its host, accept the thoughts of other models."""
    return "no_encrypted_reasoning" not in settings.quirks and not _NEVER_REASONS.search(settings.model)


def _content(content: str | Sequence[Part]) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
    if part.url is not None and not part.url.startswith("data:"):
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "file", "file_data": data_url(part)}


def _options(request: ModelRequest, settings: Settings) -> dict[str, Any]:
    """Return every field of the request but the messages."""
    extra = dict(settings.extra)
    options: dict[str, Any] = {"model": settings.model, "stream": settings.stream}
    if "no_store" not in settings.quirks:
        options["store"] = False
    # The history is kept here, so the model's thoughts are too, encrypted. A model that does not reason
    # answers a request for its thoughts with an error.
    if _takes_reasoning(settings) and _REASONS.search(settings.model):
        options["include"] = [ENCRYPTED_REASONING]
    if request.instructions:
        options["instructions"] = request.instructions
    if settings.temperature is not None:
        options["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        options["max_output_tokens"] = settings.max_tokens
    tools: list[Any] = [
        {
            "type": "function",
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
            "strict": False,  # Left out, this API would make every parameter a required one.
        }
        for spec in request.tools
    ]
    # Tools that run at the provider are added to ours.
    if tools := [*tools, *(extra.pop("tools", None) or ())]:
        options["tools"] = tools
        if settings.tool_choice is not None:
            options["tool_choice"] = _tool_choice(settings.tool_choice)
        if settings.parallel_tool_calls is not None:
            options["parallel_tool_calls"] = settings.parallel_tool_calls
    schema = schema_format(request, settings)
    form = {"format": {"type": "json_schema", **schema}} if schema else {}
    if text := form | (extra.pop("text", None) or {}):
        options["text"] = text
    return options | extra


def _tool_choice(choice: str) -> Any:
    return choice if choice in ("auto", "none", "required") else {"type": "function", "name": choice}


# Streams

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _Target(NamedTuple):
    """The field of an item that the pieces of a kind of event belong to."""

    item: str
    field: str
    key: str
    part: str = ""
    counter: str = "content_index"


_TARGETS = {
    "output_text": _Target("message", "content", "text", "output_text"),
    "refusal": _Target("message", "content", "refusal", "refusal"),
    "reasoning_text": _Target("reasoning", "content", "text", "reasoning_text"),
    "reasoning_summary_text": _Target("reasoning", "summary", "text", "summary_text", "summary_index"),
    "function_call_arguments": _Target("function_call", "arguments", "arguments"),
}


class _PartialItem:
    """An item whose pieces are still arriving."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.item: Item = {}
        self.done = False
        self.received = 0
        self.shown = 0
        self.pieces: dict[tuple[str, int], list[str]] = {}

    def complete(self) -> Item:
        if self.done:
            return self.item
        item, parts = dict(self.item), dict[str, list[Item]]()
        for (name, _), texts in sorted(self.pieces.items(), key=lambda entry: entry[0][1]):
            target, text = _TARGETS[name], "".join(texts)
            item.setdefault("type", target.item)
            if target.part:
                parts.setdefault(target.field, []).append({"type": target.part, target.key: text})
            else:
                item[target.field] = text
        return item | parts


class ResponsesStream(StreamReader):
    """Reads the events of one response; the text of messages is shown in their order."""

    def __init__(self) -> None:
        super().__init__()
        self._document: dict[str, Any] = {}
        self._items: dict[int, _PartialItem] = {}
        self._named: dict[str, _PartialItem] = {}
        self._reasoning: str | None = None
        self._hidden: list[_PartialItem] = []  # Messages not shown in full; the first one is being shown.

    def read(self, event: str, data: bytes) -> Iterable[Delta]:
        return super().read(event, data) if data else ()

    def take(self, kind: str, document: dict[str, Any]) -> Iterable[Delta]:
        name, _, ending = kind.removeprefix("response.").rpartition(".")
        if name in _TARGETS:
            return self._take_piece(name, ending, document)
        if name == "output_item":
            return self._take_item(ending, document)
        response = document.get("response")
        if isinstance(response, dict):
            self._document |= {key: value for key, value in response.items() if value is not None}
        if kind in _ENDS:
            self.ended = True
            self._document["status"] = ending
        return ()

    def complete(self) -> ModelResponse | None:
        if not self.ended:
            return None
        # Some hosts end with a response that leaves out the items that they have streamed.
        if not self._document.get("output"):
            self._document["output"] = [item.complete() for _, item in sorted(self._items.items())]
        return response_from(self._document)

    def _take_piece(self, name: str, ending: str, document: Mapping[str, Any]) -> Iterable[Delta]:
        target = _TARGETS[name]
        partial = self._item_for(document, target.item)
        index = document.get(target.counter)
        pieces = partial.pieces.setdefault((name, index if isinstance(index, int) else 0), [])
        piece = document.get("delta" if ending == "delta" else target.key)
        if not isinstance(piece, str):
            return ()
        if ending == "delta":
            pieces.append(piece)
        else:
            pieces[:] = [piece]
        if name == "function_call_arguments" and partial.item.get("name") == OUTPUT_TOOL:
            return (OutputDelta(piece),) if ending == "delta" else ()
        if name != "output_text":
            return self._show_reasoning(name, pieces, piece) if ending == "delta" else ()
        in_step = ending == "delta" and partial.shown == partial.received
        partial.received += len(piece) if ending == "delta" else 0
        if in_step and self._hidden[:1] == [partial]:
            partial.shown += len(piece)
            return (TextDelta(piece),)
        return self._show_text()

    def _show_reasoning(self, name: str, pieces: list[str], piece: str) -> Iterable[Delta]:
        """Return a piece of the thoughts, or of their summaries if these come first."""
        if not name.startswith("reasoning") or self._reasoning not in (None, name):
            return ()
        # As in the complete response, a blank line separates two parts.
        gap = "\n\n" if self._reasoning and len(pieces) == 1 else ""
        self._reasoning = name
        return (ReasoningDelta(gap + piece),)

    def _take_item(self, ending: str, document: Mapping[str, Any]) -> Iterable[Delta]:
        item: Item = document["item"]
        partial = self._item_for(document, kind_of(item), new=ending == "added")
        partial.item = item
        partial.done = ending == "done"
        for name in (item.get("id"), item.get("call_id")):
            if name:
                self._named.setdefault(name, partial)
        return self._show_text() if partial.done else ()

    def _item_for(self, document: Mapping[str, Any], kind: str, *, new: bool = False) -> _PartialItem:
        """Return the item of an event: by its index, by its id, or else the last one."""
        index, item = document.get("output_index"), document.get("item") or {}
        name = document.get("item_id") or item.get("id") or item.get("call_id")
        if isinstance(index, int):
            partial = self._items.get(index)
        elif name:
            partial = self._named.get(name)
        else:
            partial = None if new or not self._items else next(reversed(self._items.values()))
        if partial is None:
            last = max(self._items, default=-1)
            partial = self._begin(index if isinstance(index, int) else last + 1, name, kind)
        return partial

    def _begin(self, index: int, name: str | None, kind: str) -> _PartialItem:
        partial = self._items[index] = _PartialItem(index)
        if name:
            self._named[name] = partial
        if kind == "message":
            self._hidden.append(partial)
            self._hidden.sort(key=lambda message: message.index)
        return partial

    def _show_text(self) -> Iterable[Delta]:
        """Return the text that can be shown now, in the order of the messages."""
        news = []
        while self._hidden:
            message = self._hidden[0]
            text = "".join(texts_of(message.complete()))
            news.append(text[message.shown :])
            message.received = message.shown = max(message.shown, len(text))
            if not message.done:
                break
            self._hidden.pop(0)
        text = "".join(news)
        return (TextDelta(text),) if text else ()
