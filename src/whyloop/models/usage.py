"""The tokens of an answer and their price, as each API reports them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from whyloop.errors import ConfigurationError
from whyloop.models.provider import token_count
from whyloop.values.model import Usage
from whyloop.values.price import as_dollars

Counted = Mapping[str, Any]
Billing = dict[str, int | str]
"""The facts besides tokens that a price depends on, under the names of the price list."""

# The names that hosts have for the part of a prompt that was in their cache.
_CACHED = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")


# OpenAI's chat API, and the hosts that speak it


def chat_usage(document: Counted) -> Usage:
    """Return the tokens, from wherever this host counts them."""
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
    """Return the dollars that OpenRouter reports: its price, and the host's where you pay that one too."""
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
    """Return the input that the cache keeps for an hour, the searches, and the service tier."""
    return _billing(
        cache_write_1h_tokens=(counted.get("cache_creation") or {}).get("ephemeral_1h_input_tokens"),
        web_searches=(counted.get("server_tool_use") or {}).get("web_search_requests"),
        service_tier=counted.get("service_tier"),
    )


# Google


def gemini_usage(counted: Counted) -> Usage:
    """Return the tokens; Google's own tools count to the prompt, thoughts to the answer."""
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


# What all have in common


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

    No answer takes no tokens at all: a host that counts none does not report its usage, which is unknown.
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
