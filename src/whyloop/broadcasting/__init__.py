"""Events leave the process: one envelope, many transports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.broadcasting.console import AgentConsoleLogger as AgentConsoleLogger
    from whyloop.broadcasting.delivery import Delivery as Delivery
    from whyloop.broadcasting.feed import EventFeed as EventFeed
    from whyloop.broadcasting.pusher import PusherBroadcaster as PusherBroadcaster
    from whyloop.broadcasting.transports import (
        AgentEventEnvelopeAdapter as AgentEventEnvelopeAdapter,
        CanBroadcastAgentEvents as CanBroadcastAgentEvents,
        FanOut as FanOut,
        QueueBroadcaster as QueueBroadcaster,
    )
    from whyloop.errors import BroadcastError as BroadcastError
    from whyloop.wire.ag_ui import AgUiStream as AgUiStream
    from whyloop.wire.envelope import (
        BroadcastConfig as BroadcastConfig,
        envelope_schema as envelope_schema,
        ui_message_schema as ui_message_schema,
    )
    from whyloop.wire.vercel import VercelStream as VercelStream

_HOMES = {
    "AgUiStream": "whyloop.wire.ag_ui",
    "AgentConsoleLogger": "whyloop.broadcasting.console",
    "AgentEventEnvelopeAdapter": "whyloop.broadcasting.transports",
    "BroadcastConfig": "whyloop.wire.envelope",
    "BroadcastError": "whyloop.errors",
    "CanBroadcastAgentEvents": "whyloop.broadcasting.transports",
    "Delivery": "whyloop.broadcasting.delivery",
    "EventFeed": "whyloop.broadcasting.feed",
    "FanOut": "whyloop.broadcasting.transports",
    "PusherBroadcaster": "whyloop.broadcasting.pusher",
    "QueueBroadcaster": "whyloop.broadcasting.transports",
    "envelope_schema": "whyloop.wire.envelope",
    "ui_message_schema": "whyloop.wire.envelope",
    "VercelStream": "whyloop.wire.vercel",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Each transport is loaded when it is asked for, so that none needs another one's driver."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
