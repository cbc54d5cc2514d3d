"""Anthropic's messages API, also spoken by other hosts.

An answer of this API is a list of content blocks, whose order matters when it is sent back. The message
itself has the text and the tool calls. `extras["anthropic"]["blocks"]` has the list, with all other blocks as
they came; it refers to a text by its length and to a tool call by its id.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import msgspec

from whyloop.errors import ModelError
from whyloop.models.prices import anthropic_billing, anthropic_usage
from whyloop.models.provider import (
    EncodedMessages,
    ProviderApi,
    Settings,
    StreamReader,
    language_of,
    media_of,
    new_call,
    parsed,
    thinking_tokens,
    with_extra,
)
from whyloop.models.structured_output import enforced_schema
from whyloop.values.messages import FilePart, ImagePart, Message, MessageRole, Part, TextPart, ToolCall
from whyloop.values.model import (
    OUTPUT_TOOL,
    Delta,
    FinishReason,
    ModelRequest,
    ModelResponse,
    ModelSource,
    OutputDelta,
    ReasoningDelta,
    TextDelta,
)

NAME = "anthropic"
API_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 8192  # The API requires a number; every current model accepts this one.

Block = dict[str, Any]

_FINISH = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "refusal": FinishReason.CONTENT_FILTER,
    "pause_turn": FinishReason.PAUSE_TURN,
}
_FIRST_GENERATION = ("claude-3-haiku", "claude-3-sonnet", "claude-3-opus", "claude-2", "claude-instant")
_THOUGHTS = ("thinking", "redacted_thinking")
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_TEXTUAL = re.compile(r"text/|application/(.*\+)?(json|xml|yaml|x-yaml|toml|javascript|sql|csv)$")
_ASSISTANT, _TOOL = MessageRole.ASSISTANT, MessageRole.TOOL
_OPENING = {True: b'{"role":"assistant","content":[', False: b'{"role":"user","content":['}


class AnthropicMessages(ProviderApi):
    """Anthropic's messages."""

    name = NAME

    def __init__(self) -> None:
        self._messages = EncodedMessages(encode_message)

    def path(self, settings: Settings) -> str:
        return "/v1/messages"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        version = {"anthropic-version": API_VERSION}
        return {"x-api-key": api_key, **version} if api_key else version

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        messages = list(request.messages)
        leading = [message.model_text for message in takewhile(lambda message: message.is_system, messages)]
        system = [request.instructions or "", *leading]
        options = msgspec.json.encode(_options(request, settings, system) | _container(messages, settings))
        rest = messages[len(leading) :]
        turns = _turns(rest, self._messages.of(rest))
        return options[:-1] + b',"messages":[' + b",".join(turns) + b"]}"

    def read_document(self, document: Any) -> ModelResponse:
        return _response(document)

    def reader(self) -> StreamReader:
        return MessageStream()


# Requests


def encode_message(message: Message, _: object = None) -> bytes:
    """Return the blocks of one message as JSON, separated by commas."""
    return b",".join([msgspec.json.encode(block) for block in _blocks(message)])


def _turns(messages: Sequence[Message], encoded: Sequence[bytes]) -> list[bytes]:
    """Return the messages as turns of user and assistant, which must alternate."""
    turns: list[list[bytes]] = []
    speaker, results = None, 0
    for message, blocks in zip(messages, encoded, strict=True):
        if not blocks:
            continue
        role = message.role
        side = role == _ASSISTANT
        if side is not speaker:
            speaker, results = side, 0
            turns.append([_OPENING[side]])
        # The API only accepts a turn whose tool results come first.
        if role == _TOOL:
            results += 1
            turns[-1].insert(results, blocks)
        else:
            turns[-1].append(blocks)
    return [opening + b",".join(blocks) + b"]}" for opening, *blocks in turns]


def _blocks(message: Message) -> list[Block]:
    """Return one message as content blocks."""
    if message.is_assistant:
        return _assistant_blocks(message)
    if not message.is_tool:
        return _part_blocks(message.content)
    result: Block = {"type": "tool_result", "tool_use_id": _fit(message.tool_call_id or "")}
    if isinstance(message.content, str):
        return [{**result, "content": message.content}] if message.content.strip() else [result]
    return [{**result, "content": _part_blocks(message.content)}]


def _fit(name: str) -> str:
    """Return an id or a name in the characters that this API accepts."""
    return _UNFIT.sub("_", name) or "_"


def _assistant_blocks(message: Message) -> list[Block]:
    """Return an assistant's message as its original content blocks."""
    text, calls = message.model_text, message.tool_calls
    row: Sequence[Block] = message.extras.get(NAME, {}).get("blocks", ())
    if not _describes(row, text, calls):
        # The message came from elsewhere or was edited: only the thinking blocks are still valid.
        thoughts = [entry for entry in row if entry.get("type") in _THOUGHTS]
        row = [*thoughts, *_usual_row(text, calls)]
    blocks, start, remaining = [], 0, iter(calls)
    for entry in row:
        if entry["type"] == "text":
            piece = text[start : start + entry["length"]]
            start += entry["length"]
            # The API refuses a block that only has white space.
            if piece.strip():
                kept = {name: value for name, value in entry.items() if name != "length"}
                blocks.append({**kept, "text": piece})
        elif entry["type"] == "tool_use":
            call = next(remaining)
            # Arguments that are not an object cannot be sent; the call's result tells the model.
            arguments = {} if isinstance(call.arguments, str) else call.arguments
            blocks.append({**entry, "id": _fit(call.id), "name": _fit(call.name), "input": arguments})
        else:
            blocks.append(entry)
    # It also refuses a turn that ends with thinking, which an interrupted answer may do.
    while blocks and blocks[-1]["type"] in _THOUGHTS:
        blocks.pop()
    return blocks


def _describes(row: Sequence[Block], text: str, calls: Sequence[ToolCall]) -> bool:
    """Return whether a list of blocks belongs to this text and these calls."""
    length = sum(entry["length"] for entry in row if entry.get("type") == "text")
    ids = [entry["id"] for entry in row if entry.get("type") == "tool_use"]
    return length == len(text) and ids == [call.id for call in calls]


def _part_blocks(content: str | Sequence[Part]) -> list[Block]:
    parts = (TextPart(content),) if isinstance(content, str) else content
    return [_part(part) for part in parts if not isinstance(part, TextPart) or part.text.strip()]


def _part(part: Part) -> Block:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    media_type, data = media_of(part)
    is_image = isinstance(part, ImagePart) or media_type.startswith("image/")
    source: Block = {"type": "url", "url": part.url}
    if data is not None:
        usual = "image/png" if is_image else "application/pdf"
        source = {"type": "base64", "media_type": media_type or usual, "data": data}
        # A file of an unknown type is sent as text if it can be read as text.
        if not is_image and (not media_type or _TEXTUAL.match(media_type)):
            with suppress(ValueError):
                text = base64.b64decode(data, validate=True).decode()
                source = {"type": "text", "media_type": "text/plain", "data": text}
    if is_image:
        return {"type": "image", "source": source}
    title = {"title": part.name} if isinstance(part, FilePart) and part.name else {}
    return {"type": "document", "source": source, **title}


def _options(request: ModelRequest, settings: Settings, system: list[str]) -> dict[str, Any]:
    """Return every field of the request but the messages."""
    options: dict[str, Any] = {
        "model": settings.model,
        "max_tokens": settings.max_tokens or _max_tokens(settings),
        "stream": settings.stream,
    }
    if instructions := "\n\n".join([text for text in system if text.strip()]):
        options["system"] = instructions
    if settings.temperature is not None:
        options["temperature"] = settings.temperature
    if request.tools:
        empty = {"type": "object", "properties": {}}
        options["tools"] = [
            {"name": spec.name, "description": spec.description, "input_schema": spec.parameters or empty}
            for spec in request.tools
        ]
    if request.tools or settings.extra.get("tools"):
        options |= _tool_choice(settings)
    if (schema := enforced_schema(request, settings)) is not None:
        options["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return with_extra(options, settings.extra)


def _max_tokens(settings: Settings) -> int:
    if settings.model.startswith(_FIRST_GENERATION):
        return 4096
    return DEFAULT_MAX_TOKENS + thinking_tokens(settings.extra)


def _tool_choice(settings: Settings) -> dict[str, Any]:
    wanted, one_by_one = settings.tool_choice, settings.parallel_tool_calls is False
    if wanted is None and not one_by_one:
        return {}
    kinds = {None: "auto", "auto": "auto", "none": "none", "required": "any"}
    choice: dict[str, Any] = {"type": kinds.get(wanted, "tool")}
    choice |= {} if wanted in kinds else {"name": wanted}
    single = {"disable_parallel_tool_use": True} if one_by_one and wanted != "none" else {}
    return {"tool_choice": choice | single}


def _container(messages: Sequence[Message], settings: Settings) -> dict[str, Any]:
    """Return the latest container of this history, with the files of earlier code.

    One that the caller names takes precedence; the API would refuse one that has expired.
    """
    wanted = settings.extra.get("container")
    if not settings.extra.get("tools") or isinstance(wanted, str) or (wanted and wanted.get("id")):
        return {}
    kept = [message.extras.get(NAME, {}).get("container") for message in messages if message.extras]
    latest = next((container for container in reversed(kept) if container), None)
    if latest is None:
        return {}
    with suppress(ValueError, TypeError):  # The response may not say when it expires.
        if datetime.fromisoformat(str(latest.get("expires_at"))) <= datetime.now(UTC):
            return {}
    return {"container": {**wanted, "id": latest["id"]} if wanted else latest["id"]}


# Responses


def _response(document: Mapping[str, Any]) -> ModelResponse:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    row: list[Block] = []
    for block in document["content"] or ():
        kind = block["type"]
        if kind == "text":
            text = block.get("text") or ""
            texts.append(text)
            row += [_text_entry(text, block)] if text else []
        elif kind == "tool_use":
            calls.append(new_call(block.get("id"), block["name"], block.get("input")))
            row.append(_call_entry(calls[-1], block))
        elif kind == "thinking":
            thoughts.append(block.get("thinking") or "")
            # Without a signature, as after an interruption, the API would refuse it.
            row += [block] if block.get("signature") else []
        else:
            row.append(block)
    reason = document.get("stop_reason")
    text = language_of("".join(texts), calls)
    if texts and not text:
        row = [entry for entry in row if entry["type"] != "text"]
    if reason == "refusal" and not text.strip() and not calls:
        raise ModelError(_refusal(document), retryable=False)
    return ModelResponse(
        text=text,
        tool_calls=tuple(calls),
        finish_reason=_FINISH.get(reason or "", FinishReason.OTHER),
        usage=anthropic_usage(document.get("usage") or {}),
        reasoning="".join(thoughts),
        extras=_extras(document, [] if row == _usual_row(text, calls) else row),
        source=ModelSource(document.get("model"), document.get("id"), reason),
        billing=anthropic_billing(document.get("usage") or {}),
    )


def _text_entry(text: str, block: Mapping[str, Any]) -> Block:
    """Return a text block without its text, which the message has."""
    citations = {"citations": block["citations"]} if block.get("citations") else {}
    return {"type": "text", "length": len(text), **citations}


def _call_entry(call: ToolCall, block: Mapping[str, Any]) -> Block:
    """Return the block of a call without the call; with a caller other than the model."""
    caller = block.get("caller")
    direct = not isinstance(caller, dict) or caller.get("type") == "direct"
    return {"type": "tool_use", "id": call.id, **({} if direct else {"caller": caller})}


def _usual_row(text: str, calls: Sequence[ToolCall]) -> list[Block]:
    """Return the order that need not be kept: the text, then the tool calls."""
    return [*([_text_entry(text, {})] if text else []), *[_call_entry(call, {}) for call in calls]]


def _extras(document: Mapping[str, Any], row: list[Block]) -> dict[str, Any]:
    """Return the extras to send back: the content blocks, and the code container."""
    kept: dict[str, Any] = {"blocks": row} if row else {}
    container = document.get("container")
    if isinstance(container, dict) and isinstance(container.get("id"), str):
        kept["container"] = {key: container[key] for key in ("id", "expires_at") if container.get(key)}
    return {NAME: kept} if kept else {}


def _refusal(document: Mapping[str, Any]) -> str:
    """Return the message for a refusal without text."""
    details = document.get("stop_details")
    reason = details.get("explanation") or details.get("category") if isinstance(details, dict) else None
    return f"the model refused: {reason or 'it gave no explanation'}"


# Streams

_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
    "compaction_delta": "content",
}


class _PartialBlock:
    """A content block whose pieces are still arriving."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.pieces: dict[str, list[str]] = {}
        self.citations: list[Any] = []

    def add(self, delta: Mapping[str, Any]) -> Iterable[Delta]:
        """Add one piece; return the text or the reasoning in it."""
        kind = delta["type"]
        if kind == "signature_delta":
            self.start["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            self.citations.append(delta.get("citation"))
        elif kind in _PIECES:
            text = "" + (delta.get(_PIECES[kind]) or "")
            self.pieces.setdefault(_PIECES[kind], []).append(text)
            if kind == "thinking_delta":
                return _deltas(ReasoningDelta, text)
            if self.start.get("name") == OUTPUT_TOOL:
                return _deltas(OutputDelta, text)
            if kind == "text_delta" and self.start["type"] == "text":
                return _deltas(TextDelta, text)
        return ()

    def complete(self) -> dict[str, Any]:
        block = dict(self.start)
        for key, pieces in self.pieces.items():
            if key != "partial_json":
                block[key] = (self.start.get(key) or "") + "".join(pieces)
        if written := "".join(self.pieces.get("partial_json", ())):
            arguments = parsed(written)
            # Invalid arguments of our tools are reported to the model; provider tools only accept objects.
            block["input"] = {} if isinstance(arguments, str) and block["type"] != "tool_use" else arguments
        if self.citations:
            block["citations"] = [*(block.get("citations") or ()), *self.citations]
        return block


class MessageStream(StreamReader):
    """A reader of the events of one message; it never shows tool arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[_PartialBlock] = []
        self._open: dict[Any, _PartialBlock] = {}

    def take(self, kind: str, document: dict[str, Any]) -> Iterable[Delta]:
        if kind == "content_block_delta":
            return self._open[document.get("index")].add(document["delta"])
        if kind == "content_block_start":
            start = document["content_block"]
            block = self._open[document.get("index")] = _PartialBlock(start)
            self._blocks.append(block)
            if start["type"] == "thinking":
                return _deltas(ReasoningDelta, start.get("thinking") or "")
            return _deltas(TextDelta, (start.get("text") or "") if start["type"] == "text" else "")
        if kind == "message_start":
            self._update(document["message"], document["message"].get("usage"))
        elif kind == "message_delta":
            self._update(document["delta"], document.get("usage"))
        elif kind == "message_stop":
            self.ended = True
        return ()  # Pings, and unknown kinds of events.

    def complete(self) -> ModelResponse | None:
        if not self.ended or not self._message.get("stop_reason"):
            return None
        blocks = map(_PartialBlock.complete, self._blocks)
        return _response({**self._message, "content": blocks, "usage": self._usage})

    def _update(self, fields: Mapping[str, Any], usage: Mapping[str, Any] | None) -> None:
        """Replace earlier fields of the message with later ones, except null ones."""
        self._message.update({key: value for key, value in fields.items() if value is not None})
        self._usage.update({key: value for key, value in (usage or {}).items() if value is not None})


def _deltas(kind: type[Delta], text: str) -> Iterable[Delta]:
    return (kind(text),) if text else ()
