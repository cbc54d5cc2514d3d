"""Faults of a server end a run as a classified failure, with nothing half-read in its history."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.models.faulty_server import (
    DONE,
    KEY,
    Behaviour,
    FaultyServer,
    assert_model_failed,
    call_piece,
    chat_answer,
    chat_events,
    chunked,
    cut,
    event,
    hang,
    head,
    reset,
    say,
    trickle,
    until,
    until_close,
    whole,
)
from tests.support import QUICK, echo
from whyloop import Agent, AgentState, ErrorPolicy
from whyloop.events import AgentEvent
from whyloop.models import load
from whyloop.testing import FakeClock

TIMEOUT = 0.25
# Far more than anything takes that does not wait for a timeout, on a busy machine too.
PATIENCE = 5.0


@pytest.fixture(autouse=True)
def nothing_leaks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No key in the log, and nothing left open: the collector's warnings are errors."""
    caplog.set_level(logging.DEBUG)
    yield
    gc.collect()
    assert KEY not in caplog.text
    assert "Unclosed" not in caplog.text


async def run_against(
    base_url: str,
    *,
    model: str = "openai:gpt-test",
    timeout: float = PATIENCE,
    query: str = "Hi",
    **options: Any,
) -> AgentState:
    """One run on a model at this address; whatever became of it, the key is nowhere to be found."""
    events: list[AgentEvent] = []
    asked = load(model, base_url=base_url, api_key=KEY, timeout=timeout, retries=0)
    options.setdefault("tools", [echo])
    async with asyncio.timeout(PATIENCE * 2):
        state = await Agent(asked, event_handler=events.append, **options).run(query)
    seen = json.dumps(state.to_dict()) + state.explain() + repr(asked) + "".join(map(repr, events))
    assert KEY not in seen
    return state


async def run_on(behaviour: Behaviour, *more: Behaviour, **options: Any) -> AgentState:
    async with FaultyServer(behaviour, *more) as server:
        return await run_against(server.base_url, **options)


def assert_failed(state: AgentState, kind: str, *words: str) -> None:
    """The trace says what failed, in these words, and nothing was used."""
    assert_model_failed(state, kind, *words)
    assert state.steps[-1].message_count == 0
    assert state.usage.total == 0


def assert_answered(state: AgentState, text: str) -> None:
    assert (state.status, state.last_response) == ("completed", text), state.explain()


# Cut streams

TEXT_STREAM = chat_events("Grüße", " 🙂") + DONE
CALL_STREAM = chat_events(calls=[call_piece("echo", '{"value": "é"}')], finish="tool_calls") + DONE


@pytest.mark.parametrize("stream", [TEXT_STREAM, CALL_STREAM], ids=["text", "call"])
@pytest.mark.parametrize("framed", [until_close, chunked], ids=["until-close", "chunked"])
async def test_a_stream_that_is_cut_at_any_byte(stream: bytes, framed: Any) -> None:
    """Either all of the answer is there or none of it, at every single byte."""
    response, body_starts = framed(stream), len(framed(b"").partition(b"\r\n\r\n")[0]) + 4
    finished = response.index(b"finish_reason", response.rindex(b'"delta": {}'))
    async with FaultyServer(cut()) as server:
        for size in range(0, len(response), 10 if QUICK else 1):
            server.behaviours = [cut(response[:size]), say(chat_answer("Done."))]
            state = await run_against(server.base_url)
            if size < body_starts:
                assert_failed(state, "model", "lost before an answer")
            elif size < finished:
                assert_failed(state, "validation")
            elif state.status == "completed":
                whole_answer = state.messages[1]
                assert whole_answer.text == ("Grüße 🙂" if stream is TEXT_STREAM else "")
                assert [call.arguments for call in whole_answer.tool_calls] == (
                    [] if stream is TEXT_STREAM else [{"value": "é"}]
                )
            else:
                assert_failed(state, "validation")


@pytest.mark.parametrize("stream", [TEXT_STREAM, CALL_STREAM], ids=["text", "call"])
async def test_a_stream_that_is_split_at_any_byte(stream: bytes) -> None:
    """UTF-8, JSON and line ends come in whatever pieces the network makes of them."""
    for size in (1, 2, 3, 7, 50):
        for response in (chunked(stream, size), chunked(stream.replace(b"\n", b"\r\n"), size)):
            state = await run_on(trickle(response, 0, size=31), say(chat_answer("Done.")))
            assert state.status == "completed", state.explain()
            assert (state.messages[1].text, len(state.messages[1].tool_calls)) == (
                ("Grüße 🙂", 0) if stream is TEXT_STREAM else ("", 1)
            )


# Streams that are odd but whole

ODD_STREAMS = {
    "keep-alives": b": keep-alive\n\n: OPENROUTER PROCESSING\n\n\n\n"
    + TEXT_STREAM.replace(b"\n\n", b"\n\n:\n\n"),
    "ids and retry times": b"id: 7\nretry: 100\n" + TEXT_STREAM,
    "no space after data:": TEXT_STREAM.replace(b"data: ", b"data:"),
    "carriage returns": TEXT_STREAM.replace(b"\n", b"\r"),
    "no [DONE]": chat_events("Grüße", " 🙂"),
    "no blank line at the end": chat_events("Grüße", " 🙂").rstrip(),
    "an empty choices first": event({"choices": [], "prompt_filter_results": []}) + TEXT_STREAM,
    "something after [DONE]": TEXT_STREAM + event({"choices": []}) + b"data: rubbish\n\n",
}


@pytest.mark.parametrize("stream", ODD_STREAMS.values(), ids=ODD_STREAMS.keys())
async def test_an_odd_stream_is_still_read(stream: bytes) -> None:
    assert_answered(await run_on(say(chunked(stream))), "Grüße 🙂")


async def test_a_stream_with_another_content_type() -> None:
    state = await run_on(say(whole(TEXT_STREAM, content_type="application/octet-stream")))
    assert_answered(state, "Grüße 🙂")


async def test_a_document_with_the_content_type_of_a_stream() -> None:
    choices = [{"message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]
    state = await run_on(say(whole({"choices": choices}, content_type="text/event-stream")))
    assert_answered(state, "Hello.")


async def test_a_connection_that_stays_open_after_done() -> None:
    state = await run_on(hang(chunked(TEXT_STREAM)[:-5]))
    assert_answered(state, "Grüße 🙂")


async def test_gzip() -> None:
    state = await run_on(say(chunked(gzip.compress(TEXT_STREAM), 20, content_encoding="gzip")))
    assert_answered(state, "Grüße 🙂")


async def test_duplicate_indexes_with_different_ids_are_different_calls() -> None:
    pieces = [call_piece("echo", '{"value": "1"}', id="a"), call_piece("echo", '{"value": "2"}', id="b")]
    stream = chunked(chat_events(calls=pieces, finish="tool_calls") + DONE)
    state = await run_on(say(stream), say(chat_answer("Done.")))
    assert [message.text for message in state.messages if message.is_tool] == ["1", "2"]


# Responses that are none

BAD_ANSWERS: dict[str, tuple[Behaviour, str, str]] = {
    "[DONE] at once": (say(chunked(DONE)), "validation", "before the answer was complete"),
    "[DONE] early": (
        say(chunked(chat_events("Grü", finish=None) + DONE + chat_events("ße"))),
        "validation",
        "before the answer was complete",
    ),
    "an error inside": (
        say(chunked(chat_events("Grü", finish=None) + event({"error": {"message": f"no {KEY}"}}) + DONE)),
        "model",
        "no [removed]",
    ),
    "an overload inside": (
        say(chunked(event({"error": {"message": "Overloaded", "code": 529}}))),
        "rate_limit",
        "Overloaded",
    ),
    "an error event": (
        say(chunked(event({"message": "it broke"}, name="error"))),
        "model",
        "it broke",
    ),
    "an error in a 200": (say(whole({"error": {"message": "nope"}})), "model", "nope"),
    "rubbish": (say(chunked(b"data: {rubbish}\n\n")), "validation", "not JSON"),
    "no object": (say(chunked(b"data: 7\n\n")), "validation", "not an object"),
    "broken UTF-8": (say(chunked(chat_events("é").replace(b"\xa9", b"("))), "validation", "cannot be read"),
    "broken UTF-8 in a document": (say(whole(b'{"choices": ["\xff"]}')), "validation", "cannot be read"),
    "broken gzip": (say(chunked(b"no gzip at all", content_encoding="gzip")), "validation", "cut off"),
    "half a gzip": (
        cut(chunked(gzip.compress(TEXT_STREAM), content_encoding="gzip")[:-30]),
        "validation",
        "",
    ),
    "a web page": (
        say(whole(b"<!doctype html><title>Welcome</title>", content_type="text/html")),
        "model",
        "/v1/chat/completions answered with a web page",
    ),
    "a web page that begins with text": (
        say(whole(b"Welcome <b>back</b>", content_type="text/html; charset=utf-8")),
        "model",
        "/v1/chat/completions answered with a web page",
    ),
    "rubbish that is called a page": (
        say(whole(b'{"choices": rubbish}', content_type="text/html")),
        "validation",
        "is not JSON",
    ),
    "an empty body": (say(whole(b"")), "validation", "empty"),
    "an empty stream": (say(chunked(b"")), "validation", "before the answer was complete"),
    "no content": (say(b"HTTP/1.1 204 No Content\r\n\r\n"), "validation", "empty"),
    "only keep-alives": (say(chunked(b": ping\n\n" * 3)), "validation", "before the answer was complete"),
    "empty choices": (say(whole({"choices": []})), "validation", "no answer"),
    "empty choices in a stream": (
        say(chunked(event({"choices": []}) + DONE)),
        "validation",
        "before the answer was complete",
    ),
    "choices of another kind": (say(whole({"choices": {"a": 1}})), "validation", "no answer"),
    "another kind of document": (say(whole([1, 2])), "validation", "no answer"),
    "an unnamed call": (
        say(chunked(chat_events(calls=[{"index": 0, "id": "a"}], finish="tool_calls"))),
        "validation",
        "without a name",
    ),
    "no HTTP": (
        say(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        "validation",
        "openai:gpt-test: the response cannot be read: ",
    ),
    "endless headers": (
        say(b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n"),
        "validation",
        "the response cannot be read: Got more than",
    ),
    "an unknown encoding": (say(chunked(TEXT_STREAM, content_encoding="br")), "validation", ""),
    "a bad chunk size": (
        say(head(transfer_encoding="chunked") + b"zz\r\nrubbish\r\n"),
        "validation",
        "the response cannot be read: ",
    ),
    "a wrong length": (cut(head(content_length=10_000) + TEXT_STREAM[:90]), "validation", "cut off"),
    "closed at once": (cut(), "model", "lost before an answer"),
    "a reset at once": (reset(), "model", "lost before an answer"),
    "a reset after the headers": (reset(head(content_length=100)), "validation", "cut off"),
    "a reset in the body": (reset(chunked(TEXT_STREAM)[:150]), "validation", "cut off"),
    "a redirect": (
        say(whole(b"", 307, location=f"http://127.0.0.1:9/v1?key={KEY}")),
        "model",
        "moved to http://127.0.0.1:9/v1?key=[removed]",
    ),
}


@pytest.mark.parametrize(("behaviour", "kind", "words"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_an_invalid_response(behaviour: Behaviour, kind: str, words: str) -> None:
    assert_failed(await run_on(behaviour), kind, words)


@pytest.mark.parametrize("name", ["no HTTP", "endless headers", "an unknown encoding", "a bad chunk size"])
async def test_broken_http_is_reported_without_a_status(name: str) -> None:
    behaviour, _, _ = BAD_ANSWERS[name]
    state = await run_on(behaviour)
    failure = state.steps[0].failures[0]
    assert failure.details.get("status") is None
    assert "message=" not in failure.message
    assert "400" not in failure.message


async def test_a_redirect_is_not_followed() -> None:
    async with FaultyServer(say(chat_answer())) as other:
        state = await run_on(say(whole(b"", 308, location=f"{other.base_url}/chat/completions")))
        assert_failed(state, "model", "HTTP 308", other.base_url)
        assert other.requests == []


# Statuses

STATUSES = {
    **dict.fromkeys((400, 401, 403, 404, 413, 422, 500, 502, 503), "model"),
    **dict.fromkeys((429, 529), "rate_limit"),
    **dict.fromkeys((408, 504), "timeout"),
}


@pytest.mark.parametrize(("status", "kind"), STATUSES.items())
async def test_an_error_status(status: int, kind: str) -> None:
    body = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
    state = await run_on(say(whole(body, status, x_request_id="req_7")))
    assert_failed(state, kind, f"HTTP {status}: Incorrect API key provided: [removed]")
    failure = state.steps[0].failures[0]
    assert (failure.details["status"], failure.details["request_id"]) == (status, "req_7")


@pytest.mark.parametrize("status", [403, 502, 529])
async def test_a_status_with_a_web_page(status: int) -> None:
    page = b"<html><head><title>Bad gateway</title></head></html>"
    state = await run_on(say(whole(page, status, content_type="text/html")))
    assert_failed(state, STATUSES[status], f"HTTP {status}", "Bad gateway")


async def test_a_status_with_nothing() -> None:
    assert_failed(await run_on(say(whole(b"", 500))), "model", "HTTP 500: no explanation was given")


async def test_a_status_with_broken_utf8() -> None:
    state = await run_on(say(whole(b'{"error": {"message": "caf\xe9"}}', 429)))
    assert_failed(state, "rate_limit", "HTTP 429: caf")


async def test_an_explanation_that_comes_in_pieces_is_read_completely() -> None:
    body = whole({"error": {"message": "x" * 100 + " the end"}}, 400)
    assert_failed(await run_on(trickle(body, 0.002, size=40)), "model", "the end")


async def test_an_explanation_that_never_ends_is_read_as_far_as_it_gets() -> None:
    state = await run_on(hang(head(429, content_length=999) + b"slow down"), timeout=TIMEOUT)
    assert_failed(state, "rate_limit", "HTTP 429: slow down")


async def test_an_endless_explanation_is_cut() -> None:
    endless = head(500, "text/plain", connection="close") + b"no " * 200_000
    assert_failed(await run_on(hang(endless)), "model", "HTTP 500: no no")


async def test_a_refusal_while_the_request_is_still_being_sent() -> None:
    """A server may say 413 without reading on; what it says is heard."""
    refusal = hang(whole({"error": {"message": "too large"}}, 413, connection="close"))
    async with FaultyServer(refusal, reads="head") as server:
        state = await run_against(server.base_url, query="x" * 5_000_000)
    assert_failed(state, "model", "HTTP 413: too large")


async def test_a_large_request_arrives_whole() -> None:
    async with FaultyServer(say(chat_answer())) as server:
        assert_answered(await run_against(server.base_url, query="é" * 2_000_000), "Hello.")
        assert server.requests[0].json["messages"][-1]["content"] == "é" * 2_000_000


# A key that is cut is still half a key

OTHER_KEY = "sk-proj-abcdefghijklmnop1234567890"


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" for char in text)


CUT_KEYS: dict[str, Any] = {
    "in a document": lambda key, words: whole({"error": {"message": words + key}}, 401),
    "in an escaped document": lambda key, words: whole(
        f'{{"error": {{"message": "{words}{escaped(key)}"}}}}'.encode(), 401
    ),
    "in a page": lambda key, words: whole((words + key).encode(), 500, "text/plain"),
    "in an address": lambda key, words: whole(
        b"", 302, location=f"http://127.0.0.1:9/{words}/{key}".replace(" ", "+")
    ),
    "in an event": lambda key, words: chunked(event({"error": {"message": words + key}})),
    "in an odd event": lambda key, words: chunked(event({"error": {"odd": words + key}})),
    "in a 200": lambda key, words: whole({"error": {"message": words + key}}),
}


@pytest.mark.parametrize("key", [KEY, OTHER_KEY], ids=["ours", "anybody's"])
@pytest.mark.parametrize("answer", CUT_KEYS.values(), ids=CUT_KEYS.keys())
async def test_a_key_is_removed_before_anything_is_shortened(answer: Any, key: str) -> None:
    async with FaultyServer(cut()) as server:
        for gap in range(80, 310, 3):
            server.behaviours = [say(answer(key, "a " * gap))]
            state = await run_against(server.base_url)
            assert key[:6] not in state.explain() + state.steps[0].failures[0].message, f"after {gap}"


@pytest.mark.parametrize("gap", range(20, 62, 3))
async def test_no_half_of_our_key_is_left_of_a_web_page(gap: int) -> None:
    page = f"<p>{'a ' * gap}{KEY} {'b ' * 500}".encode()
    state = await run_on(say(whole(page, content_type="text/html")))
    assert_failed(state, "model", "web page")
    assert KEY[:6] not in state.explain()


async def test_a_key_is_removed_from_a_request_id() -> None:
    state = await run_on(say(whole({"error": {"message": "no"}}, 401, x_request_id=f"r-{KEY}")))
    assert state.steps[0].failures[0].details["request_id"] == "r-[removed]"


# What only the headers of a response tell

INSIDE = {
    "an error in a 200": {"error": {"message": "Overloaded", "code": 529}},
    "an error event": event({"error": {"message": "Overloaded", "code": 529}}),
}


@pytest.mark.parametrize("body", INSIDE.values(), ids=INSIDE.keys())
async def test_an_error_inside_a_response_has_what_its_headers_tell(body: Any) -> None:
    clock = FakeClock()
    kind = "text/event-stream" if isinstance(body, bytes) else "application/json"
    busy = whole(body, 200, kind, x_request_id="req_7", retry_after="7")
    policy = ErrorPolicy.retry_tool_errors()
    state = await run_on(say(busy), say(chat_answer()), error_policy=policy, clock=clock)
    assert_answered(state, "Hello.")
    assert clock.sleeps == [7.0]
    assert state.steps[0].failures[0].details["request_id"] == "req_7"


@pytest.mark.parametrize("body", [b"", b"{rubbish}", b"data: {rubbish}\n\n"])
async def test_a_response_that_cannot_be_read_has_its_request_id(body: bytes) -> None:
    state = await run_on(say(whole(body, x_request_id="req_7", retry_after="7")))
    assert_failed(state, "validation")
    assert state.steps[0].failures[0].details["request_id"] == "req_7"


# Time

HANGS = {
    "before the headers": hang(),
    "in the headers": hang(head()[:20]),
    "after the headers": hang(head(content_length=100)),
    "in the body": hang(chunked(TEXT_STREAM)[:150]),
    "with keep-alives": trickle(head(connection="close") + b": ping\n\n" * 200, 0.01, size=8),
    "in a slow trickle": trickle(chunked(TEXT_STREAM), 0.01),
}


@pytest.mark.parametrize("behaviour", HANGS.values(), ids=HANGS.keys())
async def test_a_connection_that_hangs(behaviour: Behaviour) -> None:
    started = time.monotonic()
    state = await run_on(behaviour, timeout=TIMEOUT)
    assert_failed(state, "timeout", "openai:gpt-test gave no complete answer within 0.25 s")
    assert time.monotonic() - started < PATIENCE


async def test_the_agents_own_time_limit_cuts_a_request_off() -> None:
    async with FaultyServer(hang()) as server:
        model = load("openai:gpt-test", base_url=server.base_url, api_key=KEY, timeout=60.0)
        state = await Agent(model, timeout=0.1).run("Hi")
        await until(lambda: server.at_once == 0)
    assert state.stop_reason == "time_limit"


# Nobody there


async def test_a_refused_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # Bound, but it does not listen.
        port = unused.getsockname()[1]
        state = await run_against(f"http://127.0.0.1:{port}/v1")
    assert_failed(state, "model", f"could not be reached: 127.0.0.1:{port}: Connection refused")


async def test_an_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    state = await run_against("http://models.invalid/v1")
    assert_failed(state, "model", "could not be reached: models.invalid:80: Name or service not known")


async def test_a_host_that_speaks_no_tls() -> None:
    async with FaultyServer(cut(whole(b"", 400)), reads="nothing") as server:
        state = await run_against(server.base_url.replace("http://", "https://"))
    assert_failed(state, "model", "could not be reached", "SSL")


# Size


async def test_an_endless_answer_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whyloop.models.response.MAX_RESPONSE_BYTES", 10_000)
    for endless in (
        b"x" * 50_000,
        b"data: " + b"x" * 50_000,
        b": ping\n\n" * 9_000,
        b'{"a": "' + b"x" * 50_000,
    ):
        state = await run_on(hang(head(connection="close") + endless))
        assert_failed(state, "validation", "longer than 10,000 bytes")


async def test_a_compressed_flood_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whyloop.models.response.MAX_RESPONSE_BYTES", 100_000)
    flood = gzip.compress(b"data: " + b"x" * 20_000_000)
    state = await run_on(say(chunked(flood, content_encoding="gzip")))
    assert_failed(state, "validation", "longer than 100,000 bytes")


# Retries

DATE = "Fri, 16 Jan 2026 10:00:00 GMT"
PATIENCE_ASKED = {
    "seconds": ({"retry_after": "7"}, 7.0),
    "a part of a second": ({"retry_after": "1.5"}, 1.5),
    "milliseconds": ({"retry_after_ms": "250"}, 0.25),
    "milliseconds first": ({"retry_after_ms": "250", "retry_after": "9"}, 0.25),
    "a date": ({"retry_after": "Fri, 16 Jan 2026 10:00:12 GMT", "date": DATE}, 12.0),
    "a date that has passed": ({"retry_after": "Fri, 16 Jan 2026 09:00:00 GMT", "date": DATE}, 0.0),
    "longer than the cap": ({"retry_after": "9999"}, 60.0),
}


@pytest.mark.parametrize(("headers", "seconds"), PATIENCE_ASKED.values(), ids=PATIENCE_ASKED.keys())
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_retry_after(status: int, headers: dict[str, str], seconds: float) -> None:
    clock = FakeClock()
    busy = say(whole({"error": {"message": "slow down"}}, status, **headers))
    policy = ErrorPolicy.retry_tool_errors()
    state = await run_on(busy, say(chat_answer()), error_policy=policy, clock=clock)
    assert_answered(state, "Hello.")
    assert clock.sleeps == ([seconds] if seconds else [])
    assert [message.role for message in state.messages] == ["user", "assistant"]


async def test_a_retry_is_the_same_request_and_nothing_is_retried_in_secret() -> None:
    async with FaultyServer(cut(chunked(TEXT_STREAM)[:180]), cut(), say(chat_answer())) as server:
        policy = ErrorPolicy.retry_all()
        state = await run_against(server.base_url, error_policy=policy, clock=FakeClock())
        assert_answered(state, "Hello.")
        assert len({request.body for request in server.requests}) == 1
        assert len(server.requests) == len(state.steps) == 3
        assert [step.error_count for step in state.steps] == [1, 1, 0]


async def test_retries_that_run_out() -> None:
    clock = FakeClock()
    policy = ErrorPolicy.retry_tool_errors(max_retries=2)
    state = await run_on(say(whole(b"overloaded", 503)), error_policy=policy, clock=clock)
    assert (state.stop_reason, len(state.steps), len(clock.sleeps)) == ("retry_limit", 3, 2)
    assert "HTTP 503: overloaded" in state.explain().splitlines()[0]


async def test_a_wrong_key_is_sent_once() -> None:
    async with FaultyServer(say(whole({"error": {"message": "wrong key"}}, 401))) as server:
        model = load("openai:gpt-5", base_url=server.base_url, api_key=KEY)
        state = await Agent(model, error_policy=ErrorPolicy.retry_all(), clock=FakeClock()).run("Hi")
        assert len(server.requests) == 1
    assert state.explain().splitlines()[0].endswith("Model error, not retried: HTTP 401: wrong key.")
