"""Sessions on Temporal: the same agents, loop and rules, on as many machines as needed."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from whyloop.errors import ConfigurationError, how_to_install

if TYPE_CHECKING:
    from whyloop.temporal.encryption import EncryptionCodec as EncryptionCodec
    from whyloop.temporal.engine import TemporalEngine as TemporalEngine
    from whyloop.temporal.payloads import (
        Accepted as Accepted,
        Decision as Decision,
        Ended as Ended,
        Resume as Resume,
        Send as Send,
        Start as Start,
        workflow_id as workflow_id,
    )
    from whyloop.temporal.plugin import (
        WhyloopPlugin as WhyloopPlugin,
        add_search_attributes as add_search_attributes,
    )
    from whyloop.temporal.recovery import TemporalRecovery as TemporalRecovery, wake as wake
    from whyloop.temporal.session import TASK_QUEUE as TASK_QUEUE, TemporalSession as TemporalSession
    from whyloop.temporal.workflow import AgentWorkflow as AgentWorkflow
    from whyloop.temporal.world import TemporalWorld as TemporalWorld

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


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for, since it needs the extra `temporal`."""
    is_installed = find_spec("temporalio") is not None
    if name == "__all__":
        return sorted(_MODULES) if is_installed else []  # A `*` imports what can be used here.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not is_installed:
        raise ConfigurationError(
            f"whyloop.temporal.{name} needs Temporal's SDK: {how_to_install('temporal')}"
        )
    return getattr(importlib.import_module(f"whyloop.temporal.{_MODULES[name]}"), name)
