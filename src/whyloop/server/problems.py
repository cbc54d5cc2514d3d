"""Answers of the server, and the ones that errors become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from whyloop.errors import (
    ApprovalError,
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    NotResumableError,
    SessionExistsError,
    SessionNotFoundError,
    SessionRunningError,
    StoreUnavailableError,
)
from whyloop.logger import Logger
from whyloop.server.bodies import Problem, Refusal
from whyloop.values.redaction import Redaction, redacted

_log = Logger()

# The first one that fits.
_STATUS: dict[type[Exception], tuple[int, str]] = {
    SessionNotFoundError: (404, "session_not_found"),
    SessionExistsError: (409, "session_exists"),
    SessionRunningError: (409, "session_running"),
    ConflictError: (409, "conflict"),
    LeaseLostError: (409, "conflict"),
    NotResumableError: (409, "not_resumable"),
    ApprovalError: (409, "not_pending"),
    ConfigurationError: (400, "bad_request"),
    msgspec.ValidationError: (400, "bad_request"),
    msgspec.DecodeError: (400, "bad_request"),
}
# For errors that speak to programmers in Python, or that name a host.
_TEXTS: dict[type[Exception], str] = {
    SessionRunningError: "The session is being run: wait until it has ended or pauses, or stop it.",
    NotResumableError: "There is nothing to resume: the last query is completed. Ask the next question.",
}
_DEFAULT = Redaction()
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


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


def answer(value: object, status: int = 200, etag: str | None = None) -> Response:
    """Return a value as JSON that no cache keeps; without a value there is no content."""
    headers = _HEADERS if etag is None else {**_HEADERS, "etag": etag}
    if status == 204:
        return Response(None, status, headers)
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def refusal(error: Exception, redaction: Redaction | None = _DEFAULT) -> Response:
    """Return the answer for an error. Internal errors are only logged: they may name files and hosts."""
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
    """Report an error in a function that the server was given as internal, not as the client's."""
    try:
        yield
    except (ConfigurationError, msgspec.MsgspecError) as error:
        raise RuntimeError("a function that the server was given failed") from error


def problem_of(error: Exception, redaction: Redaction | None = _DEFAULT) -> tuple[int, Problem]:
    """Return the HTTP status of an error, with the word and the sentence for it."""
    if isinstance(error, HTTPException):
        return error.status_code, Problem(getattr(error, "type", "refused"), str(error.detail))
    for kind, (status, word) in _STATUS.items():
        if isinstance(error, kind):
            problem = Problem(word, _TEXTS.get(kind) or redacted(str(error), redaction))
            if isinstance(error, ApprovalError):
                pending = redacted(msgspec.to_builtins(list(error.pending)), redaction)
                problem = msgspec.structs.replace(problem, pending_calls=pending)
            return status, problem
    if isinstance(error, StoreUnavailableError):
        _log.warning("the store cannot be used: %s", error)
        return 503, Problem("unavailable", "The store cannot be used at the moment. Try again.")
    _log.error("a request failed", exc_info=error)
    return 500, Problem("internal", "The server failed. The error is in its log.")
