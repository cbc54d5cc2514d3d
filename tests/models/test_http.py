"""The client: its connections, and that they are given back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from tests.models.faulty_server import (
    DONE,
    KEY,
    FaultyServer,
    Line,
    chat_answer,
    chat_call,
    chat_events,
    chunked,
    cut,
    hang,
    in_a_thread,
    say,
    slow,
    until,
    whole,
)
from tests.support import echo
from whyloop import Agent, Message, ModelRequest, ModelResponse, TextDelta
from whyloop.errors import ConfigurationError, ModelError, RequestTimeoutError
from whyloop.events import StreamChunkReceived
from whyloop.models import http, load
from whyloop.models.http import HttpModel, proxy_for
from whyloop.testing import capture_events
from whyloop.values.model import Delta

REQUEST = ModelRequest((Message.user("Hi"),))


def model_at(server: FaultyServer, **options: Any) -> HttpModel:
    return load(
        "openai:gpt-test",
        base_url=server.base_url,
        **{"api_key": KEY, "timeout": 2.0, "retries": 0, **options},
    )


async def everything(model: HttpModel) -> list[Delta | ModelResponse]:
    return [item async for item in model.respond(REQUEST)]


# Asking


async def test_a_request_has_its_key_and_its_content_types() -> None:
    async with FaultyServer(say(chat_answer())) as server:
        await everything(model_at(server))
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept"] == "text/event-stream"
    assert request.headers["user-agent"].startswith("whyloop/")
    assert request.json["model"] == "gpt-test"


async def test_headers_of_your_own_come_first() -> None:
    async with FaultyServer(say(chat_answer())) as server:
        await everything(model_at(server, headers={"Authorization": "Bearer other", "X-Team": "blue"}))
    headers = server.requests[0].headers
    assert (headers["authorization"], headers["x-team"]) == ("Bearer other", "blue")


async def test_a_secret_in_a_header_of_your_own_is_a_secret_too() -> None:
    refusal = whole({"error": {"message": "unknown token tok-55555"}}, 401)
    async with FaultyServer(say(refusal)) as server:
        with pytest.raises(ModelError, match=r"unknown token \[removed\]"):
            await everything(model_at(server, headers={"X-Auth-Token": "tok-55555"}))


async def test_an_error_carries_nothing_of_the_request() -> None:
    async with FaultyServer(cut()) as server:
        with pytest.raises(ModelError) as raised:
            await everything(model_at(server))
    assert raised.value.__cause__ is raised.value.__context__ is None


async def test_without_streaming_a_document_is_asked_for_and_shown_in_one_piece() -> None:
    document = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}
    async with FaultyServer(say(whole(document))) as server:
        delta, complete = await everything(model_at(server, stream=False))
    assert delta == TextDelta("Hello.")
    assert isinstance(complete, ModelResponse)
    assert complete.text == "Hello."
    assert server.requests[0].headers["accept"] == "application/json"
    assert server.requests[0].json["stream"] is False


async def test_text_is_passed_on_as_it_comes() -> None:
    """The second piece is sent only after the first one has been seen."""
    seen = asyncio.Event()

    async def behave(line: Line) -> None:
        stream = chunked(chat_events("One, ", "two.") + DONE)
        middle = stream.index(b"two")
        await line.send(stream[:middle])
        await seen.wait()
        await line.send(stream[middle:])

    async with FaultyServer(behave) as server:
        agent = Agent(model_at(server))
        agent.subscribe(lambda event: seen.set() if isinstance(event, StreamChunkReceived) else None)
        with capture_events(agent) as events:
            state = await agent.run("Count")
    chunks = events.of(StreamChunkReceived)
    assert [(chunk.chunk, chunk.is_complete) for chunk in chunks] == [
        ("One, ", False),
        ("two.", False),
        ("", True),
    ]
    assert state.last_response == "One, two."


# Connections


async def test_the_steps_of_a_run_share_a_connection() -> None:
    async with FaultyServer(say(chat_call("echo")), say(chat_call("echo")), say(chat_answer())) as server:
        state = await Agent(model_at(server), [echo]).run("Hi")
    assert (state.status, len(server.requests), server.connections) == ("completed", 3, 1)


async def test_a_connection_whose_end_comes_late_is_used_again() -> None:
    async def behave(line: Line) -> None:
        await line.send(chat_answer()[:-5])
        await asyncio.sleep(0.02)
        await line.send(chat_answer()[-5:])

    async with FaultyServer(behave) as server:
        model = model_at(server)
        await everything(model)
        await everything(model)
    assert (len(server.requests), server.connections) == (2, 1)


async def test_a_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    async with FaultyServer(cut(chat_answer())) as server:
        model = model_at(server)
        for _ in range(3):
            await everything(model)
            await asyncio.sleep(0.01)
    assert server.connections == 3


@pytest.mark.filterwarnings("error")
async def test_a_model_may_be_forgotten_while_the_loop_runs_on() -> None:
    async with FaultyServer(say(chat_answer())) as server:
        for _ in range(3):
            state = await Agent(model_at(server)).run("Hi")
            gc.collect()
            await asyncio.sleep(0)
    assert state.status == "completed"
    assert server.connections == 1


def test_event_loops_may_come_and_go() -> None:
    with in_a_thread(FaultyServer(slow(chat_answer(), 0.005))) as server:
        agent = Agent(model_at(server, max_concurrency=1))
        for _ in range(3):
            assert agent.run_sync("Hi").last_response == "Hello."

        async def two() -> None:
            await asyncio.gather(agent.run("Hi"), agent.run("Hi"))

        asyncio.run(two())
        asyncio.run(two())
    assert server.connections == 5  # One a loop.
    assert len(http._sessions) == 1  # The places of the loops before are given up.


@pytest.mark.filterwarnings("error")
def test_a_loop_that_is_closed_by_hand_is_left_clean_by_close(caplog: pytest.LogCaptureFixture) -> None:
    with in_a_thread(FaultyServer(say(chat_answer()))) as server:
        model = model_at(server)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(everything(model))
        loop.run_until_complete(model.close())
        loop.run_until_complete(model.close())  # There is nothing left to close.
        loop.close()
        gc.collect()
    assert "Unclosed" not in caplog.text


async def test_a_model_that_was_closed_can_be_asked_again() -> None:
    async with FaultyServer(say(chat_answer())) as server:
        model = model_at(server)
        for _ in range(2):
            assert len(await everything(model)) == 2
            await model.close()
    assert server.connections == 2


# Proxies


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


async def test_a_proxy_in_the_environment_is_used(no_proxies: pytest.MonkeyPatch) -> None:
    async with FaultyServer(say(chat_answer())) as proxy:
        no_proxies.setenv("HTTP_PROXY", f"me:hush-hush@127.0.0.1:{proxy.port}")
        model = load("openai:m", base_url="http://models.invalid/v1", api_key=KEY)
        assert len(await everything(model)) == 2
    assert proxy.requests[0].path == "http://models.invalid/v1/chat/completions"
    assert proxy.requests[0].headers["proxy-authorization"].startswith("Basic ")
    assert set(model.secrets) == {KEY, "hush-hush"}


async def test_a_proxy_that_is_not_there(no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("HTTPS_PROXY", "http://me:hush-hush@127.0.0.1:1")
    with pytest.raises(ModelError, match="could not be reached") as raised:
        await everything(load("openai:m", api_key=KEY))
    assert "hush-hush" not in str(raised.value)


async def test_a_proxy_that_refuses(no_proxies: pytest.MonkeyPatch) -> None:
    async with FaultyServer(cut(whole(b"", 407)), reads="head") as proxy:
        no_proxies.setenv("HTTPS_PROXY", f"http://me:hush-hush@127.0.0.1:{proxy.port}")
        with pytest.raises(ModelError, match="openai:m: the proxy answered HTTP 407: Whatever") as raised:
            await everything(load("openai:m", api_key=KEY))
    assert raised.value.status == 407


def test_which_proxy_is_for_which_address(no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("HTTPS_PROXY", "http://proxy:1")
    no_proxies.setenv("NO_PROXY", "example.com")
    assert proxy_for("https://api.openai.com/v1") == "http://proxy:1"
    for address in ("https://example.com", "https://a.example.com", "http://api.openai.com"):
        assert proxy_for(address) is None
    for address in ("https://localhost:1", "https://127.0.0.1:1", "https://[::1]:1"):
        assert proxy_for(address) is None


# How many at once


async def test_the_cap_holds() -> None:
    async with FaultyServer(slow(chat_answer(), 0.01)) as server:
        agent = Agent(model_at(server, max_concurrency=3))
        states = await asyncio.gather(*(agent.run("Hi") for _ in range(20)))
    assert {state.last_response for state in states} == {"Hello."}
    assert server.most_at_once == 3


async def test_without_max_concurrency_requests_are_unlimited() -> None:
    """Not even the client's own, which would make the last ones wait until they time out."""

    async def behave(line: Line) -> None:
        await until(lambda: server.most_at_once == 120)  # Nobody is answered before all have asked.
        await line.send(chat_answer())

    async with FaultyServer(behave) as server:
        agent = Agent(model_at(server, timeout=20.0))
        states = await asyncio.gather(*(agent.run("Hi") for _ in range(120)))
    assert {state.status for state in states} == {"completed"}


async def test_waiting_for_a_turn_is_not_waiting_for_an_answer() -> None:
    async with FaultyServer(slow(chat_answer(), 0.1)) as server:
        model = model_at(server, max_concurrency=1, timeout=0.25)
        answers = await asyncio.gather(*(everything(model) for _ in range(4)))
    assert len(answers) == 4


async def test_a_failure_gives_its_turn_back() -> None:
    async with FaultyServer(cut(), hang(), say(whole(b"", 500)), say(chat_answer())) as server:
        model = model_at(server, max_concurrency=1, timeout=0.1)
        for kind in (ModelError, RequestTimeoutError, ModelError):
            with pytest.raises(kind):
                await everything(model)
        assert len(await everything(model)) == 2


@pytest.mark.parametrize("sent", [b"", chunked(chat_events("Hel", finish=None))[:-5]], ids=["before", "amid"])
async def test_a_run_that_is_cancelled_gives_its_turn_and_its_connection_back(sent: bytes) -> None:
    async with FaultyServer(hang(sent), say(chat_answer())) as server:
        agent = Agent(model_at(server, max_concurrency=1))
        running = asyncio.create_task(agent.run("Hi"))
        await until(lambda: server.at_once == 1)
        await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: server.at_once == 0)  # The server saw the client leave.
        assert (await agent.run("Hi")).last_response == "Hello."


async def test_a_request_cancelled_while_waiting_takes_no_slot() -> None:
    async with FaultyServer(slow(chat_answer(), 0.05)) as server:
        model = model_at(server, max_concurrency=1)
        first, second, third = (asyncio.create_task(everything(model)) for _ in range(3))
        await until(lambda: server.at_once == 1)
        second.cancel()
        await asyncio.gather(first, third)
        assert second.cancelled()
    assert len(server.requests) == 2


async def test_leaving_during_an_answer_closes_the_connection() -> None:
    stream = chunked(chat_events("Hel", "lo.", finish=None))[:-5]
    async with FaultyServer(hang(stream), hang(stream), say(chat_answer())) as server:
        model = model_at(server, max_concurrency=1)
        closed = cast("AsyncGenerator[Any, None]", model.respond(REQUEST))
        assert await anext(closed) == TextDelta("Hel")
        await closed.aclose()
        await until(lambda: server.at_once == 0)
        forgotten = model.respond(REQUEST)
        assert await anext(forgotten) == TextDelta("Hel")
        del forgotten
        gc.collect()
        await until(lambda: server.at_once == 0)
        assert len(await everything(model)) == 2


async def test_leaving_after_the_response_closes_the_connection() -> None:
    async with FaultyServer(say(chat_answer())) as server:
        model = model_at(server, max_concurrency=1)
        answers = []
        for _ in range(3):
            answers.append(model.respond(REQUEST))
            while not isinstance(await anext(answers[-1]), ModelResponse):
                pass
    assert (len(server.requests), server.connections) == (3, 1)


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "invalid timeout 0: use seconds"),
        ({"timeout": "3"}, "invalid timeout '3': use seconds"),
        ({"timeout": True}, "invalid timeout True: use seconds"),
        ({"max_concurrency": 0}, "invalid max_concurrency 0: use a whole number"),
        ({"max_concurrency": "8"}, "invalid max_concurrency '8': use a whole number"),
        ({"max_concurrency": 1.5}, "invalid max_concurrency 1.5: use a whole number"),
        ({"max_concurrency": True}, "invalid max_concurrency True: use a whole number"),
        ({"headers": {"x-team": 7}}, "invalid header 'x-team': use strings for its name and value"),
        (
            {"headers": {"x-team": "a\r\nb: c"}},
            "invalid header 'x-team': use an ASCII name, and no line breaks",
        ),
        ({"headers": {"": "a"}}, "invalid header '': use an ASCII name"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load("openai:m", api_key=KEY, **options)


def test_a_model_shows_its_name_and_address_and_not_its_key() -> None:
    model = load("groq:llama", api_key=KEY)
    assert repr(model) == "<model groq:llama at https://api.groq.com/openai/v1/chat/completions>"
