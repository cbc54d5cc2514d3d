"""The cost of an answer: by a price of your own, by the host's own report, or by the price list."""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import Any

import pytest

from tests.models.faulty_server import KEY, FaultyServer, say, whole
from whyloop import Agent, CostLimit, Message, ModelRequest, ModelResponse, ModelSource, Price, Usage
from whyloop.errors import ConfigurationError
from whyloop.models import load, prices
from whyloop.models.prices import PriceList, anthropic_billing, chat_usage, gemini_billing, responses_billing
from whyloop.testing import assert_stopped

OPENAI = "https://api.openai.com/v1/chat/completions"
ANTHROPIC = "https://api.anthropic.com/v1/messages"
GOOGLE = "https://generativelanguage.googleapis.com/v1beta/models/x:generateContent"

REQUEST = ModelRequest((Message.user("Hi"),))
PRICE = Price(input=2, output=8, cached=1)


def cost(url: str, model: str, usage: Usage, **billing: int | str) -> Decimal | None:
    listed = PriceList.open(url)
    assert listed is not None
    return listed.cost(ModelResponse(usage=usage, source=ModelSource(model), billing=billing), model)


def known(url: str, model: str, usage: Usage, **billing: int | str) -> Decimal:
    found = cost(url, model, usage, **billing)
    assert found is not None
    return found


# The list


def test_a_model_of_the_list_has_its_price() -> None:
    # A model that is no longer sold: its price does not change.
    assert cost(OPENAI, "gpt-4-0613", Usage(1000, 500)) == Decimal("0.06")


def test_cached_input_is_cheaper_and_written_input_dearer() -> None:
    model = "claude-sonnet-4-20250514"
    plain = known(ANTHROPIC, model, Usage(10_000, 10))
    written = known(ANTHROPIC, model, Usage(10_000, 10, cache_writes=8000))
    for_an_hour = known(ANTHROPIC, model, Usage(10_000, 10, cache_writes=8000), cache_write_1h_tokens=8000)
    assert known(ANTHROPIC, model, Usage(10_000, 10, cached=8000)) < plain < written < for_an_hour


def test_a_long_prompt_has_another_price() -> None:
    short, long = (known(GOOGLE, "gemini-2.5-pro", Usage(count, 0)) for count in (100_000, 400_000))
    assert long > 4 * short


def test_the_service_tier_has_a_price() -> None:
    usage = Usage(10_000, 1000)
    assert known(OPENAI, "o3", usage, service_tier="flex") < known(OPENAI, "o3", usage)
    assert known(OPENAI, "o3", usage, service_tier="something new") == known(OPENAI, "o3", usage)


@pytest.mark.parametrize(
    ("url", "model", "usage"),
    [
        (OPENAI, "a-model-of-my-own", Usage(10, 10)),
        ("https://models.example/v1/chat/completions", "gpt-4o", Usage(10, 10)),
        (OPENAI, "gpt-4o", Usage(reported=False)),
        (OPENAI, "text-embedding-3-small", Usage(10, 10)),
    ],
    ids=["model", "host", "usage", "no price for output"],
)
def test_an_unknown_cost_is_not_zero(url: str, model: str, usage: Usage) -> None:
    assert cost(url, model, usage) is None


def test_a_model_that_was_deployed_under_another_name_has_the_price_of_either() -> None:
    listed = PriceList.open("https://ours.openai.azure.com/openai/v1/chat/completions")
    assert listed is not None
    usage = Usage(10, 10)
    by_report = listed.cost(ModelResponse(usage=usage, source=ModelSource("gpt-4o-2024-08-06")), "ours")
    by_name = listed.cost(ModelResponse(usage=usage, source=ModelSource("ours")), "gpt-4o")
    assert by_report is not None
    assert by_name is not None


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:80"])
def test_a_model_on_your_own_machine_has_no_list(host: str) -> None:
    assert PriceList.open(f"http://{host}/v1") is None


def test_without_the_list_costs_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_import_list", lambda: None)
    assert PriceList.open(OPENAI) is None
    assert load("openai:gpt-4o", api_key=KEY) is not None


def test_a_list_that_fails_breaks_no_run(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        Usage = dict

        @staticmethod
        def calc_price(*args: object, **options: object) -> None:
            raise TypeError("a new version")

    with caplog.at_level(logging.WARNING):
        response = ModelResponse(usage=Usage(1), source=ModelSource("gpt-4o"))
        assert PriceList(Broken, OPENAI).cost(response, "gpt-4o") is None
    assert "no price for model gpt-4o: the price list failed: TypeError('a new version')" in caplog.text


# Prices of your own


def answer(**usage: Any) -> bytes:
    choice = {"message": {"content": "Hi"}, "finish_reason": "stop"}
    return whole({"model": "mine-2", "choices": [choice], "usage": usage})


async def usage_at(server: FaultyServer, **options: Any) -> Usage:
    model = load("openai:mine", base_url=server.base_url, api_key=KEY, stream=False, **options)
    (response,) = [item async for item in model.respond(REQUEST) if isinstance(item, ModelResponse)]
    return response.usage


@pytest.mark.parametrize(
    "given", [PRICE, {"mine": PRICE}, {"openai:mine": PRICE, "mine": Price(input=9, output=9)}]
)
async def test_a_price_of_your_own(given: Any) -> None:
    counted = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 500},
    }
    async with FaultyServer(say(answer(**counted))) as server:
        usage = await usage_at(server, prices=given)
    assert usage == Usage(1000, 100, 500, cost=Decimal("0.0023"))


async def test_the_cost_that_a_host_reports_is_taken_unless_you_have_a_price() -> None:
    counted = {"prompt_tokens": 10, "completion_tokens": 1, "cost": 0.00012, "cost_details": {}}
    async with FaultyServer(say(answer(**counted))) as server:
        assert (await usage_at(server)).cost == Decimal("0.00012")
        assert (await usage_at(server, prices=PRICE)).cost == Decimal("0.000028")


async def test_an_answer_without_usage_has_an_unknown_cost() -> None:
    async with FaultyServer(say(answer())) as server:
        assert await usage_at(server, prices=PRICE) == Usage(reported=False)


async def test_a_limit_names_the_model_without_a_price() -> None:
    async with FaultyServer(say(answer(prompt_tokens=10, completion_tokens=1))) as server:
        model = load("openai:mine", base_url=server.base_url, api_key=KEY, stream=False)
        state = await Agent(model, criteria=[CostLimit(1)]).run("Hi")
    assert_stopped(state, reason="guard", by=CostLimit)
    assert "CostLimit decided: no price for model mine-2: pass prices=…" in state.explain()
    assert state.last_response == "Hi"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (5, r"invalid prices 5: use Price\(input=…, output=…\)"),
        ({"other": PRICE}, "no price for 'openai:mine' in prices: it has 'other'"),
        ({}, "no price for 'openai:mine' in prices: it has none"),
        ({"mine": 5}, "invalid price 5 of 'openai:mine'"),
    ],
)
def test_prices_without_the_model_are_refused(given: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load("openai:mine", api_key=KEY, prices=given)


def test_the_option_is_spelt_prices() -> None:
    with pytest.raises(ConfigurationError, match="unknown option 'price': did you mean 'prices'"):
        load("openai:mine", api_key=KEY, price=PRICE)


# What the hosts report


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"cost": 0.5, "cost_details": {}}, "0.5"),
        ({"cost": 0, "cost_details": {}}, "0"),
        ({"cost": 0.5, "cost_details": {"upstream_inference_cost": 2}, "is_byok": True}, "2.5"),
        ({"cost": 0.5, "cost_details": {"upstream_inference_cost": 2}, "is_byok": False}, "0.5"),
        ({"cost": "much", "cost_details": {}}, None),
        ({"cost": -1, "cost_details": {}}, None),
        ({"cost": None, "cost_details": {}}, None),
        ({"cost": 0.5}, None),
        ({"cost": {"total": 5}}, None),
    ],
)
def test_a_reported_cost(usage: dict[str, Any], expected: str | None) -> None:
    found = chat_usage({"usage": {"prompt_tokens": 3, **usage}}).cost
    assert found == (None if expected is None else Decimal(expected))


def test_conditions_of_a_price() -> None:
    counted = {
        "cache_creation": {"ephemeral_1h_input_tokens": 5},
        "server_tool_use": {"web_search_requests": 2},
        "service_tier": "Standard",
    }
    assert anthropic_billing(counted) == {
        "cache_write_1h_tokens": 5,
        "web_searches": 2,
        "service_tier": "standard",
    }
    audio = [{"modality": "TEXT", "tokenCount": 3}, {"modality": "AUDIO", "tokenCount": 4}]
    assert gemini_billing({"promptTokensDetails": audio}) == {"input_audio_tokens": 4}
    kinds = ["web_search_call", "message", "web_search_call"]
    assert responses_billing({"service_tier": "flex"}, kinds) == {"service_tier": "flex", "web_searches": 2}
    assert anthropic_billing({}) == gemini_billing({}) == responses_billing({}, ()) == {}
