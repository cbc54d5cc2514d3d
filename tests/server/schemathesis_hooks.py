"""What Schemathesis has to know of this API."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    return _whole(body)


@schemathesis.hook
def filter_query(context: schemathesis.HookContext, query: Any) -> bool:
    """Leave out queries with an empty part: the server takes it as not given."""
    return not isinstance(query, dict) or "" not in query.values()


def _whole(value: Any) -> Any:
    """JSON Schema takes 3.0 for an integer, and the server does not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value
