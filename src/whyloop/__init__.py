"""An agent framework whose loop can always explain why it continued, and why it stopped."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloop.api import *  # noqa: F403

__version__ = "0.1.0"

_MODULES = frozenset({"errors", "events", "models", "stores", "testing"})


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that importing whyloop is fast."""
    if name in _MODULES:
        return importlib.import_module(f"whyloop.{name}")
    public = {
        key: value for key, value in vars(importlib.import_module("whyloop.api")).items() if key[0] != "_"
    }
    if name == "__all__":
        return sorted(public)
    if name not in public:
        raise AttributeError(f"module 'whyloop' has no attribute {name!r}")
    globals().update(public)
    return public[name]


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
