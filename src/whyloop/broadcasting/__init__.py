"""Broadcasting: events as envelopes, sent over many transports."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from whyloop.broadcasting.delivery import Delivery
from whyloop.broadcasting.feed import EventFeed
from whyloop.broadcasting.transports import (
    AgentConsoleLogger,
    AgentEventEnvelopeAdapter,
    CanBroadcastAgentEvents,
    FanOut,
    QueueBroadcaster,
)
from whyloop.errors import BroadcastError
from whyloop.wire.ag_ui import AgUiStream
from whyloop.wire.envelope import BroadcastConfig, envelope_schema, ui_message_schema
from whyloop.wire.vercel import VercelStream

if TYPE_CHECKING:
    from whyloop.broadcasting.pusher import PusherBroadcaster

__all__ = [
    "AgUiStream",
    "AgentConsoleLogger",
    "AgentEventEnvelopeAdapter",
    "BroadcastConfig",
    "BroadcastError",
    "CanBroadcastAgentEvents",
    "Delivery",
    "EventFeed",
    "FanOut",
    "PusherBroadcaster",
    "QueueBroadcaster",
    "VercelStream",
    "envelope_schema",
    "ui_message_schema",
]
# `import *` takes every name, and this one needs an extra.
if not TYPE_CHECKING and find_spec("aiohttp") is None:
    __all__.remove("PusherBroadcaster")


def __getattr__(name: str) -> Any:
    """Load the broadcaster for Pusher when it is first used, since it needs an extra."""
    if name != "PusherBroadcaster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from whyloop.broadcasting.pusher import PusherBroadcaster

    return PusherBroadcaster
