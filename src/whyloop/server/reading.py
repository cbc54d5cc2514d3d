"""What a request says: its query and its body, as the values that an operation takes."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any, get_args
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import HTTPConnection, Request

from whyloop.server.problems import BadRequestError
from whyloop.values import plain
from whyloop.values.messages import MAX_DEPTH, is_too_deep

LARGEST_BODY = 1_000_000
_MOST_DIGITS = 9
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def query_of(connection: HTTPConnection, kind: type) -> Any:
    """What the query says, as a value of this kind."""
    given = connection.query_params.multi_items()
    words: dict[str, Any] = dict(given)
    if len(words) < len(given):
        raise BadRequestError("a part of the query was given twice")
    for name in [field.name for field in msgspec.structs.fields(kind) if isinstance(field.default, int)]:
        number = words.get(name, "")
        if number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS:
            words[name] = int(number)
    return _converted({name: value for name, value in words.items() if value != ""}, kind)


async def body_of(request: Request, kind: type | None, *, is_form: bool = False) -> Any:
    """What the body says, as a value of this kind; where nothing is sent, nothing is said."""
    if kind is None:
        return None
    read = bytearray()
    async for piece in request.stream():
        read += piece
        if len(read) > LARGEST_BODY:
            raise BadRequestError(f"a request has at most {LARGEST_BODY:,} bytes", 413, "too_large")
    if not read:
        return _converted({}, kind)
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if is_form and sent_as == "application/x-www-form-urlencoded":
        return _converted(dict(parse_qsl(read.decode("latin-1"))), kind)
    if sent_as != "application/json":
        raise BadRequestError("what is sent is JSON: say content-type: application/json", 415, "not_json")
    try:
        data = _decoded(bytes(read))
    except UnicodeError:
        raise BadRequestError("what is sent is JSON in UTF-8, and this is not") from None
    except RecursionError:
        raise _too_deep() from None
    if is_too_deep(data):
        raise _too_deep()
    return _converted(data, kind)


def _decoded(read: bytes) -> Any:
    """The data; half a character, as browsers send it, becomes the sign for one that cannot be shown."""
    try:
        return msgspec.json.decode(read)
    except msgspec.DecodeError:
        if not _HALF.search(read):
            raise
    try:
        return plain.encode(json.loads(read, parse_constant=_refuse))
    except ValueError as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _converted(data: Any, kind: type) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise BadRequestError(_in_words(str(error), kind)) from None


def _in_words(told: str, kind: type) -> str:
    """What is wrong, beginning with where; of a choice, what there is to choose from."""
    words, _, path = told.partition(" - at `$.")
    name = path.rstrip("`")
    words = words.replace("`", "").replace("Object missing required field", "this is missing:")
    if words.startswith("Invalid enum value"):
        known = _choices(kind, name)
        words = f"{words}: choose from {', '.join(known)}" if known else words
    return f"{name}: {words[0].lower()}{words[1:]}" if name else words


def _choices(kind: type, name: str) -> list[str]:
    types = [get_args(field.type) for field in msgspec.structs.fields(kind) if field.name == name]
    return [str(member) for some in types for each in some if issubclass(each, StrEnum) for member in each]


def _too_deep() -> BadRequestError:
    return BadRequestError(f"what is sent is nested more than {MAX_DEPTH} levels deep")
