"""How much of a state a slim snapshot keeps."""

from __future__ import annotations

import re

from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.values.secrets import SECRET_KEYS


class SlimSerializationConfig(Struct, frozen=True):
    """What goes into a slim snapshot, and how much of it.

    `max_messages` and `max_content_length` (in characters) are None for no limit. `max_bytes` bounds
    the whole snapshot as JSON, however it is spaced or escaped, indentation aside. `secret_patterns` are
    regular expressions for what is to be removed besides the usual credentials; `secret_keys` are the
    words that give away the name of a secret value. Nothing is removed where `redact` is off.
    """

    max_messages: int | None = 50
    max_content_length: int | None = 1000
    include_tool_args: bool = True
    include_metadata: bool = True
    include_all_steps: bool = False
    max_bytes: int | None = None
    redact: bool = True
    secret_patterns: tuple[str, ...] = ()
    secret_keys: tuple[str, ...] = SECRET_KEYS

    @classmethod
    def minimal(cls) -> SlimSerializationConfig:
        """The last words of a session, for a list or a notification."""
        return cls(10, 500, include_tool_args=False, include_metadata=False)

    @classmethod
    def standard(cls) -> SlimSerializationConfig:
        """What a page about one session shows."""
        return cls()

    @classmethod
    def full(cls) -> SlimSerializationConfig:
        """Everything but secrets, however much it is."""
        return cls(None, None, include_all_steps=True)

    def __post_init__(self) -> None:
        for field in ("max_messages", "max_content_length", "max_bytes"):
            limit = getattr(self, field)
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
                raise _impossible(field, f"is a whole number greater than zero or None, not {limit!r}")
        for field in ("include_tool_args", "include_metadata", "include_all_steps", "redact"):
            if not isinstance(choice := getattr(self, field), bool):
                raise _impossible(field, f"is True or False, not {choice!r}")
        for field in ("secret_patterns", "secret_keys"):
            texts = getattr(self, field)
            if not isinstance(texts, tuple) or not all(isinstance(text, str) and text for text in texts):
                raise _impossible(field, f"is a tuple of texts, not {texts!r}")
        for pattern in self.secret_patterns:
            _refuse_useless(pattern)


def _refuse_useless(pattern: str) -> None:
    try:
        found = re.compile(pattern).search("")
    except (re.error, OverflowError, RecursionError) as error:
        raise _impossible(
            "secret_patterns", f"has {pattern!r}, which is no regular expression: {error}"
        ) from None
    if found:
        raise _impossible("secret_patterns", f"has {pattern!r}, which finds itself in every text")


def _impossible(field: str, words: str) -> ConfigurationError:
    return ConfigurationError(f"SlimSerializationConfig: {field} {words}")
