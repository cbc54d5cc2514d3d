"""Which events become envelopes, and how much of them."""

from __future__ import annotations

from msgspec import Struct

from whyloop.errors import ConfigurationError
from whyloop.values.redaction import Redaction


class BroadcastConfig(Struct, frozen=True, gc=False):
    """Which events become envelopes, and how much of a tool call they show.

    Numbered envelopes are always sent. Without `include_tool_args` the arguments are summarized: the first
    three, each value cut at `max_argument_length`. Results are always summarized, cut at
    `max_result_length`. `redaction` says what is secret: it is removed from arguments, results, errors and
    reasons, but not from the answer itself; with None, nothing is.
    """

    include_stream_chunks: bool = True
    include_continuation: bool = False
    include_tool_args: bool = False
    max_argument_length: int = 30
    max_result_length: int = 100
    redaction: Redaction | None = Redaction()
    include_other_events: bool = False

    def __post_init__(self) -> None:
        if self.max_argument_length < 0 or self.max_result_length < 0:
            raise ConfigurationError(f"{self!r}: a length is zero or more")
        if self.redaction is not None and not isinstance(self.redaction, Redaction):
            raise ConfigurationError(f"BroadcastConfig: redaction is a Redaction or None: {self.redaction!r}")

    @classmethod
    def minimal(cls) -> BroadcastConfig:
        """Send statuses, steps, tools, approvals and retries."""
        return cls(include_stream_chunks=False)

    @classmethod
    def standard(cls) -> BroadcastConfig:
        """Send the text of the answer and the reasoning too, as they stream."""
        return cls()

    @classmethod
    def debug(cls) -> BroadcastConfig:
        """Send the evaluation of every rule, full arguments and all other events too."""
        return cls(include_continuation=True, include_tool_args=True, include_other_events=True)
