"""The history of a session as a chat UI shows it.

A UI message is a dict: `id`, `role` (user, assistant, tool or status), `content`, `timestamp` and
`metadata`; `schemas/ui_message.schema.json` describes it. The JavaScript package in `whyloop/ui` keeps the
same messages up to date while a run is in progress, and replaces them by this history when it ends.
"""

from __future__ import annotations

from whyloop.values.summaries import args_summary
from whyloop.wire.ui_canonical import canonical_messages, status_text

__all__ = ["args_summary", "canonical_messages", "status_text"]
