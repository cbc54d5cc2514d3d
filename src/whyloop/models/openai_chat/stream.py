"""A chat completion put together from its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whyloop.errors import ResponseValidationError
from whyloop.models.failures import stream_error
from whyloop.models.openai_chat.partial_calls import PartialCalls
from whyloop.models.openai_chat.response import build, texts_of
from whyloop.models.parts import json_of
from whyloop.values.model import Delta, ModelResponse, ReasoningDelta, TextDelta


class ChatStream:
    """Reads the chunks of one completion; arguments of tools are collected and never shown."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._text: list[str] = []
        self.ended = False
        self._reasoning: list[str] = []
        self._details: dict[Any, dict[str, Any]] = {}
        self._calls = PartialCalls()
        self._word: str | None = None

    def read(self, event: str, data: bytes) -> Iterable[Delta]:
        if data == b"[DONE]":
            self.ended = True
            return ()
        chunk = json_of(data, "a chunk of the stream")
        if not isinstance(chunk, dict):
            raise ResponseValidationError(f"a chunk of the stream is no object: {data[:80]!r}")
        if chunk.get("error") or event == "error":
            raise stream_error(chunk)
        try:
            return self._take(chunk)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise _unreadable(error) from None

    def finish(self) -> ModelResponse:
        if self._word is None:
            raise ResponseValidationError("the stream ended before the answer was complete")
        reasoning = "".join(self._reasoning)
        message = {**self._message, "reasoning_details": list(self._details.values())}
        if "reasoning_content" in message:
            message["reasoning_content"] = reasoning
        try:
            return build(
                self._document,
                message,
                text="".join(self._text),
                reasoning=reasoning,
                calls=self._calls.complete(),
                word=self._word,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise _unreadable(error) from None

    def _take(self, chunk: dict[str, Any]) -> Iterable[Delta]:
        for key in ("id", "model", "usage", "x_groq"):
            if chunk.get(key):
                self._document[key] = chunk[key]
        for choice in chunk.get("choices") or ():
            if not choice.get("index"):  # Of several answers only the first was asked for.
                return self._take_choice(choice)
        return ()

    def _take_choice(self, choice: dict[str, Any]) -> Iterable[Delta]:
        if choice.get("error"):
            raise stream_error(choice)
        self._word = choice.get("finish_reason") or self._word
        delta = choice.get("delta") or choice.get("message") or {}
        thought = self._take_extras(delta)
        for piece in delta.get("tool_calls") or ():
            if "custom" in piece:
                self._message.setdefault("tool_calls", []).append(piece)
            else:
                self._calls.add(piece)
        if older := delta.get("function_call"):
            self._calls.add({"index": "function_call", "function": older})
        text, aloud = texts_of(delta.get("content"))
        thought += aloud
        deltas: list[Delta] = []
        if thought:
            self._reasoning.append(thought)
            deltas.append(ReasoningDelta(thought))
        if text:
            self._text.append(text)
            deltas.append(TextDelta(text))
        return deltas

    def _take_extras(self, delta: Mapping[str, Any]) -> str:
        """Take what is neither text nor a call; return the piece of reasoning in it."""
        for detail in delta.get("reasoning_details") or ():
            self._take_detail(detail)
        for key in ("reasoning_content", "extra_content", "thought_signature", "images", "audio"):
            if delta.get(key):
                self._message[key] = delta[key]
        if refusal := delta.get("refusal"):
            self._message["refusal"] = self._message.get("refusal", "") + refusal
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        return thought if isinstance(thought, str) else ""

    def _take_detail(self, detail: dict[str, Any]) -> None:
        """A piece of a thought joins the pieces that came before it."""
        known = self._details.setdefault((detail.get("type"), detail.get("index")), {})
        for key, value in detail.items():
            joins = key in ("text", "summary", "data") and isinstance(known.get(key), str) and value
            known[key] = known[key] + value if joins else value


def _unreadable(error: Exception) -> ResponseValidationError:
    return ResponseValidationError(f"the stream cannot be read: {type(error).__name__}: {error}")
