"""What came of a tool call."""

from __future__ import annotations

from msgspec import Struct

from whyloop.values.failure import Failure


class ToolResult(Struct, frozen=True, gc=False, omit_defaults=True):
    """What becomes a tool's message.

    `error` says why the call did not succeed; where a policy is to act on it there is a `failure` too.
    """

    content: str
    error: str | None = None
    failure: Failure | None = None
