"""Messages, the tool calls in them, and the results of those calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.values.credentials import REMOVED
from whyloop.values.encoding import MAX_DEPTH, is_too_deep
from whyloop.values.failure import Failure
from whyloop.values.text import clean, shortened


class MessageRole(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class TextPart(Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    text: str


class ImagePart(Struct, frozen=True, gc=False, tag_field="type", tag="image"):
    """An image by address, or by its own bytes in base64."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None

    def __post_init__(self) -> None:
        _check_content("image", self.url, self.data)
        if self.media_type is not None and not str(self.media_type).startswith("image/"):
            raise ConfigurationError(
                f"invalid media type of an image {self.media_type!r}: use image/…, or a FilePart"
            )


class FilePart(Struct, frozen=True, gc=False, tag_field="type", tag="file"):
    """A file by address, or by its own bytes in base64."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_content("file", self.url, self.data)


_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:.")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}\Z")
_CHECKED = 256  # As much as tells text from base64; images are large, and are read back often.


def _check_content(noun: str, url: object, data: object) -> None:
    """Refuse an image or a file that no provider can read; where a secret was removed, it stays."""
    if (url is None) == (data is None):
        raise ConfigurationError(f"invalid {noun}: it has either a url or data, the base64 of its bytes")
    if url is not None and not (isinstance(url, str) and (_ADDRESS.match(url) or REMOVED in url)):
        raise ConfigurationError(
            f"invalid address of {noun} {shortened(repr(url), 80)}: use https://…, or pass its data instead"
        )
    if data is not None and not (
        isinstance(data, str) and (_BASE64.match(data[:_CHECKED]) or REMOVED in data[: 2 * _CHECKED])
    ):
        raise ConfigurationError(
            f"invalid data of {noun} {shortened(repr(data), 80)}: use base64.b64encode(its bytes).decode()"
        )


Part = TextPart | ImagePart | FilePart
Content = str | tuple[Part, ...]


class CallChange(Struct, frozen=True, gc=False, omit_defaults=True):
    """A change of a call before it ran: which hook made it, and its arguments before.

    `name` is the tool that it called before; None if that stayed the same.
    """

    by: str
    before: Mapping[str, Any] | str
    name: str | None = None


class ToolCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A call that a model asked for.

    `arguments` is the JSON object that the call runs with, or the model's text where that is not a
    JSON object: it is data, and the trace keeps it. `changes` lists the hooks that changed them, in order.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | str
    changes: tuple[CallChange, ...] = ()

    @staticmethod
    def parse_arguments(text: str | bytes) -> Mapping[str, Any] | str:
        """The arguments in a model's text; the text itself if it holds no JSON object."""
        if not text or text.isspace():
            return {}
        try:
            arguments = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            arguments = None
        if isinstance(arguments, dict) and not _too_deep(arguments, text):
            return arguments
        return clean(text) if isinstance(text, str) else text.decode("utf-8", "replace")


def _too_deep(arguments: Any, text: str | bytes) -> bool:
    opened = (
        text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    )
    return opened > MAX_DEPTH and is_too_deep(arguments)


_USER, _ASSISTANT, _TOOL = MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL
_SYSTEM, _DEVELOPER = MessageRole.SYSTEM, MessageRole.DEVELOPER


class Message(Struct, frozen=True, gc=False, omit_defaults=True):
    """One message. An assistant message holds its text and its tool calls side by side.

    `extras` is what a provider insists on getting back with an assistant's message (signatures,
    reasoning items), by the name of its wire format; no other provider ever sees it.
    `reasoning` is the text of the model's reasoning, for people. `incomplete` marks an answer that was
    interrupted. `source` names the criteria whose feedback a developer message carries.
    """

    role: MessageRole
    content: Content = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tool_name: str | None = None
    extras: Mapping[str, Any] = {}
    reasoning: str = ""
    incomplete: bool = False
    source: tuple[str, ...] = ()

    @classmethod
    def system(cls, content: str) -> Message:
        return cls(_SYSTEM, content)

    @classmethod
    def developer(cls, content: str) -> Message:
        return cls(_DEVELOPER, content)

    @classmethod
    def user(cls, content: str | Sequence[Part]) -> Message:
        return cls(_USER, content if isinstance(content, str) else tuple(content))

    @classmethod
    def assistant(cls, content: Content = "", tool_calls: Sequence[ToolCall] = ()) -> Message:
        return cls(_ASSISTANT, content, tuple(tool_calls))

    @classmethod
    def tool(cls, content: str, *, tool_call_id: str, tool_name: str) -> Message:
        return cls(_TOOL, content, (), tool_call_id, tool_name)

    @property
    def text(self) -> str:
        """The natural language of this message, images and files left out."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def is_user(self) -> bool:
        return self.role == _USER

    @property
    def is_assistant(self) -> bool:
        return self.role == _ASSISTANT

    @property
    def is_tool(self) -> bool:
        return self.role == _TOOL

    @property
    def is_developer(self) -> bool:
        return self.role == _DEVELOPER

    @property
    def is_system(self) -> bool:
        """True for system and for developer messages: both speak for the application."""
        return self.role in (_SYSTEM, _DEVELOPER)

    def has_role(self, *roles: MessageRole | str) -> bool:
        return self.role in roles


class ToolResult(Struct, frozen=True, gc=False, omit_defaults=True):
    """The content of a tool message, and how the call went.

    `error` says why the call did not succeed; where a policy is to act on it there is a `failure` too.
    `changed_by` names the hooks that made or replaced the result.
    """

    content: str
    error: str | None = None
    failure: Failure | None = None
    changed_by: tuple[str, ...] = ()
