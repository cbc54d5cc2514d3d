"""The envelope and the UI message, described for those who receive them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec


def envelope_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of every envelope that a run sends."""
    return _schema("envelope")


def ui_message_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of every message that a UI shows."""
    return _schema("ui_message")


def _schema(name: str) -> dict[str, Any]:
    file = files("whyloop.wire") / "schemas" / f"{name}.schema.json"
    schema: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    return schema
