"""Errors of providers become exceptions that a policy can act on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from whyloop.errors import ModelError, RateLimitError, RequestTimeoutError
from whyloop.models.response import http_error, retry_after_seconds, stream_error

NOW = datetime(2026, 1, 16, 10, tzinfo=UTC)


def body(**error: Any) -> bytes:
    return json.dumps({"error": {"message": "no", **error}}).encode()


# The kind of error.


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ModelError),
        (401, ModelError),
        (403, ModelError),
        (404, ModelError),
        (408, RequestTimeoutError),
        (413, ModelError),
        (422, ModelError),
        (429, RateLimitError),
        (500, ModelError),
        (502, ModelError),
        (501, ModelError),
        (503, ModelError),
        (504, RequestTimeoutError),
        (529, RateLimitError),
        (302, ModelError),
    ],
)
@pytest.mark.parametrize(
    "text", [body(), b"", b"<html><h1>No</h1></html>", b"\xff\xfe", b"{", b"[]", b"null"]
)
def test_a_status_decides(status: int, kind: type[ModelError], text: bytes) -> None:
    error = http_error(status, {}, text)
    assert type(error) is kind
    assert (error.status, error.request_id, error.retry_after) == (status, None, None)
    assert str(error).startswith(f"HTTP {status}: ")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("The engine is currently overloaded", RateLimitError),
        ("Rate limit reached", RateLimitError),
        ("RESOURCE_EXHAUSTED", RateLimitError),
        ("This model is currently experiencing high demand", RateLimitError),
        ("Something broke", ModelError),
    ],
)
def test_an_unavailable_server_is_busy_only_if_it_reports_overload(
    words: str, kind: type[ModelError]
) -> None:
    assert type(http_error(503, {}, body(message=words))) is kind
    assert type(stream_error({"error": {"message": words}})) is kind
    # Any other status decides by itself.
    assert type(http_error(400, {}, body(message=words))) is ModelError
    assert type(http_error(500, {}, body(message=words))) is ModelError


@pytest.mark.parametrize("words", ["The upstream request timed out", "Deadline exceeded"])
def test_a_timeout_without_a_status_is_known_by_its_text(words: str) -> None:
    assert type(stream_error({"error": {"message": words}})) is RequestTimeoutError
    assert type(http_error(500, {}, body(message=words))) is ModelError


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *[(status, True) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)],
        *[(status, False) for status in (302, 400, 401, 402, 403, 404, 413, 422, 498, 501)],
    ],
)
def test_a_status_decides_whether_another_attempt_may_succeed(status: int, retryable: bool) -> None:
    assert http_error(status, {}, body()).retryable is retryable
    assert stream_error({"error": {"code": status, "message": "no"}}).retryable is retryable
    assert ModelError("no", status=status).retryable is retryable
    assert ModelError("no", status=status, retryable=not retryable).retryable is not retryable


QUOTA = "You exceeded your current quota, please check your plan and billing details."


def test_an_exhausted_quota_is_not_retryable() -> None:
    assert not http_error(429, {}, body(code="insufficient_quota")).retryable
    assert not http_error(429, {"retry-after": "1"}, body(code="insufficient_quota")).retryable
    assert not http_error(429, {}, body(message=QUOTA)).retryable
    assert not stream_error({"error": {"message": "no", "code": "insufficient_quota"}}).retryable
    assert not RateLimitError(QUOTA).retryable


def test_a_quota_with_a_wait_is_not_exhausted() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}]
    assert http_error(429, {}, body(message=QUOTA, details=details)).retryable
    assert http_error(429, {"retry-after": "34"}, body(message=QUOTA)).retryable


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [("authentication_error", False), ("invalid_request_error", False), ("api_error", True)],
)
def test_an_error_without_a_status_inside_a_stream_is_retryable_by_its_type(
    kind: str, retryable: bool
) -> None:
    error = stream_error({"type": "error", "error": {"type": kind, "message": "no"}})
    assert (error.retryable, error.status) == (retryable, None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "no"}, RateLimitError),
        ({"code": "rate_limit_exceeded", "message": "no"}, RateLimitError),
        ({"code": 429, "message": "no"}, RateLimitError),
        ({"code": 503, "status": "UNAVAILABLE", "message": "no"}, ModelError),
        ({"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}, RateLimitError),
        ({"code": 504, "status": "DEADLINE_EXCEEDED", "message": "no"}, RequestTimeoutError),
        ({"type": "timeout", "message": "no"}, RequestTimeoutError),
        ({"code": 400, "message": "timeout is no setting"}, ModelError),
        ({"code": True, "message": "no"}, ModelError),
        ({"message": "no"}, ModelError),
    ],
)
def test_an_error_inside_a_stream(error: dict[str, Any], kind: type[ModelError]) -> None:
    for document in ({"error": error}, {"response": {"error": error}}, [{"error": error}], error):
        told = stream_error(document)
        assert type(told) is kind
        assert str(told) == error["message"]


# The words.


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"error": {"message": "no"}}, "no"),
        ({"error": "no"}, "no"),
        ({"message": "no"}, "no"),
        ({"detail": "no"}, "no"),
        ({"detail": [{"msg": "no"}]}, '[{"msg":"no"}]'),
        ([{"error": {"message": "no"}}], "no"),
        ({"error": {"message": "no", "metadata": {"raw": "really"}}}, "no: really"),
        ({"error": {"message": "no", "metadata": None}}, "no"),
        ("no", "no"),
        ({"odd": 1}, '{"odd": 1}'),
    ],
)
def test_the_message_is_found_in_every_field(document: Any, words: str) -> None:
    assert str(http_error(400, {}, json.dumps(document).encode())) == f"HTTP 400: {words}"


def test_a_body_that_is_not_json_is_quoted_and_cut() -> None:
    assert str(http_error(502, {}, b"<html>Bad gateway</html>")) == "HTTP 502: <html>Bad gateway</html>"
    assert len(str(http_error(502, {}, b"x" * 10_000))) < 400
    assert str(http_error(502, {}, b"")) == "HTTP 502: no explanation was given"


@pytest.mark.parametrize("response", [None, "text", []])
def test_a_response_that_is_not_an_object(response: Any) -> None:
    assert type(http_error(500, {}, json.dumps({"response": response}).encode())) is ModelError
    assert type(stream_error({"response": response})) is ModelError


# The request id.


@pytest.mark.parametrize("name", ["x-request-id", "request-id", "x-goog-request-id", "cf-ray"])
def test_the_request_id(name: str) -> None:
    assert http_error(400, {name: "r-1", "other": "x"}, b"").request_id == "r-1"


def test_the_request_id_inside_a_stream() -> None:
    assert stream_error({"error": {"message": "no"}, "request_id": "r-1"}).request_id == "r-1"
    assert stream_error({"error": {"message": "no"}, "request_id": 7}).request_id is None


def test_secrets_are_removed_before_the_message_is_cut() -> None:
    for size in range(470, 500):
        words = str(http_error(401, {}, body(message="x" * size + " my-own-secret"), ["my-own-secret"]))
        assert "my-" not in words


# How long to wait.


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-7"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "²"}, None),
        ({"retry-after-ms": "soon"}, None),
    ],
)
def test_seconds_and_milliseconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers) == seconds
    assert http_error(429, headers, b"").retry_after == seconds


def test_a_date() -> None:
    date, later = format_datetime(NOW, usegmt=True), format_datetime(NOW + timedelta(seconds=90), usegmt=True)
    assert retry_after_seconds({"retry-after": later, "date": date}) == 90.0
    assert retry_after_seconds({"retry-after": date, "date": later}) == 0.0


def test_a_date_by_our_own_clock() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    seconds = retry_after_seconds({"retry-after": later})
    assert seconds is not None
    assert 60 < seconds <= 90


@pytest.mark.parametrize(
    ("delay", "seconds"), [("34s", 34.0), ("3.5s", 3.5), ("0s", 0.0), ("soon", None), (7, None), (None, None)]
)
def test_google_sends_the_delay_in_the_details(delay: Any, seconds: float | None) -> None:
    kind = "type.googleapis.com/google.rpc.RetryInfo"
    text = body(details=["odd", {"@type": "other"}, {"@type": kind, "retryDelay": delay}])
    assert http_error(429, {}, text).retry_after == seconds
    assert http_error(429, {}, b"[" + text + b"]").retry_after == seconds
    assert http_error(429, {"retry-after": "2"}, text).retry_after == 2.0
    assert stream_error(json.loads(text)).retry_after == seconds


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after-ms": "soon", "retry-after": "10"},
        {"retry-after": " 10 "},
        {"retry-after": "Fri, 16 Jan 2026 10:00:10 -0000", "date": "Fri, 16 Jan 2026 10:00:00 GMT"},
    ],
)
def test_odd_headers(headers: dict[str, str]) -> None:
    assert retry_after_seconds(headers) == 10.0


def test_an_infinite_wait_is_ignored() -> None:
    assert retry_after_seconds({"retry-after-ms": "inf"}) is None


@pytest.mark.parametrize(
    ("status", "kind"), [(498, ModelError), (522, RequestTimeoutError), (524, RequestTimeoutError)]
)
def test_statuses_of_single_hosts(status: int, kind: type[ModelError]) -> None:
    assert type(http_error(status, {}, b"")) is kind


def test_a_page_with_a_script_has_not_timed_out() -> None:
    assert type(http_error(502, {}, b"<html><script>setTimeout(reload)</script>")) is ModelError


def test_a_status_as_text() -> None:
    assert type(stream_error({"error": {"code": "429", "message": "slow"}})) is RateLimitError
