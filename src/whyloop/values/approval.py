"""Questions about tool calls, and what people decide."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from whyloop.values.scalars import Moment


class Verdict(StrEnum):
    APPROVED = "approved"
    DENIED = "denied"
    EDITED = "edited"


class Question(Struct, frozen=True, gc=False, omit_defaults=True):
    """A question to a person about one tool call.

    `id` is new for each question, so a late answer never reaches another call. `text` names the tool and
    never its arguments. `uncertain` marks a call that may have run: its process ended before it could tell.
    """

    id: str
    text: str
    uncertain: bool = False


class Approval(Struct, frozen=True, gc=False, omit_defaults=True):
    """A person's decision about a tool call: the question, the verdict, by whom and when.

    `arguments` are those that an edit put in the place of the model's.
    """

    verdict: Verdict
    by: str
    at: Moment
    question: str
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None
    question_id: str = ""


class PendingCall(Struct, frozen=True, gc=False):
    """A tool call that waits for a person.

    `id` identifies the question and is what a decision names; `call_id` is the provider's id of the call,
    which may occur again in a later step.
    """

    id: str
    call_id: str
    name: str
    arguments: Mapping[str, Any] | str
    question: str
