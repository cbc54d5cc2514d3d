"""Chat completions as one wire format."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from whyloop.models.fragments import Fragments
from whyloop.models.openai_chat.request import NAME, encode, encode_message
from whyloop.models.openai_chat.response import decode
from whyloop.models.openai_chat.stream import ChatStream
from whyloop.models.wire import Settings, StreamReader
from whyloop.values.model import ModelRequest, ModelResponse


class OpenAIChat:
    """OpenAI's chat completions."""

    name = NAME

    def __init__(self) -> None:
        self._fragments: dict[frozenset[str], Fragments] = {}

    def path(self, settings: Settings) -> str:
        return "/chat/completions"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        quirks = settings.quirks
        fragments = self._fragments.get(quirks)
        if fragments is None:
            fragments = self._fragments[quirks] = Fragments(partial(encode_message, quirks=quirks))
        return encode(request, settings, fragments)

    def decode(self, body: bytes) -> ModelResponse:
        return decode(body)

    def reader(self) -> StreamReader:
        return ChatStream()
