"""OpenAI's chat completions, and the many hosts that are compatible with them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from whyloop.errors import ConfigurationError, ModelError
from whyloop.models.prices import chat_billing, chat_usage
from whyloop.models.provider import (
    EncodedMessages,
    ProviderApi,
    Settings,
    StreamReader,
    arguments_text,
    data_url,
    language_of,
    media_of,
    new_call,
    parsed,
)
from whyloop.models.response import stream_error
from whyloop.models.structured_output import schema_format
from whyloop.values.messages import ImagePart, Message, Part, TextPart, ToolCall
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
from whyloop.values.text import shortened

NAME = "openai-chat"

Signature = Mapping[str, Any]  # Fields of a tool call that are sent back with it.

FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
    "error": FinishReason.ERROR,
    "network_error": FinishReason.ERROR,
}
_SENT_BACK = ("reasoning_details", "extra_content", "thought_signature")


class OpenAIChat(ProviderApi):
    """OpenAI's chat completions."""

    name = NAME

    def __init__(self) -> None:
        self._messages = EncodedMessages(encode_message)

    def path(self, settings: Settings) -> str:
        return "/chat/completions"

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        options = msgspec.json.encode(_options(request, settings))
        messages = self._messages.of(request.messages, settings.quirks)
        if "no_developer" in settings.quirks:
            for index, message in enumerate(takewhile(lambda message: message.is_system, request.messages)):
                messages[index] = _system(_content(message.content))
        if request.instructions:
            messages.insert(0, _system(request.instructions))
        return options[:-1] + b',"messages":[' + b",".join(messages) + b"]}"

    def read_document(self, document: Any) -> ModelResponse:
        choices = document["choices"]
        choice = next((one for one in choices if not one.get("index")), choices[0])
        if choice.get("error"):
            raise stream_error(choice)
        message = choice["message"]
        wanted = message.get("tool_calls") or _older_calls(message)
        calls = [_call(call) for call in wanted if "custom" not in call]
        text, thought = _texts(message.get("content"))
        return _response(document, message, text, thought, calls, choice.get("finish_reason"))

    def reader(self) -> StreamReader:
        return ChatStream()


# Requests


def encode_message(message: Message, quirks: Any = frozenset()) -> bytes:
    """Return one message as JSON, as this host understands it."""
    return msgspec.json.encode(message_document(message, quirks))


def message_document(message: Message, quirks: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return one message as this host understands it."""
    if message.is_tool:
        call_id = _id(message.tool_call_id or "", quirks)
        return {"role": "tool", "tool_call_id": call_id, "content": message.model_text}
    if message.is_assistant:
        return _assistant(message, quirks)
    # Such a host has no developer role: after the beginning, the application's messages become the user's.
    role = "user" if message.is_developer and "no_developer" in quirks else str(message.role)
    return {"role": role, "content": _content(message.content)}


def _system(content: Any) -> bytes:
    return msgspec.json.encode({"role": "system", "content": content})


def _id(call_id: str, quirks: frozenset[str]) -> str:
    """Return a call's id in the host's form, for the call and for its result."""
    if "short_ids" not in quirks or re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _assistant(message: Message, quirks: frozenset[str]) -> dict[str, Any]:
    extras = {} if "no_extras" in quirks else message.extras.get(NAME, {})
    document: dict[str, Any] = {"role": "assistant", "content": message.model_text or None}
    document |= {key: extras[key] for key in _SENT_BACK if key in extras}
    # Hosts that show reasoning require it back with the calls that it led to. Some require it with every
    # message as soon as there are tools, even from models without reasoning; others refuse it elsewhere.
    if "reasoning_back" in quirks:
        document["reasoning_content"] = extras.get("reasoning_content", "")
    elif message.tool_calls and "reasoning_content" in extras:
        document["reasoning_content"] = extras["reasoning_content"]
    if not message.tool_calls:
        document["content"] = message.model_text
        return document
    signed = extras.get("tool_calls", {})
    document["tool_calls"] = [
        {
            "id": _id(call.id, quirks),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
            **signed.get(call.id, {}),
        }
        for call in message.tool_calls
    ]
    return document


def _content(content: str | Sequence[Part]) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": data_url(part)}}
    if media_of(part)[1] is None:
        address = shortened(part.url or "", 100)
        raise ConfigurationError(f"the chat completions API takes no files by URL: {address}; pass its data")
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": data_url(part)}}


def _options(request: ModelRequest, settings: Settings) -> dict[str, Any]:
    """Return every field of the request but the messages."""
    quirks = settings.quirks
    options: dict[str, Any] = {"model": settings.model, "stream": settings.stream}
    if settings.stream and "no_stream_options" not in quirks:
        options["stream_options"] = {"include_usage": True}
    if settings.temperature is not None:
        options["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        name = "max_tokens" if "max_tokens" in quirks else "max_completion_tokens"
        options[name] = settings.max_tokens
    extra = dict(settings.extra)
    tools: list[Any] = [
        {
            "type": "function",
            "function": {"name": spec.name, "description": spec.description, "parameters": spec.parameters},
        }
        for spec in request.tools
    ]
    if tools := [*tools, *(extra.pop("tools", None) or ())]:
        options["tools"] = tools
        if settings.tool_choice is not None:
            options["tool_choice"] = _tool_choice(settings.tool_choice, quirks)
        if settings.parallel_tool_calls is not None:
            options["parallel_tool_calls"] = settings.parallel_tool_calls
    if form := schema_format(request, settings):
        options["response_format"] = {"type": "json_schema", "json_schema": form}
    return options | extra


def _tool_choice(choice: str, quirks: frozenset[str]) -> Any:
    if choice == "required":
        return "any" if "tool_choice_any" in quirks else "required"
    if choice in ("auto", "none"):
        return choice
    return {"type": "function", "function": {"name": choice}}


# Responses


def _response(
    document: Mapping[str, Any],
    message: Mapping[str, Any],
    text: str,
    reasoning: str,
    calls: list[tuple[ToolCall, Signature]],
    finish_reason: str | None,
) -> ModelResponse:
    """Return the response in a message, complete or put together from a stream."""
    if refusal := message.get("refusal"):
        raise ModelError(f"the model refused: {refusal}", retryable=False)
    tool_calls = tuple([call for call, _ in calls])
    extras = {key: message[key] for key in ("reasoning_content", *_SENT_BACK) if message.get(key)}
    if signed := {call.id: signature for call, signature in calls if signature}:
        extras["tool_calls"] = signed
    return ModelResponse(
        text=language_of(text, tool_calls),
        tool_calls=tool_calls,
        finish_reason=FINISH_REASONS.get(finish_reason or "", FinishReason.OTHER),
        usage=chat_usage(document),
        reasoning=reasoning or _reasoning(message),
        extras={NAME: extras} if extras else {},
        source=ModelSource(document.get("model"), document.get("id"), finish_reason),
        billing=chat_billing(document),
        unsupported=_unsupported(message),
    )


def _unsupported(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a message that are neither text nor calls of functions."""
    customs = [call["custom"].get("name") for call in message.get("tool_calls") or () if "custom" in call]
    items = [f"a custom tool call ({name})" for name in customs if name]
    items += ["an image" for _ in message.get("images") or ()]
    return (*items, "audio") if message.get("audio") else tuple(items)


def _call(call: Mapping[str, Any]) -> tuple[ToolCall, Signature]:
    function = call["function"]
    return new_call(call.get("id"), function["name"], function.get("arguments")), _signature(call)


def _signature(call: Mapping[str, Any]) -> Signature:
    return {"extra_content": call["extra_content"]} if call.get("extra_content") else {}


def _older_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the call in the older field for a single function call."""
    return [{"function": message["function_call"]}] if message.get("function_call") else []


def _texts(content: Any) -> tuple[str, str]:
    """Return the text and the reasoning in a string, None or a list of parts."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    texts = [part.get("text", "") for part in content if part.get("type") in ("text", "output_text")]
    thoughts = [part.get("thinking") or "" for part in content if part.get("type") == "thinking"]
    return "".join(texts), "".join(
        thought if isinstance(thought, str) else "".join(piece.get("text", "") for piece in thought)
        for thought in thoughts
    )


def _reasoning(message: Mapping[str, Any]) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning if isinstance(reasoning, str) else ""


# Streams


class ChatStream(StreamReader):
    """A reader of the chunks of one completion; it never shows tool arguments."""

    ends_with_done = True

    def __init__(self) -> None:
        super().__init__()
        self._document: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._details: dict[Any, dict[str, Any]] = {}
        self._calls = _PartialCalls()
        self._finish_reason: str | None = None

    def take(self, kind: str, document: dict[str, Any]) -> Iterable[Delta]:
        for key in ("id", "model", "usage", "x_groq", "service_tier"):
            if document.get(key):
                self._document[key] = document[key]
        for choice in document.get("choices") or ():
            if not choice.get("index"):  # Only the first of several answers counts.
                return self._take_choice(choice)
        return ()

    def complete(self) -> ModelResponse | None:
        if self._finish_reason is None:
            return None
        reasoning = "".join(self._reasoning)
        message = {**self._message, "reasoning_details": list(self._details.values())}
        if "reasoning_content" in message:
            message["reasoning_content"] = reasoning
        text, calls = "".join(self._text), self._calls.complete()
        return _response(self._document, message, text, reasoning, calls, self._finish_reason)

    def _take_choice(self, choice: dict[str, Any]) -> Iterable[Delta]:
        if choice.get("error"):
            raise stream_error(choice)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        delta = choice.get("delta") or choice.get("message") or {}
        if len(delta) == 1 and type(text := delta.get("content")) is str:
            # A shortcut for chunks with only text, which most are: 5 µs instead of 6.
            self._text.append(text)
            return (TextDelta(text),) if text else ()
        self._take_extras(delta)
        deltas: list[Delta] = []
        for piece in delta.get("tool_calls") or ():
            if "custom" in piece:
                self._message.setdefault("tool_calls", []).append(piece)
            elif self._calls.add(piece).name == OUTPUT_TOOL:
                deltas.append(OutputDelta((piece.get("function") or {}).get("arguments") or ""))
        if older := delta.get("function_call"):
            self._calls.add({"index": "function_call", "function": older})
        text, thought = _texts(delta.get("content"))
        thought = _reasoning(delta) + thought
        if thought:
            self._reasoning.append(thought)
            deltas.append(ReasoningDelta(thought))
        if text:
            self._text.append(text)
            deltas.append(TextDelta(text))
        return deltas

    def _take_extras(self, delta: Mapping[str, Any]) -> None:
        """Keep the fields that are neither text nor calls."""
        for detail in delta.get("reasoning_details") or ():
            known = self._details.setdefault((detail.get("type"), detail.get("index")), {})
            for key, value in detail.items():
                joins = key in ("text", "summary", "data") and isinstance(known.get(key), str) and value
                known[key] = known[key] + value if joins else value
        for key in ("reasoning_content", "extra_content", "thought_signature", "images", "audio"):
            if delta.get(key):
                self._message[key] = delta[key]
        if refusal := delta.get("refusal"):
            self._message["refusal"] = self._message.get("refusal", "") + refusal


class _PartialCalls:
    """The calls of a stream, distinguished by id, by index, or by a new name."""

    def __init__(self) -> None:
        self._calls: list[_PartialCall] = []
        self._latest: dict[Any, _PartialCall] = {}

    def add(self, piece: Mapping[str, Any]) -> _PartialCall:
        index = piece.get("index")
        call = self._known(piece, index)
        if call is None:
            call = _PartialCall()
            self._calls.append(call)
        self._latest[index] = call
        call.add(piece)
        return call

    def complete(self) -> list[tuple[ToolCall, Signature]]:
        return [(new_call(call.id, call.name, call.arguments), call.signature) for call in self._calls]

    def _known(self, piece: Mapping[str, Any], index: Any) -> _PartialCall | None:
        """Return the call that a piece belongs to; None if it begins one."""
        call_id, name = piece.get("id"), (piece.get("function") or {}).get("name")
        if call_id and (same := [call for call in self._calls if call.id == call_id]):
            # One id with two indexes is not one call: the host repeats ids.
            return same[0] if index is None or self._latest.get(index) is same[0] else None
        candidate = self._latest.get(index)
        if candidate is None and index is None and self._calls:
            candidate = self._calls[-1]
        if candidate is None or (call_id and candidate.id):
            return None
        return None if name and candidate.ends_before(name) else candidate


class _PartialCall:
    """The part of one call that has arrived."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.whole: Mapping[str, Any] | None = None
        self.signature: Signature = {}

    def add(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        self.id = self.id or piece.get("id") or ""
        self.name = self.name or function.get("name") or ""
        self.signature = _signature(piece) or self.signature
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.pieces.append(arguments)
        elif isinstance(arguments, dict):
            self.whole = arguments

    @property
    def arguments(self) -> Mapping[str, Any] | str:
        if self.whole is not None:
            return self.whole
        # Some hosts begin with an empty object and then send the real one.
        pieces = self.pieces[1:] if self.pieces[:1] == ["{}"] and "".join(self.pieces[1:]) else self.pieces
        arguments: Mapping[str, Any] | str = parsed("".join(pieces))
        return arguments

    def ends_before(self, name: str) -> bool:
        """Return whether a piece with this name must belong to another call."""
        if not self.name:
            return False
        return name != self.name or (bool(self.pieces or self.whole) and not isinstance(self.arguments, str))
