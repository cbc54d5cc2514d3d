"""Messages, the tool calls in them, and the results of those calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.values.credentials import REMOVED
from whyloop.values.encoding import MAX_DEPTH, is_too_deep
from whyloop.values.failure import Failure
from whyloop.values.text import clean, shortened


class MessageRole(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    """The instructions to the model."""
    DEVELOPER = "developer"
    """Instructions to the model, for hosts that know this role."""
    USER = "user"
    """A person or a program that asks."""
    ASSISTANT = "assistant"
    """The model."""
    TOOL = "tool"
    """A tool, with the result of a call."""


class TextPart(Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    """A text within a message."""

    text: str
    """The text."""


class ImagePart(Struct, frozen=True, gc=False, tag_field="type", tag="image"):
    """An image, given by its URL or as bytes in base64."""

    url: str | None = None
    """The URL of the image."""
    data: str | None = None
    """The bytes of the image in base64."""
    media_type: str | None = None
    """The type of the image, such as image/png."""

    def __post_init__(self) -> None:
        _check_content("image", self.url, self.data)
        media_type: object = self.media_type
        if media_type is None and self.url is not None and (own := _OWN_TYPE.match(self.url)):
            media_type = own["media_type"]
        if media_type is not None and not str(media_type).startswith("image/"):
            raise ConfigurationError(
                f"invalid media type of an image {media_type!r}: use image/…, or a FilePart"
            )


class FilePart(Struct, frozen=True, gc=False, tag_field="type", tag="file"):
    """A file, given by its URL or as bytes in base64."""

    url: str | None = None
    """The URL of the file."""
    data: str | None = None
    """The bytes of the file in base64."""
    media_type: str | None = None
    """The type of the file, such as application/pdf."""
    name: str | None = None
    """The name of the file, for the model."""

    def __post_init__(self) -> None:
        _check_content("file", self.url, self.data)


# Providers do not read any other scheme, and a browser might run it.
_ADDRESS = re.compile(r"(?:https?://|gs://|data:)\S", re.IGNORECASE)
_OWN_TYPE = re.compile(r"data:(?P<media_type>[^;,]+)", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}\Z")
_CHECKED = 256  # Enough to tell text from base64; images are large, and are read back often.


def _check_content(noun: str, url: object, data: object) -> None:
    """Refuse an image or a file that no provider can read, unless it was redacted."""
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
    """A change of a call by a hook, before the call ran."""

    by: str
    """The name of the hook."""
    before: Mapping[str, Any] | str
    """The arguments before the change."""
    name: str | None = None
    """The tool that it called before; None if that stayed the same."""


class ToolCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A call that a model asked for."""

    id: str
    """The provider's id of the call."""
    name: str
    """The name of the tool."""
    arguments: Mapping[str, Any] | str
    """The JSON object that the call runs with, or the model's text if that is not a JSON object."""
    changes: tuple[CallChange, ...] = ()
    """The changes by hooks, in order."""

    @staticmethod
    def parse_arguments(text: str | bytes) -> Mapping[str, Any] | str:
        """Return the arguments in a model's text; the text if it is not a JSON object.

        Args:
            text: The JSON text that the model wrote.
        """
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


NO_EXTRAS: Mapping[str, Any] = {}
"""The extras of most messages: a single value, since 64 bytes for each message add up."""


class Message(Struct, frozen=True, gc=False, omit_defaults=True):
    """One message; that of an assistant has its text and its tool calls side by side."""

    role: MessageRole
    """The author."""
    content: Content = ""
    """The text, or a list of texts, images and files."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that an assistant's message asks for."""
    tool_call_id: str | None = None
    """The call whose result this is."""
    tool: str | None = None
    """The tool whose result this is."""
    extras: Mapping[str, Any] = {}
    """The data that a provider needs back with its message (signatures, reasoning items), by wire format."""
    reasoning: str = ""
    """The text of the model's reasoning, for people."""
    incomplete: bool = False
    """True for an answer that was interrupted."""
    source: tuple[str, ...] = ()
    """The criteria whose feedback a developer message has."""
    shown: str | None = None
    """The text for people if the content contains a tool's arguments; None if they read the content."""

    @classmethod
    def system(cls, content: str) -> Message:
        """Return a system message."""
        return cls(_SYSTEM, content)

    @classmethod
    def developer(cls, content: str) -> Message:
        """Return a message of the application to the model."""
        return cls(_DEVELOPER, content)

    @classmethod
    def user(cls, content: str | Sequence[Part]) -> Message:
        """Return a user's message."""
        return cls(_USER, content if isinstance(content, str) else tuple(content))

    @classmethod
    def assistant(cls, content: Content = "", tool_calls: Sequence[ToolCall] = ()) -> Message:
        """Return an assistant's message.

        Args:
            tool_calls: The tool calls that the model asks for. Default: none.
        """
        return cls(_ASSISTANT, content, tuple(tool_calls))

    @classmethod
    def result(cls, content: str, *, tool_call_id: str, tool: str) -> Message:
        """Return the result of a tool call.

        Args:
            tool_call_id: The id of the call.
            tool: The name of the tool.
        """
        return cls(_TOOL, content, (), tool_call_id, tool)

    @property
    def text(self) -> str:
        """The text of this message for people, without arguments, images and files."""
        return self.model_text if self.shown is None else self.shown

    @property
    def model_text(self) -> str:
        """The text that the model receives, without images and files."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def is_user(self) -> bool:
        """True for a user's message."""
        return self.role == _USER

    @property
    def is_assistant(self) -> bool:
        """True for an assistant's message."""
        return self.role == _ASSISTANT

    @property
    def is_tool(self) -> bool:
        """True for the result of a tool call."""
        return self.role == _TOOL

    @property
    def is_developer(self) -> bool:
        """True for a developer message."""
        return self.role == _DEVELOPER

    @property
    def is_system(self) -> bool:
        """True for system and developer messages: both speak for the application."""
        return self.role in (_SYSTEM, _DEVELOPER)

    def has_role(self, *roles: MessageRole | str) -> bool:
        """Return whether the message has one of these roles.

        Args:
            *roles: One role or several.
        """
        return self.role in roles


class ToolResult(Struct, frozen=True, gc=False, omit_defaults=True):
    """The result of a tool call, which becomes a tool message."""

    content: str
    """The text for the model."""
    error: str | None = None
    """Why the call did not succeed, for people; None if it did."""
    failure: Failure | None = None
    """The failure that an error policy acts on, if there is one."""
    changed_by: tuple[str, ...] = ()
    """The hooks that made or replaced the result."""
    note: str = ""
    """A note only for the model, in front of the content: the arguments that a person chose."""
    polling: bool = False
    """True if the tool is meant to be called repeatedly."""

    def without_raised(self) -> ToolResult:
        """Return the result without the message of a tool's own exception."""
        if self.failure is None or self.failure.raised is None:
            return self
        failure = replace(self.failure, raised=None)
        return replace(self, content=f"Error: {failure.message}", failure=failure)
