"""What a chat UI shows of a session: from the store, from envelopes as they arrive, and both reconciled.

A UI message is a dict: `id`, `role` (user, assistant, tool or status), `content`, `timestamp` and
`metadata`; `schemas/ui_message.schema.json` describes it. The package `whyloop/ui` holds the same
functions for browsers, and both pass the same vectors.
"""

from __future__ import annotations

from whyloop.wire.summaries import args_summary
from whyloop.wire.ui_canonical import canonical_messages
from whyloop.wire.ui_history import reconcile
from whyloop.wire.ui_live import is_running, missing
from whyloop.wire.ui_reduce import reduce
from whyloop.wire.ui_show import group, is_ephemeral, should_render_content
from whyloop.wire.ui_words import status_text

__all__ = [
    "args_summary",
    "canonical_messages",
    "group",
    "is_ephemeral",
    "is_running",
    "missing",
    "reconcile",
    "reduce",
    "should_render_content",
    "status_text",
]
