"""Sessions over HTTP: a JSON API, server-sent events and WebSocket, as an ASGI app."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.server.access import Access as Access, Limits as Limits
    from whyloop.server.app import AgentServer as AgentServer

__all__ = ["Access", "AgentServer", "Limits"]
_NAMES = tuple(__all__)
# `import *` takes every name, and these need an extra.
if not TYPE_CHECKING and find_spec("starlette") is None:
    __all__.clear()


def __getattr__(name: str) -> Any:
    """Load the server on first access, since it needs the extra `server`."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("whyloop.server.app"), name)
