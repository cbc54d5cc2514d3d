"""The envelope, described for those who receive it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec


def envelope_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of every envelope that a run sends."""
    file = files("whyloop.wire") / "schemas" / "envelope.schema.json"
    schema: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    return schema
