"""A chat completion put together from its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from whyloop.errors import ResponseValidationError
from whyloop.models.failures import stream_error
from whyloop.models.openai_chat.response import build, signature_of
from whyloop.models.parts import arguments_of, may_be_a_call, new_call_id
from whyloop.values.messages import ToolCall
from whyloop.values.model import ModelResponse, TextDelta


class _PartialCall:
    """A tool call whose pieces are still coming in."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.whole: Mapping[str, Any] | None = None
        self.signature: Mapping[str, Any] = {}

    def add(self, piece: Mapping[str, Any]) -> None:
        self.id = piece.get("id") or self.id
        self.signature = signature_of(piece) or self.signature
        function = piece.get("function") or {}
        self.name = self.name or function.get("name") or ""
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.arguments.append(arguments)
        elif isinstance(arguments, dict):
            self.whole = arguments

    def complete(self) -> tuple[ToolCall, Mapping[str, Any]]:
        if not self.name:
            raise ResponseValidationError("the stream has a tool call without a name")
        arguments = self.whole if self.whole is not None else arguments_of("".join(self.arguments))
        return ToolCall(self.id or new_call_id(), self.name, arguments), self.signature


class ChatStream:
    """Reads the chunks of one completion; arguments of tools are collected and never shown."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}
        self._text: list[str] = []
        self._held = True  # The first words are held back until it is clear that they are language.
        self._message: dict[str, Any] = {}
        self._reasoning: list[str] = []
        self._details: list[Any] = []
        self._calls: dict[Any, _PartialCall] = {}
        self._word: str | None = None

    def read(self, event: str, data: bytes) -> Iterable[TextDelta]:
        if data == b"[DONE]":
            return ()
        try:
            chunk = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            raise ResponseValidationError(f"a chunk of the stream is no JSON: {data[:80]!r}") from None
        if not isinstance(chunk, dict):
            raise ResponseValidationError(f"a chunk of the stream is no object: {data[:80]!r}")
        if chunk.get("error") or event == "error":
            raise stream_error(chunk)
        try:
            return self._take(chunk)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ResponseValidationError(
                f"a chunk of the stream cannot be read: {type(error).__name__}: {error}"
            ) from None

    def finish(self) -> ModelResponse:
        if self._word is None:
            raise ResponseValidationError("the stream ended before the answer was complete")
        reasoning = "".join(self._reasoning)
        message = {**self._message, "reasoning_details": self._details}
        if "reasoning_content" in message:
            message["reasoning_content"] = reasoning
        return build(
            self._document,
            message,
            text="".join(self._text),
            reasoning=reasoning,
            calls=[call.complete() for call in self._calls.values()],
            word=self._word,
        )

    def _take(self, chunk: dict[str, Any]) -> Iterable[TextDelta]:
        for key in ("id", "model", "usage", "x_groq"):
            if chunk.get(key):
                self._document[key] = chunk[key]
        choices = chunk.get("choices")
        if not choices:
            return ()
        choice = choices[0]
        self._word = choice.get("finish_reason") or self._word
        delta = choice.get("delta") or choice.get("message") or {}
        self._take_extras(delta)
        for position, piece in enumerate(delta.get("tool_calls") or ()):
            self._call_for(piece, position).add(piece)
        return self._show(delta.get("content"))

    def _call_for(self, piece: Mapping[str, Any], position: int) -> _PartialCall:
        """The call that a piece belongs to: by its index, unless another id says that it is a new one."""
        index = piece.get("index")
        key: Any = position if index is None else index
        known = self._calls.get(key)
        other = known is not None and piece.get("id") and known.id and piece["id"] != known.id
        if other:
            key = piece["id"]
        elif index is None and not piece.get("id") and self._calls:
            key = next(reversed(self._calls))
        return self._calls.setdefault(key, _PartialCall())

    def _take_extras(self, delta: Mapping[str, Any]) -> None:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str):
            self._reasoning.append(thought)
        self._details += delta.get("reasoning_details") or ()
        for key in ("reasoning_content", "extra_content", "thought_signature"):
            if delta.get(key):
                self._message[key] = delta[key]
        if refusal := delta.get("refusal"):
            self._message["refusal"] = self._message.get("refusal", "") + refusal

    def _show(self, content: Any) -> Iterable[TextDelta]:
        if isinstance(content, list):
            thoughts = [p for part in content if part.get("type") == "thinking" for p in part["thinking"]]
            self._reasoning += [piece.get("text", "") for piece in thoughts]
            content = "".join(part.get("text", "") for part in content if part.get("type") == "text")
        if not content:
            return ()
        self._text.append(content)
        if not self._held:
            return (TextDelta(content),)
        text = "".join(self._text)
        if may_be_a_call(text):
            return ()
        self._held = False
        return (TextDelta(text),)
