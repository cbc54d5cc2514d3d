"""What people decide about tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from whyloop.values.times import Moment


class Verdict(StrEnum):
    APPROVED = "approved"
    DENIED = "denied"
    EDITED = "edited"


class Approval(Struct, frozen=True, gc=False, omit_defaults=True):
    """A person's decision about a tool call: what was asked, what they decided, who and when.

    `arguments` are those that an edit put in the place of the model's.
    """

    verdict: Verdict
    by: str
    at: Moment
    question: str
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None


class PendingCall(Struct, frozen=True, gc=False):
    """A tool call that waits for a person, and the words for what they are asked."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str
    question: str
