"""How much of a run is told to those who watch it."""

from __future__ import annotations

from msgspec import Struct

from whyloop.errors import ConfigurationError


class BroadcastConfig(Struct, frozen=True, gc=False):
    """Which events become envelopes, and how much of a tool call they show.

    Without `include_tool_args` the arguments are summed up: the first three, each value cut at
    `max_argument_length`. Results are always summed up, cut at `max_result_length`. With `redact`, what
    looks like a credential is removed from arguments, results, errors and what rules said, but not from
    the answer itself.
    """

    include_stream_chunks: bool = True
    include_continuation: bool = False
    include_tool_args: bool = False
    max_argument_length: int = 30
    max_result_length: int = 100
    redact: bool = True

    def __post_init__(self) -> None:
        if self.max_argument_length < 0 or self.max_result_length < 0:
            raise ConfigurationError(f"{self!r}: a length is zero or more")

    @classmethod
    def minimal(cls) -> BroadcastConfig:
        """Status, steps and tools."""
        return cls(include_stream_chunks=False)

    @classmethod
    def standard(cls) -> BroadcastConfig:
        """The answer too, as it is written."""
        return cls()

    @classmethod
    def debug(cls) -> BroadcastConfig:
        """Also what every rule said after a step, and the arguments of tools in full."""
        return cls(include_continuation=True, include_tool_args=True)
