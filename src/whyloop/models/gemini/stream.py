"""An answer of generateContent put together from its pieces."""

from __future__ import annotations

from collections.abc import Iterable

from whyloop.errors import ResponseValidationError
from whyloop.models.gemini.response import Answer
from whyloop.models.parts import json_of
from whyloop.values.model import Delta, ModelResponse


class ContentStream:
    """Reads the pieces of one answer; calls come whole and are never shown."""

    def __init__(self) -> None:
        self._answer = Answer()
        self.ended = False

    def read(self, event: str, data: bytes) -> Iterable[Delta]:
        if data == b"[DONE]":
            return ()
        document = json_of(data, "a piece of the stream")
        deltas = self._answer.take(document)
        # The piece that says why the model fell silent and what it cost is the last one.
        self.ended = self._answer.finished and "usageMetadata" in document
        return deltas

    def finish(self) -> ModelResponse:
        response = self._answer.complete()
        if not self._answer.finished:
            raise ResponseValidationError("the stream ended before the answer was complete")
        return response
