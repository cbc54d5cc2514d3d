"""From the path of a request to the values in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes

Segments = tuple[str, ...]


def segments_of(scope: Mapping[str, Any]) -> Segments:
    """Return the segments of a request's path below the path at which the app is mounted.

    They come from the path as it was sent: a slash in the id of a session is sent as %2F.
    """
    raw = scope.get("raw_path")
    path: bytes = raw or quote(scope["path"]).encode()
    parts = [_text(part) for part in path.partition(b"?")[0].split(b"/")[1:]]
    root = [part for part in scope.get("root_path", "").split("/") if part]
    return tuple(parts[len(root) :] if parts[: len(root)] == root else parts)


def _text(part: bytes) -> str:
    return unquote_to_bytes(part).decode("utf-8", "replace")


def match(template: str, segments: Segments) -> dict[str, str] | None:
    """Return the values of a template like `/sessions/{agent_id}`; None if the path does not fit it."""
    wanted = template.split("/")[1:]
    if len(wanted) != len(segments):
        return None
    found: dict[str, str] = {}
    for want, have in zip(wanted, segments, strict=True):
        if want.startswith("{"):
            if not have:
                return None
            found[want[1:-1]] = have
        elif want != have:
            return None
    return found
