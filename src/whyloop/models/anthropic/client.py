"""Anthropic's messages as one wire format."""

from __future__ import annotations

from collections.abc import Mapping

from whyloop.models.anthropic.request import NAME, encode, encode_message
from whyloop.models.anthropic.response import decode
from whyloop.models.anthropic.stream import MessageStream
from whyloop.models.fragments import Fragments
from whyloop.models.wire import Settings, StreamReader
from whyloop.values.model import ModelRequest, ModelResponse

API_VERSION = "2023-06-01"


class AnthropicMessages:
    """Anthropic's messages."""

    name = NAME

    def __init__(self) -> None:
        self._fragments = Fragments(encode_message)

    def path(self, settings: Settings) -> str:
        return "/v1/messages"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        version = {"anthropic-version": API_VERSION}
        return {"x-api-key": api_key, **version} if api_key else version

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        return encode(request, settings, self._fragments)

    def decode(self, body: bytes) -> ModelResponse:
        return decode(body)

    def reader(self) -> StreamReader:
        return MessageStream()
