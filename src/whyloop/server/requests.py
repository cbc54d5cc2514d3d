"""What a request holds: its query, its body and its headers, as the values that an operation takes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection
from enum import StrEnum
from functools import cache
from hashlib import sha256
from typing import Any, get_args
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.requests import HTTPConnection, Request

from whyloop.server.problems import BadRequestError
from whyloop.stores.records import LONGEST_KEY, RequestKey
from whyloop.values import plain
from whyloop.values.plain import MAX_DEPTH, is_too_deep

LARGEST_BODY = 1_000_000
_MOST_DIGITS = 9
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ETAG = re.compile(r'\s*(\*|(?:W/)?"[^"]*")\s*(?:,|$)')


# Headers


def request_key(request: Request, path: Collection[str], body: bytes) -> RequestKey | None:
    """Return the `Idempotency-Key` of a request with a digest of method, path and body."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY:
        raise BadRequestError(f"invalid Idempotency-Key: use 1 to {LONGEST_KEY} characters, not {len(key)}")
    named = msgspec.json.encode([request.method, *path])
    return RequestKey(key, sha256(named + b"\n" + body).hexdigest())


def etag_of(identity: str, version: int) -> str:
    """Return the entity tag of a session at a version."""
    return f'"{identity}-{version}"'


class Precondition(Struct, frozen=True):
    """The `If-Match` of a request: the entity tags of which a session must have one."""

    tags: frozenset[str]

    def check(self, identity: str, version: int) -> None:
        """Raise 412 if the session is not at one of these versions."""
        found = etag_of(identity, version)
        if "*" not in self.tags and found not in self.tags:
            raise BadRequestError(
                f"the session has changed: it is at {found} now. Read it again", 412, "precondition_failed"
            )


def precondition_of(connection: HTTPConnection) -> Precondition | None:
    """Return the `If-Match` of a request; a weak tag never matches."""
    header = connection.headers.get("if-match")
    return None if header is None else Precondition(frozenset(_ETAG.findall(header)))


# Queries and bodies


def query_of(connection: HTTPConnection, kind: type) -> Any:
    """Return the query as a value of this kind."""
    given = connection.query_params.multi_items()
    words: dict[str, Any] = dict(given)
    if len(words) < len(given):
        raise BadRequestError("a part of the query was given twice")
    for name in _numbers(kind):
        number = words.get(name, "")
        if number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS:
            words[name] = int(number)
    return _converted({name: value for name, value in words.items() if value != ""}, kind)


@cache
def _numbers(kind: type) -> tuple[str, ...]:
    """Return the names of the fields that hold whole numbers."""
    fields = msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
    return tuple([field.encode_name for field in fields if _holds_number(field.type)])


def _holds_number(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _holds_number(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(_holds_number(each) for each in kind.types)
    return isinstance(kind, msgspec.inspect.IntType)


async def read_body(request: Request, seconds: float) -> bytes:
    """Return the bytes of a body, as far as they are not too many and do not take too long."""
    read = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                read += piece
                if len(read) > LARGEST_BODY:
                    raise BadRequestError(f"a request has at most {LARGEST_BODY:,} bytes", 413, "too_large")
    except TimeoutError:
        words = f"the body did not arrive within {seconds:g} seconds"
        raise BadRequestError(words, 408, "too_slow") from None
    return bytes(read)


def body_of(request: Request, read: bytes, kind: type, *, is_form: bool = False) -> Any:
    """Return a body as a value of this kind; an empty one is an empty object."""
    if not read:
        return _converted({}, kind)
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if is_form and sent_as == "application/x-www-form-urlencoded":
        return _converted(dict(parse_qsl(read.decode("latin-1"))), kind)
    if sent_as != "application/json":
        raise BadRequestError("a body must be JSON: send content-type: application/json", 415, "not_json")
    try:
        data = _decoded(read)
    except UnicodeError:
        raise BadRequestError("a body must be JSON in UTF-8, and this one is not") from None
    except RecursionError:
        raise _too_deep() from None
    if is_too_deep(data):
        raise _too_deep()
    return _converted(data, kind)


def _decoded(read: bytes) -> Any:
    """Return the data; an unpaired surrogate, which browsers send, becomes the replacement character."""
    try:
        return msgspec.json.decode(read)
    except msgspec.DecodeError:
        if not _LONE_SURROGATE.search(read):
            raise
    try:
        return plain.encode(json.loads(read, parse_constant=_refuse))
    except ValueError as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _converted(data: Any, kind: type) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise BadRequestError(described(str(error), kind)) from None


def described(text: str, kind: type | None = None) -> str:
    """Return a validation error for a client: where first, then what; of a choice, what to choose from."""
    words, _, path = text.partition(" - at `$.")
    name = path.rstrip("`")
    words = words.replace("`", "").replace("Object missing required field", "this is missing:")
    if kind is not None and words.startswith("Invalid enum value"):
        known = _choices(kind, name)
        words = f"{words}: choose from {', '.join(known)}" if known else words
    return f"{name}: {words[:1].lower()}{words[1:]}" if name else words


def _choices(kind: type, name: str) -> list[str]:
    types = [get_args(field.type) for field in msgspec.structs.fields(kind) if field.name == name]
    return [str(member) for some in types for each in some if issubclass(each, StrEnum) for member in each]


def _too_deep() -> BadRequestError:
    return BadRequestError(f"the body is nested more than {MAX_DEPTH} levels deep")
