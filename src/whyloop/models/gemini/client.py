"""generateContent as one wire format."""

from __future__ import annotations

from collections.abc import Mapping

from whyloop.models.fragments import Fragments
from whyloop.models.gemini.request import (
    NAME,
    encode,
    encode_message,
    encode_signed_message,
    needs_signatures,
)
from whyloop.models.gemini.response import decode
from whyloop.models.gemini.stream import ContentStream
from whyloop.models.wire import Settings, StreamReader
from whyloop.values.model import ModelRequest, ModelResponse


class GeminiContent:
    """Gemini's generateContent, complete or streamed."""

    name = NAME

    def __init__(self) -> None:
        self._fragments = Fragments(encode_message)
        self._signed = Fragments(encode_signed_message)

    def path(self, settings: Settings) -> str:
        # A tuned model brings its own collection along: "tunedModels/mine".
        model = settings.model if "/" in settings.model else f"models/{settings.model}"
        return f"/{model}:streamGenerateContent?alt=sse" if settings.stream else f"/{model}:generateContent"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {"x-goog-api-key": api_key} if api_key else {}

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        fragments = self._signed if needs_signatures(settings.model) else self._fragments
        return encode(request, settings, fragments)

    def decode(self, body: bytes) -> ModelResponse:
        return decode(body)

    def reader(self) -> StreamReader:
        return ContentStream()
