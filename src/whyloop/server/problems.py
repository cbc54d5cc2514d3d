"""What a client is told when something cannot be done."""

from __future__ import annotations

import logging
from collections.abc import Iterator
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
from whyloop.server.bodies import Problem, Refusal

_log = logging.getLogger("whyloop")

# The first that fits.
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
# Where an error speaks to programmers in Python, or names a host of ours.
_WORDS: dict[type[Exception], str] = {
    SessionRunningError: "The session is being run: wait until it has ended or pauses, or stop it.",
    NotResumableError: "There is nothing to resume: what was asked is done. Ask the next question.",
}


class BadRequestError(HTTPException):
    """A request that makes no sense, and why."""

    def __init__(self, message: str, status: int = 400, type: str = "bad_request") -> None:
        super().__init__(status, message)
        self.type = type


def answer(value: object, status: int = 200) -> Response:
    """A value as JSON, for nobody else's cache."""
    return Response(
        msgspec.json.encode(value),
        status,
        {"cache-control": "no-store", "x-content-type-options": "nosniff"},
        media_type="application/json",
    )


def refusal(error: Exception) -> Response:
    """The answer that an error comes to. What is wrong inside is for the log: it may name files and hosts."""
    status, problem = told_of(error)
    response = answer(Refusal(problem), status)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    if status == 503:
        response.headers.setdefault("retry-after", "1")
    if isinstance(error, SessionRunningError):  # Until then somebody has it, dead or alive.
        response.headers["retry-after"] = str(ceil(error.seconds))
    return response


@contextmanager
def asking_the_app() -> Iterator[None]:
    """What goes wrong in the functions that the server was given is no fault of the client."""
    try:
        yield
    except (ConfigurationError, msgspec.MsgspecError) as error:
        raise RuntimeError("a function that the server was given failed") from error


def told_of(error: Exception) -> tuple[int, Problem]:
    """The status of HTTP, the word and the sentence for an error."""
    if isinstance(error, HTTPException):
        return error.status_code, Problem(getattr(error, "type", "refused"), str(error.detail))
    for kind, (status, word) in _STATUS.items():
        if isinstance(error, kind):
            return status, Problem(word, _WORDS.get(kind) or str(error))
    if isinstance(error, StoreUnavailableError):
        _log.warning("the store cannot be used: %s", error)
        return 503, Problem("unavailable", "The store cannot be used at the moment. Try again.")
    _log.error("a request failed", exc_info=error)
    return 500, Problem("internal", "Something went wrong here. It is in the log of the server.")
