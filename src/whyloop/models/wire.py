"""What a provider's API is to the client: pure functions between our values and its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

from whyloop.values.model import Delta, ModelRequest, ModelResponse

ToolChoice = Literal["auto", "none", "required"] | str
"""`auto`, `none`, `required`, or the name of the one tool that must be called."""


class Settings(Struct, frozen=True, kw_only=True):
    """How a model is asked, in words that all providers share.

    `response_format` is a JSON schema that the answer must fit. `extra` goes into the request as
    it is, for what only one provider knows. `quirks` are the known habits of a host.
    """

    model: str
    stream: bool = True
    temperature: float | None = None
    max_tokens: int | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = {}
    quirks: frozenset[str] = frozenset()


class StreamReader(Protocol):
    """Puts a streamed response together, event by event.

    `ended` turns true with the last event: hosts are known to leave the connection open after it.
    """

    @property
    def ended(self) -> bool: ...

    def read(self, event: str, data: bytes) -> Iterable[Delta]:
        """Take one server-sent event; return what it adds to the visible text and to the reasoning."""
        ...

    def finish(self) -> ModelResponse:
        """The complete response; a `ResponseValidationError` if the stream ended before it was."""
        ...


class WireFormat(Protocol):
    """One provider's API."""

    name: str

    def path(self, settings: Settings) -> str:
        """What comes after the base address."""
        ...

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        """How a request says who it is from."""
        ...

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        """The body of a request."""
        ...

    def decode(self, body: bytes) -> ModelResponse:
        """The response in a complete body."""
        ...

    def reader(self) -> StreamReader:
        """For a response that streams."""
        ...
