"""The result of a tool call."""

from __future__ import annotations

from msgspec import Struct

from whyloop.values.failure import Failure


class ToolResult(Struct, frozen=True, gc=False, omit_defaults=True):
    """The content of a tool message, and how the call went.

    `error` says why the call did not succeed; where a policy is to act on it there is a `failure` too.
    `changed_by` names the hooks that made or replaced the result.
    """

    content: str
    error: str | None = None
    failure: Failure | None = None
    changed_by: tuple[str, ...] = ()
