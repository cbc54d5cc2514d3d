"""Responses as one wire format."""

from __future__ import annotations

from collections.abc import Mapping

from whyloop.models.fragments import Fragments
from whyloop.models.openai_responses.items import NAME
from whyloop.models.openai_responses.request import (
    encode,
    encode_message,
    encode_message_without_reasoning,
    takes_reasoning,
)
from whyloop.models.openai_responses.response import decode
from whyloop.models.openai_responses.stream import ResponsesStream
from whyloop.models.wire import Settings, StreamReader
from whyloop.values.model import ModelRequest, ModelResponse


class OpenAIResponses:
    """OpenAI's responses."""

    name = NAME

    def __init__(self) -> None:
        self._fragments = Fragments(encode_message)
        self._without_reasoning = Fragments(encode_message_without_reasoning)

    def path(self, settings: Settings) -> str:
        return "/responses"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        fragments = self._fragments if takes_reasoning(settings) else self._without_reasoning
        return encode(request, settings, fragments)

    def decode(self, body: bytes) -> ModelResponse:
        return decode(body)

    def reader(self) -> StreamReader:
        return ResponsesStream()
