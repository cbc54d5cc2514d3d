"""What a request says: its query and its body, as the values that an operation takes."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import HTTPConnection, Request

from whyloop.server.problems import BadRequestError
from whyloop.values.messages import MAX_DEPTH

LARGEST_BODY = 1_000_000
_MOST_DIGITS = 9


def query_of(connection: HTTPConnection, kind: type) -> Any:
    """What the query says, as a value of this kind."""
    given = connection.query_params.multi_items()
    words: dict[str, Any] = dict(given)
    if len(words) < len(given):
        raise BadRequestError("a part of the query was given twice")
    limit = words.get("limit", "")
    if limit.isascii() and limit.isdigit() and len(limit) <= _MOST_DIGITS:
        words["limit"] = int(limit)
    return msgspec.convert(words, kind)


async def body_of(request: Request, kind: type | None) -> Any:
    """What the body says, as a value of this kind; where nothing is sent, nothing is said."""
    if kind is None:
        return None
    read = bytearray()
    async for piece in request.stream():
        read += piece
        if len(read) > LARGEST_BODY:
            raise BadRequestError(f"a request has at most {LARGEST_BODY:,} bytes", 413, "too_large")
    if not read:
        return msgspec.convert({}, kind)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise BadRequestError("what is sent is JSON: say content-type: application/json", 415, "not_json")
    try:
        data = msgspec.json.decode(bytes(read))
    except UnicodeError:
        raise BadRequestError("what is sent is JSON in UTF-8, and this is not") from None
    except RecursionError:
        raise _too_deep() from None
    if _is_too_deep(data):
        raise _too_deep()
    return msgspec.convert(data, kind)


def _is_too_deep(data: object) -> bool:
    """Whether it is nested so deep that what is stored of it may be more than an encoder can take."""
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


def _too_deep() -> BadRequestError:
    return BadRequestError(f"what is sent is nested more than {MAX_DEPTH} levels deep")
