"""Questions about tool calls, and what people decide."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from whyloop.values.scalars import Moment


class Verdict(StrEnum):
    """A person's decision about a tool call."""

    APPROVED = "approved"
    """The call runs as it is."""
    DENIED = "denied"
    """The call does not run, and the model gets the reason."""
    EDITED = "edited"
    """The call runs with other arguments."""


class Question(Struct, frozen=True, gc=False, omit_defaults=True):
    """A question to a person about one tool call, or about the run itself."""

    id: str
    """The id of the question, new for each one, so that a late answer never reaches another call."""
    text: str
    """The question: it names the tool, and never its arguments."""
    uncertain: bool = False
    """True if the call may have run: its process ended before the result was recorded."""


class Approval(Struct, frozen=True, gc=False, omit_defaults=True):
    """A person's decision about a tool call, as it is recorded."""

    verdict: Verdict
    """The decision."""
    by: str
    """The name of the person."""
    at: Moment
    """When the person decided."""
    question: str
    """The text of the question."""
    reason: str | None = None
    """The reason that the person gave, if there is one."""
    arguments: Mapping[str, Any] | None = None
    """The arguments of an edit, which replace the model's."""
    question_id: str = ""
    """The id of the question."""


class PendingCall(Struct, frozen=True, gc=False):
    """A tool call that waits for a person."""

    id: str
    """The id of the question, which a decision names."""
    tool: str
    """The name of the tool."""
    tool_call_id: str
    """The provider's id of the call, which may occur again in a later step."""
    arguments: dict[str, Any]
    """The arguments that the call would run with."""
    question: str
    """The text of the question."""
