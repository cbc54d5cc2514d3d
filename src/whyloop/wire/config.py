"""How much of a state a slim snapshot keeps."""

from __future__ import annotations

from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.values.redaction import Redaction


class SlimSerializationConfig(Struct, frozen=True):
    """What goes into a slim snapshot, and how much of it.

    `max_messages` and `max_content_length` (in characters) are None for no limit. `redaction` says
    what is secret, and is removed; with None, nothing is.
    """

    max_messages: int | None = 50
    max_content_length: int | None = 1000
    include_tool_args: bool = True
    include_metadata: bool = True
    include_all_steps: bool = False
    redaction: Redaction | None = Redaction()

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
        for field in ("max_messages", "max_content_length"):
            limit = getattr(self, field)
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
                raise _impossible(field, f"is a whole number greater than zero or None, not {limit!r}")
        for field in ("include_tool_args", "include_metadata", "include_all_steps"):
            if not isinstance(choice := getattr(self, field), bool):
                raise _impossible(field, f"is True or False, not {choice!r}")
        if self.redaction is not None and not isinstance(self.redaction, Redaction):
            raise _impossible("redaction", f"is a Redaction or None, not {self.redaction!r}")


def _impossible(field: str, words: str) -> ConfigurationError:
    return ConfigurationError(f"SlimSerializationConfig: {field} {words}")
