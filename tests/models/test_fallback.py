"""A model that falls back on others: when they are asked, and where that is noted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import pytest

from tests.models.faulty_server import KEY, FaultyServer, chat_answer, chat_events, chunked, cut, say, whole
from tests.support import RespondingModel
from whyloop import Agent, ErrorPolicy, Message, ModelRequest, ModelResponse, TextDelta
from whyloop.errors import (
    ConfigurationError,
    ModelError,
    RateLimitError,
    RequestTimeoutError,
    ResponseValidationError,
    ScriptError,
)
from whyloop.events import StreamChunkReceived
from whyloop.models import FallbackModel, load
from whyloop.testing import FakeClock, ScriptedModel, capture_events

REQUEST = ModelRequest((Message.user("Hi"),))


class Named(ScriptedModel):
    """A script with a name."""

    def __init__(self, name: str, *replies: Any) -> None:
        super().__init__(replies)
        self.name = name


async def test_the_first_is_asked_and_the_others_are_left_alone() -> None:
    first, second = Named("a", "Hello."), Named("b")
    state = await Agent(FallbackModel(first, second)).run("Hi")
    assert state.last_response == "Hello."
    assert state.steps[0].source is None
    assert second.requests == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RateLimitError("slow down"), "rate_limit"),
        (RequestTimeoutError("too late"), "timeout"),
        (ModelError("bad gateway"), "model"),
    ],
)
async def test_a_switch_is_in_the_trace(error: Exception, kind: str) -> None:
    agent = Agent(FallbackModel(Named("a", error), Named("b", "Hello.")), clock=FakeClock())
    state = await agent.run("Hi")
    assert (state.status, state.last_response) == ("completed", "Hello.")
    note = f"a failed ({kind}: {error}), b was asked"
    source = state.steps[0].source
    assert source is not None
    assert source.notes == (note,)
    assert f"    1  {note}; answered" in state.explain()
    assert type(state).from_dict(state.to_dict()) == state


async def test_every_switch_is_noted() -> None:
    model = FallbackModel(Named("a", ModelError("1")), Named("b", ModelError("2")), Named("c", "Hello."))
    state = await Agent(model).run("Hi")
    source = state.steps[0].source
    assert source is not None
    assert source.notes == ("a failed (model: 1), b was asked", "b failed (model: 2), c was asked")


async def test_an_error_of_another_type_is_raised() -> None:
    second = Named("b", "Hello.")
    state = await Agent(FallbackModel(Named("a", ResponseValidationError("rubbish")), second)).run("Hi")
    assert state.steps[0].failures[0].type == "validation"
    assert second.requests == []


async def test_the_types_can_be_named() -> None:
    model = FallbackModel(Named("a", ResponseValidationError("x")), Named("b", "Hello."), on=["validation"])
    assert (await Agent(model).run("Hi")).last_response == "Hello."
    model = FallbackModel(Named("a", ModelError("x")), Named("b", "Hello."), on=["validation"])
    assert (await Agent(model).run("Hi")).steps[0].failures[0].type == "model"
    assert FallbackModel(Named("a"), Named("b"), on="timeout").on == {"timeout"}


async def test_if_all_fail_the_last_error_names_the_others() -> None:
    busy = RateLimitError("slow down", retry_after=3)
    clock = FakeClock()
    replies: list[Any] = [busy, "Hello."]
    model = FallbackModel(Named("a", ModelError("gone"), ModelError("gone")), Named("b", *replies))
    state = await Agent(model, error_policy=ErrorPolicy.retry_all(), clock=clock).run("Hi")
    failure = state.steps[0].failures[0]
    assert failure.type == "rate_limit"
    assert failure.message == "slow down (before that: a failed (model: gone), b was asked)"
    assert clock.sleeps == [3]
    assert state.last_response == "Hello."


async def test_text_of_a_failed_model_is_not_part_of_the_answer() -> None:
    half = chunked(chat_events("Hal", finish=None))[:-5]
    async with FaultyServer(cut(half)) as first, FaultyServer(say(chat_answer("Hello."))) as second:
        options: Any = {"api_key": KEY, "timeout": 1.0}
        model = FallbackModel(
            load("openai:a", base_url=first.base_url, **options),
            load("openai:b", base_url=second.base_url, **options),
            on=["validation"],
        )
        agent = Agent(model)
        with capture_events(agent) as events:
            state = await agent.run("Hi")
    assert [message.text for message in state.messages] == ["Hi", "Hello."]
    assert "openai:a failed (validation: openai:a: the response was cut off" in state.explain()
    assert "".join(event.chunk for event in events.of(StreamChunkReceived)) == "HalHello."
    assert model.secrets == (KEY, KEY)


async def test_over_the_network_the_next_host_is_asked() -> None:
    async with FaultyServer(say(whole(b"", 529))) as first, FaultyServer(say(chat_answer())) as second:
        model = FallbackModel(
            load("openai:a", base_url=first.base_url), load("groq:b", base_url=second.base_url)
        )
        state = await Agent(model).run("Hi")
    assert (
        "openai:a failed (rate_limit: HTTP 529: no explanation was given), groq:b was asked"
        in state.explain()
    )
    assert model.name == "openai:a or groq:b"


async def test_a_script_error_does_not_switch_models() -> None:
    with pytest.raises(ScriptError):
        await Agent(FallbackModel(Named("a"), Named("b", "Hello."))).run("Hi")


async def test_leaving_during_an_answer_closes_the_model() -> None:
    closed = asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        try:
            yield TextDelta("Hel")
            yield TextDelta("lo.")
        finally:
            closed.set()

    answer = cast(
        "AsyncGenerator[Any, None]", FallbackModel(RespondingModel(respond), Named("b")).respond(REQUEST)
    )
    await anext(answer)
    await answer.aclose()
    assert closed.is_set()


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a fallback of 1 model cannot switch: use two or more"):
        FallbackModel(Named("a"))
    with pytest.raises(ConfigurationError, match="'sometimes' is not a valid ErrorType: use tool, model"):
        FallbackModel(Named("a"), Named("b"), on=["sometimes"])


def test_models_may_be_given_by_name() -> None:
    assert FallbackModel("ollama:a", "lmstudio:b").name == "ollama:a or lmstudio:b"
