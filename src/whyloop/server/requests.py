"""Requests as the values that operations take, and values and errors as responses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from math import ceil
from typing import Any, TypeVar
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from whyloop.errors import (
    ApprovalError,
    ConfigurationError,
    ConflictError,
    KeyUsedError,
    LeaseLostError,
    NotResumableError,
    NoWorkerError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
    StoreConfigurationError,
    StoreUnavailableError,
    WorkflowOpenError,
)
from whyloop.logger import Logger
from whyloop.server.bodies import Problem, Refusal
from whyloop.server.inputs import LARGEST_METADATA, MOST_LABELS, described
from whyloop.stores.records import LONGEST_KEY, RequestKey, Summary
from whyloop.stores.store import Store
from whyloop.values import encoding
from whyloop.values.encoding import MAX_DEPTH, is_too_deep
from whyloop.values.redaction import DEFAULT_REDACTION, Redaction, redacted
from whyloop.values.text import shortened

_log = Logger()

A = TypeVar("A")

LARGEST_BODY = 1_000_000
BUSY_SECONDS = 5
# The first request may be in progress in another process, which records its key within a moment.
A_MOMENT, MOMENTS = 0.02, 10
_MOST_DIGITS = 9
_TOKEN = "token"  # Clients may send their secret in it, for the function that admits them.
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ETAG = re.compile(r'((?:W/)?"[^"]*")\s*(?:,|$)')
# The first one that fits.
_STATUS: dict[type[Exception], tuple[int, str]] = {
    SessionNotFoundError: (404, "session_not_found"),
    SessionExistsError: (409, "session_exists"),
    SessionRunningError: (409, "session_running"),
    WorkflowOpenError: (409, "workflow_open"),
    ConflictError: (409, "conflict"),
    LeaseLostError: (409, "conflict"),
    NotResumableError: (409, "not_resumable"),
    ApprovalError: (409, "not_pending"),
    NoWorkerError: (503, "no_worker"),
    ConfigurationError: (400, "bad_request"),
    msgspec.ValidationError: (400, "bad_request"),
    msgspec.DecodeError: (400, "bad_request"),
}
# For errors whose texts are for Python programmers, or name a host.
_TEXTS: dict[type[Exception], str] = {
    SessionRunningError: "The session is being run: wait until it has ended or pauses, or stop it.",
    WorkflowOpenError: "The session's workflow may be open: stop the session, and try again in a minute.",
    NotResumableError: "There is nothing to resume: the last query is completed. Ask the next question.",
}
JSON_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


# Responses


class BadRequestError(HTTPException):
    """A request that cannot be carried out, and why."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        type: str = "bad_request",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.type = type


def busy(what: str) -> BadRequestError:
    """Return the refusal of one more of what the server already has as many of as it may."""
    problem = f"the server has too many {what} at once: try again in {BUSY_SECONDS} seconds"
    return BadRequestError(problem, 503, "busy", {"retry-after": str(BUSY_SECONDS)})


def answer(value: object, status: int = 200, etag: str | None = None) -> Response:
    """Return a value as JSON that no cache keeps; a 204 has no content."""
    headers = JSON_HEADERS if etag is None else {**JSON_HEADERS, "etag": etag}
    if status == 204:
        return Response(None, status, headers)
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def text_answer(text: str, media_type: str | None) -> Response:
    """Return a text that no cache keeps."""
    return Response(text, 200, JSON_HEADERS, media_type=media_type)


def refusal(error: Exception, redaction: Redaction | None = DEFAULT_REDACTION) -> Response:
    """Return the response for an error.

    Internal errors are only logged: they may name files and hosts.
    """
    status, problem = problem_of(error, redaction)
    response = answer(Refusal(problem), status)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    if status == 503:
        response.headers.setdefault("retry-after", "1")
    if isinstance(error, SessionRunningError):  # Until then a runner has it, dead or alive.
        response.headers["retry-after"] = str(ceil(error.seconds))
    return response


@contextmanager
def calling_the_app() -> Iterator[None]:
    """Report an error in a given function as internal, not as the client's."""
    try:
        yield
    except (ConfigurationError, msgspec.MsgspecError) as error:
        raise RuntimeError("a function that the server was given failed") from error


def problem_of(error: Exception, redaction: Redaction | None = DEFAULT_REDACTION) -> tuple[int, Problem]:
    """Return the HTTP status of an error, with its type and its sentence."""
    if isinstance(error, HTTPException):
        return error.status_code, Problem(getattr(error, "type", "refused"), str(error.detail))
    is_of_server = isinstance(error, StoreConfigurationError)  # The client did nothing wrong.
    for kind, (status, word) in _STATUS.items():
        if isinstance(error, kind) and not is_of_server:
            problem = Problem(word, _TEXTS.get(kind) or redacted(str(error), redaction))
            if isinstance(error, ApprovalError):
                pending = redacted(msgspec.to_builtins(list(error.pending)), redaction)
                problem = msgspec.structs.replace(problem, pending_calls=pending)
            return status, problem
    if isinstance(error, StoreUnavailableError):
        _log.warning("sessions cannot be used: %s", error)
        return 503, Problem("unavailable", "Sessions cannot be used at the moment. Try again.")
    _log.error("a request failed", exc_info=error)
    return 500, Problem("internal", "The server failed. The error is in its log.")


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise 413 for more metadata than lists can hold."""
    if len(metadata) > MOST_LABELS or len(msgspec.json.encode(metadata)) > LARGEST_METADATA:
        raise BadRequestError(
            f"the metadata is too large: use at most {MOST_LABELS} entries and {LARGEST_METADATA:,} bytes",
            413,
            "too_large",
        )


# Headers


def request_key(request: Request, path: Collection[str], body: bytes) -> RequestKey | None:
    """Return the `Idempotency-Key` with a digest of method, path and body."""
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
    """The `If-Match` of a request: the entity tags that a session may have, or "*" for any."""

    tags: frozenset[str]

    def check(self, identity: str, version: int) -> None:
        """Raise 412 if the session is not at one of these versions."""
        found = etag_of(identity, version)
        if "*" not in self.tags and found not in self.tags:
            raise _changed(found)


ANY_VERSION = Precondition(frozenset("*"))


@contextmanager
def expecting(precondition: Precondition, summary: Summary) -> Iterator[int | None]:
    """Yield the expected version of a change, or None; answer 412 for another."""
    if "*" in precondition.tags:
        yield None
        return
    precondition.check(summary.identity, summary.version)
    try:
        yield summary.version
    except ConflictError as error:
        raise _changed(etag_of(summary.identity, error.found)) from None


def _changed(found: str) -> BadRequestError:
    return BadRequestError(
        f"the session has changed: it is at {found} now. Read it again", 412, "precondition_failed"
    )


def precondition_of(connection: HTTPConnection) -> Precondition:
    """Return the `If-Match` of a request; a weak tag never matches, and `*` stands alone."""
    header = connection.headers.get("if-match")
    if header is None or header.strip() == "*":
        return ANY_VERSION
    return Precondition(frozenset(_ETAG.findall(header)))


# Queries and bodies


def query_of(connection: HTTPConnection, kind: type) -> Any:
    """Return the query as a value of this type.

    Only a parameter that is a list may be repeated. If unknown parameters are forbidden, the token of the
    client is not one.
    """
    lists, kinds = _fields(kind)
    is_strict = kind.__struct_config__.forbid_unknown_fields  # type: ignore[attr-defined]
    values: dict[str, Any] = {name: [] for name in lists}
    given = set[str]()
    for name, text in connection.query_params.multi_items():
        if name not in kinds:
            if is_strict and name not in ("", _TOKEN):
                known = ", ".join(kinds)
                raise BadRequestError(f"unknown parameter {shortened(name, 60)!r}: use {known}")
        elif name in lists:
            values[name].append(text)
        elif name in given:
            raise BadRequestError(f"the parameter {shortened(name, 60)!r} was repeated: give it once")
        elif text != "":
            values[name] = _plain_value(name, text, kinds[name])
        given.add(name)
    return _converted(values, kind)


def index_of(text: str) -> int:
    """Return the number of a step in a path."""
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    raise BadRequestError(f"invalid step {shortened(text, 40)!r}: use its number in the session, from 1 on")


def _plain_value(name: str, text: str, kind: type[msgspec.inspect.Type]) -> Any:
    """Return a number or a boolean where one is expected, else the text."""
    if kind is msgspec.inspect.IntType:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise BadRequestError(f"invalid {name} {shortened(text, 40)!r}: use a whole number")
        size = int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS  # It is out of every range.
        return -size if text.startswith("-") else size
    if kind is msgspec.inspect.BoolType:
        if text not in ("true", "false"):
            raise BadRequestError(f"invalid {name} {shortened(text, 40)!r}: use true or false")
        return text == "true"
    return text


@cache
def _fields(kind: type) -> tuple[frozenset[str], Mapping[str, type[msgspec.inspect.Type]]]:
    """Return the names of the list fields, and the types of the other fields."""
    kinds = {
        field.encode_name: _kind_of(field.type)
        for field in msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
    }
    return frozenset([name for name, each in kinds.items() if each is msgspec.inspect.ListType]), kinds


def _kind_of(kind: msgspec.inspect.Type) -> type[msgspec.inspect.Type]:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _kind_of(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        kinds = [_kind_of(each) for each in kind.types]
        return next((each for each in kinds if each in _PLAIN), kinds[0])
    return type(kind)


_PLAIN = (msgspec.inspect.IntType, msgspec.inspect.BoolType)


async def read_body(request: Request, seconds: float) -> bytes:
    """Return the bytes of a body; refuse one that is too large or too slow."""
    read = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                read += piece
                if len(read) > LARGEST_BODY:
                    raise BadRequestError(f"body too large: {LARGEST_BODY:,} bytes at most", 413, "too_large")
    except TimeoutError:
        problem = f"the body did not arrive within {seconds:g} seconds: send the request again"
        raise BadRequestError(problem, 408, "too_slow") from None
    return bytes(read)


def body_of(request: Request, read: bytes, kind: type, *, is_form: bool = False) -> Any:
    """Return a body as a value of this kind; an empty one is an empty object."""
    if not read:
        return _converted({}, kind)
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if is_form and sent_as == "application/x-www-form-urlencoded":
        return _converted(dict(parse_qsl(read.decode("latin-1"))), kind)
    if sent_as != "application/json":
        raise BadRequestError("invalid content-type: send JSON as application/json", 415, "not_json")
    try:
        data = _decoded(read)
    except UnicodeError:
        raise BadRequestError("invalid body: send JSON in UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    if is_too_deep(data):
        raise _too_deep()
    return _converted(data, kind)


def _decoded(read: bytes) -> Any:
    """Return the data, with unpaired surrogates replaced; browsers send them."""
    try:
        return msgspec.json.decode(read)
    except msgspec.DecodeError:
        if not _LONE_SURROGATE.search(read):
            raise
    try:
        return encoding.encode(json.loads(read, parse_constant=_refuse))
    except ValueError as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _converted(data: Any, kind: type) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise BadRequestError(described(str(error), kind, data)) from None


def _too_deep() -> BadRequestError:
    return BadRequestError(f"the body is nested more than {MAX_DEPTH} levels deep")


# Requests that are sent again under the same `Idempotency-Key`


class Keys:
    """Carry out a request unless its key was used; then answer from the first one's record."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # A lock exists for as long as a request of this process uses it.
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def once(
        self,
        agent_id: str,
        key: RequestKey | None,
        work: Callable[[], Awaitable[A]],
        again: Callable[[int], Awaitable[A]],
    ) -> A:
        """Return the answer to `work`.

        `again` answers from the version that the first request recorded.

        Requests with one key are carried out one after the other. A key that was used for another request is
        answered with 422.
        """
        if key is None:
            return await work()
        lock = self._locks.setdefault((agent_id, key.key), asyncio.Lock())
        async with lock:
            version = await self.version(agent_id, key)
            if version is None:
                try:
                    return await work()
                except KeyUsedError as error:
                    version = _checked(key, error.digest, error.version)
                except SessionExistsError:
                    version = await self.version(agent_id, key)
                    if version is None:
                        raise
                except SessionRunningError:
                    version = await self._wait_for(agent_id, key)
                    if version is None:
                        raise
            return await again(version)

    async def version(self, agent_id: str, key: RequestKey) -> int | None:
        """Return the version that was recorded under a key; None if there is none."""
        try:
            found = await self._store.key(agent_id, key.key)
        except SessionNotFoundError:
            return None
        return None if found is None else _checked(key, *found)

    async def _wait_for(self, agent_id: str, key: RequestKey) -> int | None:
        for _ in range(MOMENTS):
            version = await self.version(agent_id, key)
            if version is not None:
                return version
            await asyncio.sleep(A_MOMENT)
        return None


def session_id_of(key: RequestKey, within: Mapping[str, object], *origin: str) -> str:
    """Return the id of the session that a client's request creates under a key.

    Keys belong to sessions, so the second request has to find the session of the first one.
    """
    named = msgspec.json.encode([key.key, within, origin], order="sorted")
    return sha256(named).hexdigest()[:32]


def _checked(key: RequestKey, digest: str, version: int) -> int:
    if digest != key.digest:
        raise BadRequestError(
            "another request was sent under this Idempotency-Key: use a new key for a new request",
            422,
            "key_reused",
        )
    return version
