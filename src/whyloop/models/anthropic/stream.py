"""An Anthropic message put together from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whyloop.errors import ResponseValidationError
from whyloop.models.anthropic.response import build
from whyloop.models.failures import stream_error
from whyloop.models.parts import arguments_of, json_of
from whyloop.values.model import Delta, ModelResponse, ReasoningDelta, TextDelta


class _PartialBlock:
    """A content block whose pieces are still coming in."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.pieces: dict[str, list[str]] = {}
        self.citations: list[Any] = []

    def add(self, delta: Mapping[str, Any]) -> Iterable[Delta]:
        """Take one piece; return what it adds to the visible text and to the reasoning."""
        kind = delta["type"]
        if kind == "text_delta":
            text = self._append("text", delta.get("text"))
            return _shown(text) if self.start["type"] == "text" else ()
        if kind == "thinking_delta":
            return _thought(self._append("thinking", delta.get("thinking")))
        if kind == "input_json_delta":
            self._append("input", delta.get("partial_json"))
        elif kind == "signature_delta":
            self.start["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            self.citations.append(delta.get("citation"))
        elif kind == "compaction_delta":
            self._append("content", delta.get("content"))
        return ()

    def complete(self) -> dict[str, Any]:
        block = dict(self.start)
        for key, pieces in self.pieces.items():
            if key != "input":
                block[key] = (self.start.get(key) or "") + "".join(pieces)
        if written := "".join(self.pieces.get("input", ())):
            arguments = arguments_of(written)
            # Our own tools are told what is wrong with their arguments; the provider's take objects only.
            block["input"] = {} if isinstance(arguments, str) and block["type"] != "tool_use" else arguments
        if self.citations:
            block["citations"] = [*(block.get("citations") or ()), *self.citations]
        return block

    def _append(self, key: str, piece: Any) -> str:
        text = "" + (piece or "")
        self.pieces.setdefault(key, []).append(text)
        return text


class MessageStream:
    """Reads the events of one message; arguments of tools are collected and never shown."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[_PartialBlock] = []
        self._open: dict[Any, _PartialBlock] = {}
        self.ended = False

    def read(self, event: str, data: bytes) -> Iterable[Delta]:
        if data == b"[DONE]":
            return ()
        document = json_of(data, "an event of the stream")
        if not isinstance(document, dict):
            raise ResponseValidationError(f"an event of the stream is no object: {data[:80]!r}")
        kind = document.get("type") or event
        if kind == "error" or document.get("error"):
            raise stream_error(document)
        try:
            return self._take(kind, document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ResponseValidationError(
                f"an event of the stream cannot be read: {type(error).__name__}: {error}"
            ) from None

    def finish(self) -> ModelResponse:
        if not self.ended or not self._message.get("stop_reason"):
            raise ResponseValidationError("the stream ended before the answer was complete")
        blocks = map(_PartialBlock.complete, self._blocks)
        return build({**self._message, "content": blocks, "usage": self._usage})

    def _take(self, kind: str, document: Mapping[str, Any]) -> Iterable[Delta]:
        if kind == "content_block_delta":
            return self._open[document.get("index")].add(document["delta"])
        if kind == "content_block_start":
            start = document["content_block"]
            block = self._open[document.get("index")] = _PartialBlock(start)
            self._blocks.append(block)
            if start["type"] == "thinking":
                return _thought(start.get("thinking") or "")
            return _shown((start.get("text") or "") if start["type"] == "text" else "")
        if kind == "message_start":
            self._update(document["message"], document["message"].get("usage"))
        elif kind == "message_delta":
            self._update(document["delta"], document.get("usage"))
        elif kind == "message_stop":
            self.ended = True
        # Pings and kinds of events that are yet to be invented say nothing about the answer.
        return ()

    def _update(self, fields: Mapping[str, Any], usage: Mapping[str, Any] | None) -> None:
        """Later words about the message replace earlier ones; silence does not."""
        self._message.update({key: value for key, value in fields.items() if value is not None})
        self._usage.update({key: value for key, value in (usage or {}).items() if value is not None})


def _shown(text: str) -> Iterable[Delta]:
    return (TextDelta(text),) if text else ()


def _thought(text: str) -> Iterable[Delta]:
    return (ReasoningDelta(text),) if text else ()
