"""Tokens and their cost: the usage that each API reports, and the optional list of genai-prices.

The extra `prices` installs the list. It knows the hosts by their addresses, the prices of each
model over time, and what depends on the request: cached input, cache writes, the length of the prompt, the
service tier. A host or a model that is not in it has no price: its cost is unknown, not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from whyloop.errors import ConfigurationError
from whyloop.logger import Logger
from whyloop.models.provider import token_count
from whyloop.values.model import ModelResponse, Usage
from whyloop.values.price import Price, as_dollars, plain
from whyloop.values.text import shortened

_log = Logger("whyloop.models")


class PriceList:
    """The prices of one host."""

    def __init__(self, list_: Any, url: str) -> None:
        self._list = list_
        self._url = url

    @classmethod
    def open(cls, url: str) -> PriceList | None:
        """Return the price list for the host of an address; None if there is none."""
        host = urlsplit(url).hostname or ""
        if host in ("localhost", "::1") or host.startswith("127."):
            return None
        found = _import_list()
        return cls(found, url) if found is not None else None

    def cost(self, response: ModelResponse, model: str) -> Decimal | None:
        """Return the cost of a response; None if the list has no price for its model."""
        usage = response.usage
        if not usage.reported:
            return None
        # A host answers with the exact name of the model; a deployment has a second name.
        reported = response.source.model if response.source else None
        for name in dict.fromkeys([reported, model]):
            if name:
                try:
                    return self._price(name, usage, response.billing)
                except LookupError:
                    continue
                except Exception as error:  # An error in the list must not break a run.
                    _log.warning("no price for model %s: the price list failed: %s", name, repr(error))
                    return None
        return None

    def _price(self, name: str, usage: Usage, billing: Mapping[str, int | str]) -> Decimal | None:
        counts = {key: count for key, count in billing.items() if isinstance(count, int)}
        priced = self._list.calc_price(
            self._list.Usage(
                input_tokens=usage.input,
                output_tokens=usage.output,
                cache_read_tokens=min(usage.cached, usage.input),
                cache_write_tokens=usage.cache_writes,
                **counts,
            ),
            name,
            provider_api_url=self._url,
            genai_request_timestamp=datetime.now(UTC),
            price_context={key: text for key, text in billing.items() if isinstance(text, str)},
        )
        # An entry may have a model without a price.
        is_priced = priced.model_price.input_mtok is not None and priced.model_price.output_mtok is not None
        return plain(priced.total_price) if is_priced else None


def is_installed() -> bool:
    """Return whether a price list is installed."""
    return _import_list() is not None


@cache
def _import_list() -> Any:
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices


def own_price(prices: object, name: str, model: str) -> Price | None:
    """Return the developer's price for a model; refuse prices without it."""
    if prices is None or isinstance(prices, Price):
        return prices
    if not isinstance(prices, Mapping):
        raise ConfigurationError(
            f"invalid prices {shortened(repr(prices), 80)}: use Price(input=…, output=…) in US dollars "
            "per million tokens, or a mapping of such prices by model"
        )
    price = prices.get(name, prices.get(model))
    if price is None:
        known = ", ".join(map(repr, prices)) or "none"
        raise ConfigurationError(f"no price for {name!r} in prices: it has {shortened(known, 200)}")
    if not isinstance(price, Price):
        raise ConfigurationError(
            f"invalid price {shortened(repr(price), 80)} of {name!r}: use Price(input=…, output=…)"
        )
    return price


Counted = Mapping[str, Any]
Billing = dict[str, int | str]
"""The facts besides tokens that a price depends on, under the names of the price list."""

# The names that hosts use for the cached part of a prompt.
_CACHED = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")


# OpenAI's chat API, and the hosts that speak it


def chat_usage(document: Counted) -> Usage:
    """Return the tokens; hosts count them in different fields."""
    counted = document.get("usage") or (document.get("x_groq") or {}).get("usage") or {}
    counted = counted if isinstance(counted, dict) else {}
    prompt = counted.get("prompt_tokens_details") or {}
    answer = counted.get("completion_tokens_details") or {}
    cached = [prompt.get("cached_tokens"), *[counted.get(key) for key in _CACHED]]
    return _usage(
        prompt=token_count(counted.get("prompt_tokens")),
        answer=token_count(counted.get("completion_tokens")),
        cached=next(filter(None, cached), 0),
        cache_writes=prompt.get("cache_write_tokens"),
        reasoning=answer.get("reasoning_tokens"),
        total=counted.get("total_tokens"),
        cost=_reported_cost(counted),
    )


def chat_billing(document: Counted) -> Billing:
    """Return the service tier."""
    return _billing(service_tier=document.get("service_tier"))


def _reported_cost(counted: Counted) -> Decimal | None:
    """Return the dollars that OpenRouter reports.

    This is its own price, plus the host's price if you pay both.
    """
    details = counted.get("cost_details")
    if not isinstance(details, dict):
        return None
    upstream = details.get("upstream_inference_cost") if counted.get("is_byok") else 0
    try:
        return as_dollars(counted.get("cost"), "cost ") + as_dollars(upstream, "cost ")
    except ConfigurationError:
        return None


# OpenAI's responses API


def responses_usage(counted: Counted) -> Usage:
    """Return the tokens."""
    prompt = counted.get("input_tokens_details") or {}
    answer = counted.get("output_tokens_details") or {}
    return _usage(
        prompt=token_count(counted.get("input_tokens")),
        answer=token_count(counted.get("output_tokens")),
        cached=prompt.get("cached_tokens"),
        cache_writes=prompt.get("cache_write_tokens"),
        reasoning=answer.get("reasoning_tokens"),
        total=counted.get("total_tokens"),
    )


def responses_billing(document: Counted, kinds: Iterable[str]) -> Billing:
    """Return the service tier and the searches, given the kinds of the items."""
    searches = sum(kind == "web_search_call" for kind in kinds)
    return _billing(service_tier=document.get("service_tier"), web_searches=searches)


# Anthropic


def anthropic_usage(counted: Counted) -> Usage:
    """Return the tokens; this API counts its cache beside the input."""
    read = token_count(counted.get("cache_read_input_tokens"))
    written = token_count(counted.get("cache_creation_input_tokens"))
    return _usage(
        prompt=token_count(counted.get("input_tokens")) + written + read,
        answer=token_count(counted.get("output_tokens")),
        cached=read,
        cache_writes=written,
        reasoning=(counted.get("output_tokens_details") or {}).get("thinking_tokens"),
    )


def anthropic_billing(counted: Counted) -> Billing:
    """Return the input cached for an hour, the searches and the service tier."""
    return _billing(
        cache_write_1h_tokens=(counted.get("cache_creation") or {}).get("ephemeral_1h_input_tokens"),
        web_searches=(counted.get("server_tool_use") or {}).get("web_search_requests"),
        service_tier=counted.get("service_tier"),
    )


# Google


def gemini_usage(counted: Counted) -> Usage:
    """Return the tokens.

    Google's own tools count as prompt, and thoughts as answer.
    """
    thoughts = token_count(counted.get("thoughtsTokenCount"))
    tools = token_count(counted.get("toolUsePromptTokenCount"))
    return _usage(
        prompt=token_count(counted.get("promptTokenCount")) + tools,
        answer=token_count(counted.get("candidatesTokenCount")) + thoughts,
        cached=counted.get("cachedContentTokenCount"),
        reasoning=thoughts,
        total=counted.get("totalTokenCount"),
    )


def gemini_billing(counted: Counted) -> Billing:
    """Return the service tier, and the input that is audio."""
    details = [each for each in counted.get("promptTokensDetails") or () if isinstance(each, dict)]
    audio = sum(token_count(each.get("tokenCount")) for each in details if each.get("modality") == "AUDIO")
    return _billing(service_tier=counted.get("serviceTier"), input_audio_tokens=audio)


# Shared by all providers


def _usage(
    *,
    prompt: int,
    answer: int,
    cached: object = 0,
    cache_writes: object = 0,
    reasoning: object = 0,
    total: object = 0,
    cost: Decimal | None = None,
) -> Usage:
    """Return the tokens; a total above its parts includes reasoning.

    Every answer takes some tokens: if a host counts none, it does not report the usage, which is then
    unknown.
    """
    thoughts, hidden = token_count(reasoning), token_count(total) - prompt - answer
    if hidden > 0:
        answer, thoughts = answer + hidden, max(thoughts, hidden)
    return Usage(
        input=prompt,
        output=answer,
        cached=token_count(cached),
        reasoning=thoughts,
        cost=cost,
        reported=prompt + answer > 0,
        cache_writes=token_count(cache_writes),
    )


def _billing(**given: object) -> Billing:
    """Return the texts, and the counts above zero."""
    billing: Billing = {}
    for name, value in given.items():
        if isinstance(value, str):
            billing[name] = value.lower()
        elif count := token_count(value):
            billing[name] = count
    return billing
