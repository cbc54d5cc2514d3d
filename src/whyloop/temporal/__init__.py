"""Sessions on Temporal: the same agents, loop and rules, on as many machines as needed."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from whyloop.errors import ConfigurationError

if TYPE_CHECKING:
    from whyloop.temporal.encryption import EncryptionCodec
    from whyloop.temporal.engine import TemporalEngine
    from whyloop.temporal.payloads import Accepted, Decision, Ended, Resume, Send, Start, workflow_id
    from whyloop.temporal.plugin import WhyloopPlugin, add_search_attributes
    from whyloop.temporal.recovery import TemporalRecovery, wake
    from whyloop.temporal.session import TASK_QUEUE, TemporalSession
    from whyloop.temporal.workflow import AgentWorkflow
    from whyloop.temporal.world import TemporalWorld

_MODULES = {
    **dict.fromkeys(["Accepted", "Decision", "Ended", "Resume", "Send", "Start", "workflow_id"], "payloads"),
    **dict.fromkeys(["WhyloopPlugin", "add_search_attributes"], "plugin"),
    **dict.fromkeys(["TemporalRecovery", "wake"], "recovery"),
    **dict.fromkeys(["TASK_QUEUE", "TemporalSession"], "session"),
    "AgentWorkflow": "workflow",
    "EncryptionCodec": "encryption",
    "TemporalEngine": "engine",
    "TemporalWorld": "world",
}

__all__ = [
    "TASK_QUEUE",
    "Accepted",
    "AgentWorkflow",
    "Decision",
    "EncryptionCodec",
    "Ended",
    "Resume",
    "Send",
    "Start",
    "TemporalEngine",
    "TemporalRecovery",
    "TemporalSession",
    "TemporalWorld",
    "WhyloopPlugin",
    "add_search_attributes",
    "wake",
    "workflow_id",
]
if not TYPE_CHECKING and find_spec("temporalio") is None:
    __all__ = []  # A `*` imports what can be used here.


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for, since it needs the extra `whyloop[temporal]`."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("temporalio") is None:
        raise ConfigurationError(
            f'whyloop.temporal.{name} needs Temporal\'s SDK: pip install "whyloop[temporal]"'
        )
    return getattr(importlib.import_module(f"whyloop.temporal.{_MODULES[name]}"), name)
