"""The API of a provider as the client sees it, and the helpers that all share.

A provider API is a `ProviderApi`: pure functions between our values and its bytes. Each has its own module;
`presets.py` says which host uses which.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ResponseValidationError
from whyloop.models.response import stream_error
from whyloop.text.turns import SLICE
from whyloop.text.written_calls import without_calls
from whyloop.values.messages import FilePart, ImagePart, Message, ToolCall
from whyloop.values.model import Delta, ModelRequest, ModelResponse

ToolChoice = Literal["auto", "none", "required"] | str
"""`auto`, `none`, `required`, or the name of the one tool that must be called."""

# Reading an answer that does not follow its API raises one of these.
_MISREAD = (KeyError, IndexError, TypeError, AttributeError, ValueError)


class Settings(Struct, frozen=True, kw_only=True):
    """The options of every request to a model, in terms that all providers share."""

    model: str
    """The provider's name for the model."""
    stream: bool = True
    """Whether the answer arrives piece by piece."""
    temperature: float | None = None
    """The randomness of an answer; None leaves it to the provider."""
    max_tokens: int | None = None
    """The maximum length of an answer; None leaves it to the provider."""
    tool_choice: ToolChoice | None = None
    """Which tools the model may or must call; None leaves it to the provider."""
    parallel_tool_calls: bool | None = None
    """Whether one answer may have several calls; None leaves it to the provider."""
    response_format: Mapping[str, Any] | None = None
    """A JSON schema that the answer must fit."""
    extra: Mapping[str, Any] = {}
    """Fields only for this provider, which are sent with every request unchanged."""
    quirks: frozenset[str] = frozenset()
    """The known habits of the host; `presets.py` lists them."""


# The provider's own names for `tool_choice` and `max_tokens`, which a caller may have used.
_OWN_OPTIONS = ("tool_choice", "toolConfig", "max_tokens", "max_completion_tokens", "max_output_tokens")


def settings_for(request: ModelRequest, settings: Settings) -> tuple[ModelRequest, Settings]:
    """Return a request and the settings with the request's own options."""
    if request.tool_choice is None and request.max_tokens is None:
        return request, settings
    extra, most = dict(settings.extra), settings.max_tokens
    if request.tool_choice is not None:
        for name in _OWN_OPTIONS[:2]:
            extra.pop(name, None)
        settings = replace(settings, tool_choice=request.tool_choice)
        if "no_tool_choice" in settings.quirks:
            request = replace(request, tools=())
            extra.pop("tools", None)
    if request.max_tokens is not None:
        for name in _OWN_OPTIONS[2:]:
            extra.pop(name, None)
        most = min(most or request.max_tokens, request.max_tokens)
        generation = extra.get("generationConfig")
        if isinstance(generation, Mapping):
            extra["generationConfig"] = {k: v for k, v in generation.items() if k != "maxOutputTokens"}
        most += thinking_tokens(extra)
    return request, replace(settings, extra=extra, max_tokens=most)


def thinking_tokens(extra: Mapping[str, Any]) -> int:
    """Return the budget for thinking, which counts as output and must leave room."""
    thinking = extra.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return budget if isinstance(budget, int) else 0


class ProviderApi(ABC):
    """One provider's API, as functions between our values and its bytes."""

    name: ClassVar[str]

    @abstractmethod
    def path(self, settings: Settings) -> str:
        """Return the path that follows the base address."""

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        """Return the headers that authorize a request."""
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    @abstractmethod
    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        """Return the body of a request."""

    def decode(self, body: bytes) -> ModelResponse:
        """Return the response in a complete body; raise the error that it reports."""
        document = json_document(body, "the response")
        if isinstance(document, dict) and (document.get("error") or document.get("type") == "error"):
            raise stream_error(document)
        with reading_answer():
            return self.read_document(document)

    @abstractmethod
    def read_document(self, document: Any) -> ModelResponse:
        """Return the response in a document that reports no error."""

    @abstractmethod
    def reader(self) -> StreamReader:
        """Return a reader for one response that streams."""


class StreamReader(ABC):
    """A reader that assembles a streamed response from its events."""

    ends_with_done: ClassVar[bool] = False
    """Whether "[DONE]" ends a stream of this API; some hosts send it with any API."""

    def __init__(self) -> None:
        self.ended = False
        """True after the last event; some hosts leave the connection open after it."""

    def read(self, event: str, data: bytes) -> Iterable[Delta]:
        """Read one server-sent event; return the pieces of text and reasoning in it."""
        if data == b"[DONE]":
            self.ended = self.ended or self.ends_with_done
            return ()
        document = json_document(data, "an event of the stream")
        if not isinstance(document, dict):
            raise ResponseValidationError(f"an event of the stream is not an object: {data[:80]!r}")
        kind = document.get("type") or event
        if kind == "error" or document.get("error"):
            raise stream_error(document)
        try:
            return self.take(kind, document)
        except _MISREAD as error:
            raise _misread("an event of the stream cannot be read", error) from None

    def finish(self) -> ModelResponse:
        """Return the complete response; refuse a stream that ended before it."""
        with reading_answer():
            response = self.complete()
        if response is None:
            raise ResponseValidationError("the stream ended before the answer was complete")
        return response

    @abstractmethod
    def take(self, kind: str, document: dict[str, Any]) -> Iterable[Delta]:
        """Read the document of an event; return the pieces of text and reasoning in it."""

    @abstractmethod
    def complete(self) -> ModelResponse | None:
        """Return the response, or None if the stream ended before it was complete."""


@contextmanager
def reading_answer() -> Iterator[None]:
    """Turn errors of reading an unexpected answer into a `ResponseValidationError`."""
    try:
        yield
    except _MISREAD as error:
        raise _misread("the response contains no answer", error) from None


def _misread(problem: str, error: Exception) -> ResponseValidationError:
    return ResponseValidationError(f"{problem}: {type(error).__name__}: {error}")


class EncodedMessages:
    """The JSON of each message of a history, by the identity of the message.

    Messages are frozen and a history only grows, so a message is encoded once for each variant of an API:
    a request with 200 messages takes 30 µs instead of 440.
    The oldest are dropped when the cache is full; a very large one, such as an image, is not kept.
    """

    MOST_BYTES = 64 * 1024 * 1024
    LARGEST_BYTES = 256 * 1024

    def __init__(self, encode: Callable[[Message, Any], bytes], most: int = MOST_BYTES) -> None:
        self._encode = encode
        self._most = most
        self._size = 0
        self._lock = threading.Lock()
        # The message is kept with its bytes: its identity is only valid while it exists.
        self._kept: dict[Hashable, dict[int, tuple[Message, bytes]]] = {}

    def of(self, messages: Iterable[Message], variant: Hashable = None) -> list[bytes]:
        """Return the JSON of these messages, in order."""
        kept, encoded = self._kept.setdefault(variant, {}), []
        for message in messages:
            found = kept.get(id(message))
            if found is not None and found[0] is message:
                encoded.append(found[1])
            else:
                encoded.append(self._add(kept, message, variant))
        return encoded

    def _add(self, kept: dict[int, tuple[Message, bytes]], message: Message, variant: Hashable) -> bytes:
        encoded = self._encode(message, variant)
        if len(encoded) > self.LARGEST_BYTES:
            return encoded
        with self._lock:
            replaced = kept.pop(id(message), None)
            kept[id(message)] = (message, encoded)
            self._size += len(encoded) - (len(replaced[1]) if replaced else 0)
            while self._size > self._most and len(kept) > 1:
                oldest = next(iter(kept))
                self._size -= len(kept.pop(oldest)[1])
        return encoded


def with_extra(options: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with more of them: tools are added, objects merged, others replaced."""
    result = dict(options)
    for key, value in extra.items():
        ours = result.get(key)
        if isinstance(ours, Mapping) and isinstance(value, Mapping):
            result[key] = with_extra(ours, value)
        elif key == "tools" and isinstance(ours, list) and isinstance(value, list | tuple):
            result[key] = [*ours, *value]
        else:
            result[key] = value
    return result


# Reading answers


def json_document(data: bytes, what: str) -> Any:
    """Return the document in some bytes; refuse bytes that are not JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        problem = error
    try:
        # Parsers differ about half a character, cut between two pieces of a stream.
        return json.loads(data) if b"\\ud" in data.lower() else _refuse(what, data, problem)
    except (ValueError, RecursionError):
        return _refuse(what, data, problem)


def _refuse(what: str, data: bytes, problem: Exception) -> NoReturn:
    wrong = "cannot be read" if isinstance(problem, UnicodeError) else "is not JSON"
    raise ResponseValidationError(f"{what} {wrong}: {problem}: {data[:80]!r}") from None


def new_call_id() -> str:
    """Return an id for a tool call that came without one."""
    return f"call_{os.urandom(12).hex()}"


def new_call(call_id: object, name: object, arguments: Any) -> ToolCall:
    """Return a tool call; its arguments are JSON text, an object, or None."""
    if not isinstance(name, str) or not name:
        raise ResponseValidationError(f"the response has a tool call without a name: {name!r}")
    return ToolCall(
        call_id if isinstance(call_id, str) and call_id else new_call_id(), name, parsed(arguments)
    )


def parsed(arguments: Any) -> Any:
    """Return the arguments of a call as an object; as text if they are not JSON."""
    if isinstance(arguments, dict):
        return arguments
    if arguments is None:
        return {}
    return ToolCall.parse_arguments(
        arguments if isinstance(arguments, str) else msgspec.json.encode(arguments)
    )


def language_of(text: str, calls: Sequence[ToolCall]) -> str:
    """Return an answer's text without repetitions of its calls.

    The loop removes them from a text that is longer than a slice, in several turns.
    """
    return without_calls(text, calls) if len(text) <= SLICE else text


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as JSON text.

    Arguments that were not JSON go back as an empty object: hosts parse them and would refuse the whole
    history. The result of the call shows the model its mistake.
    """
    return "{}" if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()


def token_count(value: object) -> int:
    """Return a number of tokens; 0 for a counter that cannot be read."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**15:
        return 0
    return int(value)


# Images and files

# The first bytes of a few well-known formats.
_MAGIC = {
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG": "image/png",
    b"GIF8": "image/gif",
    b"%PDF": "application/pdf",
}
# The format of a RIFF file comes after its length.
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}


def media_label(media_type: object) -> str:
    """Return a file in an answer for a person: "an image (image/png)"."""
    kind = media_type.partition("/")[0] if isinstance(media_type, str) else ""
    noun = {"image": "an image", "audio": "audio", "video": "a video"}.get(kind, "a file")
    return f"{noun} ({media_type})" if kind else noun


def media_of(part: ImagePart | FilePart) -> tuple[str, str | None]:
    """Return the media type and the base64 of a part; None if it is only a URL."""
    media_type, data = part.media_type, part.data
    if part.url is not None and part.url.startswith("data:"):
        head, _, data = part.url.partition(",")
        media_type = media_type or head.removeprefix("data:").split(";")[0]
    # Some APIs compare the type with the bytes, so the bytes decide.
    return _type_of(data or "") or media_type or "", data


def _type_of(data: str) -> str | None:
    """Return the media type of a file by its first bytes, if they are known."""
    try:
        start = base64.b64decode(data[:16])
    except ValueError:
        return None
    if start.startswith(b"RIFF"):
        return _RIFF.get(start[8:12])
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)


def data_url(part: ImagePart | FilePart) -> str:
    """Return the URL of an image or a file; its bytes become a data: URL."""
    media_type, data = media_of(part)
    if data is None:
        return part.url or ""
    return f"data:{media_type or 'application/octet-stream'};base64,{data}"
