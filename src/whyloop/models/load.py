"""From a name like "anthropic:claude-sonnet-4-5" to a model that can be asked."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any

from whyloop.errors import ConfigurationError
from whyloop.models.presets import QUIRKS, address_of, find_preset, key_of
from whyloop.models.provider import ProviderApi, Settings, ToolChoice
from whyloop.values.text import shortened

if TYPE_CHECKING:
    from whyloop.models.http import HttpModel

_OWN_OPTIONS = frozenset(
    {
        *("base_url", "api_key", "headers", "timeout", "max_concurrency", "temperature", "max_tokens"),
        *("tool_choice", "parallel_tool_calls", "response_format", "stream", "quirks"),
    }
)
# Common options of providers, to recognise a misspelt one.
_PROVIDER_OPTIONS = frozenset(
    {
        *("top_p", "top_k", "seed", "stop", "stop_sequences", "frequency_penalty", "presence_penalty"),
        *("logprobs", "top_logprobs", "logit_bias", "max_completion_tokens", "max_output_tokens", "user"),
        *("reasoning", "reasoning_effort", "thinking", "verbosity", "modalities", "prediction", "store"),
        *("metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("stream_options", "tools", "text", "include", "truncation", "previous_response_id", "conversation"),
        *("container", "output_config", "mcp_servers", "context_management", "cache_control", "betas"),
        *("generationConfig", "safetySettings", "systemInstruction", "toolConfig", "cachedContent"),
        *("provider", "models", "transforms", "plugins", "extra_body", "repetition_penalty", "min_p"),
    }
)

_APIS = {
    "openai-chat": ("whyloop.models.openai_chat", "OpenAIChat"),
    "openai-responses": ("whyloop.models.openai_responses", "OpenAIResponses"),
    "anthropic": ("whyloop.models.anthropic", "AnthropicMessages"),
    "gemini": ("whyloop.models.gemini", "GeminiContent"),
}


def load(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    max_concurrency: int | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    tool_choice: ToolChoice | None = None,
    parallel_tool_calls: bool | None = None,
    response_format: Mapping[str, Any] | None = None,
    stream: bool = True,
    quirks: Iterable[str] = (),
    **extra: Any,
) -> HttpModel:
    """Return the model that a name stands for; a missing key or option is an error here, not later.

    `quirks` adds habits of a host that has no preset of its own; `whyloop.models.presets` lists them.
    Keywords that whyloop does not know go into every request as they are, `tools` beside those of the agent.
    """
    quirks = frozenset([quirks] if isinstance(quirks, str) else quirks)
    _check_options(temperature, max_tokens, tool_choice)
    _check_names(extra, quirks)
    provider, preset, model = find_preset(name)
    address = address_of(provider, preset, base_url)
    key = key_of(provider, preset, api_key, own_address=base_url is not None)
    settings = Settings(
        model=model,
        stream=stream,
        temperature=temperature,
        max_tokens=max_tokens,
        tool_choice=tool_choice,
        parallel_tool_calls=parallel_tool_calls,
        response_format=_schema(response_format),
        extra=extra,
        quirks=preset.quirks | quirks,
    )
    if "no_keep_alive" in settings.quirks:
        headers = {"connection": "close", **(headers or {})}
    if preset.key_header and key:
        headers = {preset.key_header: key, **(headers or {})}
    return _http_model()(
        _provider_api(preset.api),
        settings,
        base_url=address,
        name=name,
        api_key=None if preset.key_header else key,
        secret=key,
        headers=headers,
        timeout=timeout,
        max_concurrency=max_concurrency,
    )


def _check_options(temperature: object, max_tokens: object, tool_choice: object) -> None:
    if temperature is not None and (
        not isinstance(temperature, int | float) or isinstance(temperature, bool) or not isfinite(temperature)
    ):
        raise ConfigurationError(f"temperature is a number, not {temperature!r}")
    if max_tokens is not None and (
        not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1
    ):
        raise ConfigurationError(f"max_tokens is a whole number greater than zero, not {max_tokens!r}")
    if tool_choice is not None and (not isinstance(tool_choice, str) or not tool_choice):
        raise ConfigurationError(
            f"tool_choice is auto, none, required or the name of a tool, not {tool_choice!r}"
        )


def _schema(given: object) -> Mapping[str, Any] | None:
    """Return the JSON schema that an answer has to fit, also out of the wrapping that OpenAI has for it."""
    if given is None:
        return None
    if isinstance(given, Mapping) and given.get("type") == "json_schema":
        inner = given.get("json_schema", given)  # The responses API has it without the inner wrapping.
        given = inner.get("schema") if isinstance(inner, Mapping) else None
    # These are types of an API, and not of a schema.
    if not isinstance(given, Mapping) or given.get("type") in ("json_object", "json_schema", "text"):
        raise ConfigurationError(
            f"response_format is the JSON schema that the answer has to fit, not {shortened(repr(given), 80)}"
        )
    return given


def _check_names(extra: Mapping[str, Any], quirks: Iterable[str]) -> None:
    """Refuse an option that is spelt almost like a known one: it would be sent, and change nothing."""
    for name in extra:
        alike = get_close_matches(name, _OWN_OPTIONS | _PROVIDER_OPTIONS, 1, 0.85)
        if alike and alike[0] != name:
            raise ConfigurationError(f"unknown option {name!r}: did you mean {alike[0]!r}?")
    for quirk in quirks:
        if quirk not in QUIRKS:
            raise ConfigurationError(f"unknown quirk {quirk!r}: choose from {', '.join(sorted(QUIRKS))}")


def _provider_api(name: str) -> ProviderApi:
    module, api = _APIS[name]
    made: ProviderApi = getattr(importlib.import_module(module), api)()
    return made


def _http_model() -> type[HttpModel]:
    try:
        from whyloop.models.http import HttpModel
    except ImportError as error:
        raise ConfigurationError(
            f"talking to a real model needs an HTTP client: pip install 'whyloop[models]' ({error})"
        ) from None
    return HttpModel
