"""Presets of hosts, and `load`, which returns a model for a name like "openai:gpt-5".

A `Preset` has a host's address, the variable with its key, and its known quirks (`QUIRKS`).
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from whyloop.errors import ConfigurationError, how_to_install
from whyloop.models.prices import own_price
from whyloop.models.provider import ProviderApi, Settings, ToolChoice
from whyloop.values.price import Price
from whyloop.values.text import shortened

if TYPE_CHECKING:
    from whyloop.models.http import HttpModel


class Preset(Struct, frozen=True):
    """A host and how to reach it."""

    api: str
    """The API that it uses."""
    base_url: str | None
    """Its address; None if every account has its own."""
    key: str | None = None
    """The variable with the key; a host without one runs on your own machine and needs no key."""
    quirks: frozenset[str] = frozenset()
    """Its known quirks, from `QUIRKS`."""
    address_variable: str | None = None
    """The variable with the address, if every account has its own."""
    key_header: str | None = None
    """The header for the key, if it differs from that of the API."""


QUIRKS = {
    "max_tokens": "knows max_tokens, but not max_completion_tokens",
    "no_stream_options": "does not know stream_options",
    "tool_choice_any": 'uses "any" instead of "required" as the tool choice',
    "no_keep_alive": "serves one request for each connection",
    "no_encrypted_reasoning": "neither keeps nor returns reasoning items",
    "no_store": "does not know the field store",
    "no_developer": "knows system messages, but no developer messages",
    "no_extras": "rejects fields of other hosts",
    "short_ids": "requires ids of nine letters and digits for tool calls",
    "no_schema": "accepts no JSON schema for the answer",
    "no_schema_with_tools": "accepts no JSON schema for the answer together with tools",
    "no_tools": "knows no tools",
    "no_tool_choice": "knows no tool choice: a request that must not lead to a call has no tools",
    "reasoning_back": "requires reasoning_content with every assistant message",
}
"""The known differences of hosts from others with the same API."""

_OLD = frozenset({"max_tokens", "no_developer"})
# A server that makes an answer fit a grammar cannot let the model call a tool instead.
_LOCAL = _OLD | {"no_schema_with_tools"}

PRESETS = {
    "openai": Preset("openai-chat", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openai-responses": Preset("openai-responses", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Preset("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "gemini": Preset("gemini", "https://generativelanguage.googleapis.com/v1beta", "GEMINI_API_KEY"),
    "groq": Preset(
        "openai-chat",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        frozenset({"no_developer", "no_extras", "no_schema"}),
    ),
    "openrouter": Preset(
        "openai-chat", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", frozenset({"no_schema"})
    ),
    "mistral": Preset(
        "openai-chat",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        frozenset(
            {"max_tokens", "no_stream_options", "tool_choice_any", "no_developer", "no_extras", "short_ids"}
            | {"no_schema_with_tools"}
        ),
    ),
    "deepseek": Preset(
        "openai-chat",
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        _OLD | {"reasoning_back", "no_schema"},
    ),
    "xai": Preset("openai-chat", "https://api.x.ai/v1", "XAI_API_KEY"),
    "together": Preset(
        "openai-chat", "https://api.together.xyz/v1", "TOGETHER_API_KEY", _OLD | {"no_schema"}
    ),
    "cerebras": Preset(
        "openai-chat", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", frozenset({"no_schema_with_tools"})
    ),
    "huggingface": Preset(
        "openai-chat", "https://router.huggingface.co/v1", "HF_TOKEN", _OLD | {"no_schema"}
    ),
    "ollama": Preset("openai-chat", "http://127.0.0.1:11434/v1", None, _LOCAL | {"no_tool_choice"}),
    "lmstudio": Preset("openai-chat", "http://127.0.0.1:1234/v1", None, _LOCAL),
    "vllm": Preset("openai-chat", "http://127.0.0.1:8000/v1", None, _LOCAL),
    # llama.cpp promises to keep a connection and closes it after a stream.
    "llama.cpp": Preset("openai-chat", "http://127.0.0.1:8080/v1", None, _LOCAL | {"no_keep_alive"}),
    "azure": Preset(
        "openai-chat",
        None,
        "AZURE_OPENAI_API_KEY",
        address_variable="AZURE_OPENAI_ENDPOINT",
        key_header="api-key",
    ),
}

LOCAL = "local"
"""The name of the small real model on this machine."""

# Other variables in which people keep the same key.
_ALSO = {"GEMINI_API_KEY": "GOOGLE_API_KEY", "HF_TOKEN": "HUGGINGFACE_API_KEY"}
# The names of the models of each maker.
_MODELS = {
    "openai": re.compile(r"gpt-|o\d|chatgpt|codex", re.IGNORECASE),
    "anthropic": re.compile(r"claude", re.IGNORECASE),
    "gemini": re.compile(r"gemini", re.IGNORECASE),
    "mistral": re.compile(r"(?:mi|co|ma|mini|dev|pix)\w*str[ai]l", re.IGNORECASE),
    "deepseek": re.compile(r"deepseek", re.IGNORECASE),
    "xai": re.compile(r"grok", re.IGNORECASE),
    "ollama": re.compile(r"llama|qwen|gemma|phi|smollm", re.IGNORECASE),
}

# Imported when a model is loaded that needs them.
_APIS = {
    "openai-chat": ("whyloop.models.openai_chat", "OpenAIChat"),
    "openai-responses": ("whyloop.models.openai_responses", "OpenAIResponses"),
    "anthropic": ("whyloop.models.anthropic", "AnthropicMessages"),
    "gemini": ("whyloop.models.gemini", "GeminiContent"),
}

# Common options of providers, to recognize a misspelt one.
_PROVIDER_OPTIONS = (
    *("top_p", "top_k", "seed", "stop", "stop_sequences", "frequency_penalty", "presence_penalty"),
    *("logprobs", "top_logprobs", "logit_bias", "max_completion_tokens", "max_output_tokens", "user"),
    *("reasoning", "reasoning_effort", "thinking", "verbosity", "modalities", "prediction", "store"),
    *("metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("stream_options", "tools", "text", "include", "truncation", "previous_response_id", "conversation"),
    *("container", "output_config", "mcp_servers", "context_management", "cache_control", "betas"),
    *("generationConfig", "safetySettings", "systemInstruction", "toolConfig", "cachedContent"),
    *("provider", "models", "transforms", "plugins", "extra_body", "repetition_penalty", "min_p"),
)


def load(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    max_concurrency: int | None = None,
    retries: int | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    tool_choice: ToolChoice | None = None,
    parallel_tool_calls: bool | None = None,
    response_format: Mapping[str, Any] | None = None,
    stream: bool = True,
    quirks: Iterable[str] = (),
    prices: Price | Mapping[str, Price] | None = None,
    **extra: Any,
) -> HttpModel:
    """Return the model with a name like "openai:gpt-5"; raise if its key is missing.

    "local" is a small real model on this machine, which runs until the process ends.

    Args:
        name: The name of the host and of the model, with a colon between them; or "local".
        base_url: The address of the API. Default: that of the host.
        api_key: The key. Default: the host's own environment variable, such as OPENAI_API_KEY.
        headers: More headers for each request. Default: none.
        timeout: The seconds within which an answer must be complete. Default: 120.
        max_concurrency: The maximum number of requests at once; others wait. Default: no limit.
        retries: How often a request is repeated that failed before the first piece of its answer. Default: 2,
            but 0 for each model of a `FallbackModel` except the last.
        temperature: The randomness of the answers. Default: that of the host.
        max_tokens: The maximum number of tokens of one answer. Default: that of the host.
        tool_choice: Whether the model must call a tool, and which one. Default: the model decides.
        parallel_tool_calls: Whether the model may ask for several calls at once. Default: that of the host.
        response_format: The form of the answer, as the host's API takes it. Default: none.
        stream: False to receive each answer in one piece. Default: True.
        quirks: More quirks of the host, from `whyloop.models.presets.QUIRKS`. Default: those of its preset.
        prices: The price of the model, or prices by model. Default: the list of the extra `prices`.
        **extra: More fields for each request, as they are; `tools` are added to those of the agent.
    """
    if name == LOCAL:
        name, base_url, prices = *_local_model(base_url), prices or Price(input=0, output=0)
    quirks = frozenset([quirks] if isinstance(quirks, str) else quirks)
    _check_options(temperature, max_tokens, tool_choice)
    _check_names(extra, quirks)
    host = _find_host(name, base_url, api_key)
    settings = Settings(
        model=host.model,
        stream=stream,
        temperature=temperature,
        max_tokens=max_tokens,
        tool_choice=tool_choice,
        parallel_tool_calls=parallel_tool_calls,
        response_format=_schema(response_format),
        extra=extra,
        quirks=host.preset.quirks | quirks,
    )
    price = own_price(prices, name, host.model)
    return _model_at(host, settings, headers, timeout, max_concurrency, retries, price)


class _Host(NamedTuple):
    """A host as its model is reached there."""

    name: str
    preset: Preset
    model: str
    address: str
    key: str | None


def _find_host(name: str, base_url: str | None, api_key: str | None) -> _Host:
    provider, preset, model = _find_preset(name)
    address = _address(provider, preset, base_url)
    key = _key(provider, preset, api_key, own_address=base_url is not None)
    return _Host(name, preset, model, address, key)


def _model_at(
    host: _Host,
    settings: Settings,
    headers: Mapping[str, str] | None,
    timeout: float,
    max_concurrency: int | None,
    retries: int | None,
    price: Price | None,
) -> HttpModel:
    preset, key = host.preset, host.key
    if "no_keep_alive" in settings.quirks:
        headers = {"connection": "close", **(headers or {})}
    if preset.key_header and key:
        headers = {preset.key_header: key, **(headers or {})}
    return _http_model()(
        _provider_api(preset.api),
        settings,
        base_url=host.address,
        name=host.name,
        api_key=None if preset.key_header else key,
        headers=headers,
        timeout=timeout,
        max_concurrency=max_concurrency,
        price=price,
        retries=retries,
    )


def _local_model(base_url: str | None) -> tuple[str, str]:
    """Return the name and address of the local model, and start it if necessary."""
    from whyloop.models.local import MODEL, shared_server

    if base_url is not None:
        raise ConfigurationError(f"invalid base_url of {LOCAL!r}, which starts its own server: leave it out")
    return f"llama.cpp:{MODEL}", shared_server().base_url


def _check_options(temperature: object, max_tokens: object, tool_choice: object) -> None:
    if temperature is not None and (
        not isinstance(temperature, int | float) or isinstance(temperature, bool) or not isfinite(temperature)
    ):
        raise ConfigurationError(f"invalid temperature {temperature!r}: use a number")
    if max_tokens is not None and (
        not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1
    ):
        raise ConfigurationError(f"invalid max_tokens {max_tokens!r}: use a whole number greater than zero")
    if tool_choice is not None and (not isinstance(tool_choice, str) or not tool_choice):
        raise ConfigurationError(
            f"invalid tool_choice {tool_choice!r}: use auto, none, required or the name of a tool"
        )


def _schema(given: object) -> Mapping[str, Any] | None:
    """Return the JSON schema in a response format, without OpenAI's wrapping."""
    if given is None:
        return None
    if isinstance(given, Mapping) and given.get("type") == "json_schema":
        inner = given.get("json_schema", given)  # The responses API has it without the inner wrapping.
        given = inner.get("schema") if isinstance(inner, Mapping) else None
    # These are types of an API, not of a schema.
    if not isinstance(given, Mapping) or given.get("type") in ("json_object", "json_schema", "text"):
        raise ConfigurationError(
            f"invalid response_format {shortened(repr(given), 80)}: use the JSON schema of the answer"
        )
    return given


def _check_names(extra: Mapping[str, Any], quirks: Iterable[str]) -> None:
    """Refuse a misspelt option and an unknown quirk."""
    known = [*(load.__kwdefaults__ or ()), *_PROVIDER_OPTIONS]
    for name in extra:
        alike = get_close_matches(name, known, 1, 0.85)
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
            f"talking to a real model needs an HTTP client: {how_to_install('models')} ({error})"
        ) from None
    return HttpModel


def _find_preset(name: str) -> tuple[str, Preset, str]:
    """Return the provider, its preset and the model in a name like "openai:gpt-5"."""
    if not isinstance(name, str):
        raise ConfigurationError(f"invalid model name {name!r}: use text such as openai:gpt-5")
    provider, colon, model = name.partition(":")
    preset = PRESETS.get(provider)
    if preset is None:
        suggested = _suggestion(provider, model if colon else None)
        hint = f"did you mean {suggested!r}?" if suggested else "write provider:model."
        problem = f"unknown provider {provider!r}" if colon else f"no provider in {name!r}"
        raise ConfigurationError(
            f"{problem}: {hint} The providers are {', '.join(PRESETS)}; {LOCAL} is on this machine"
        )
    if not model.strip():
        raise ConfigurationError(f"no model in {name!r}: write provider:model, such as openai:gpt-5")
    return provider, preset, model


def _suggestion(provider: str, model: str | None) -> str | None:
    """Return the name that was probably meant, if a similar one is known."""
    if model is None:
        maker = next((maker for maker, models in _MODELS.items() if models.match(provider)), None)
        return f"{maker}:{provider}" if maker else None
    alike = get_close_matches(provider.lower(), PRESETS, 1, 0.6)
    return f"{alike[0]}:{model}" if alike else None


def _address(provider: str, preset: Preset, given: str | None) -> str:
    """Return the address of a host: the given one, or that of its preset."""
    variable = preset.address_variable
    if given is not None and not isinstance(given, str):
        raise ConfigurationError(f"invalid base_url {given!r}: use text such as https://…")
    # An empty address is refused: a request for another host must not be sent to this one.
    address = given
    if address is None:
        address = os.environ.get(variable) if variable else preset.base_url
        if not address:
            raise ConfigurationError(
                f"{provider} has a different address for each account: set {variable} or pass base_url=…"
            )
    path = _path_of(address)
    return address.rstrip("/") + "/openai/v1" if variable and not path.strip("/") else address


def _path_of(address: str) -> str:
    """Return the path of an address; refuse one that no request can be sent to."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"invalid address {address!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or not address.isprintable() or " " in address:
        raise ConfigurationError(f"invalid address {address!r}: write http://… or https://… with a host")
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"the address of {host} has a name or a password in it: use api_key=… or headers=…"
        )
    if parts.query or parts.fragment:
        raise ConfigurationError(f"the address of {host} has more than a path: leave out ?… and #…")
    return parts.path


def _key(provider: str, preset: Preset, given: str | None, *, own_address: bool) -> str | None:
    """Return the key for a host, from the option or a variable; None if not needed."""
    names = (preset.key, _ALSO.get(preset.key)) if preset.key else ()
    kept = next((found for name in names if name and (found := os.environ.get(name))), "")
    key = (given or kept).strip()
    # Another address may need no key, unless every account of this provider has its own address.
    needed = preset.key and (preset.address_variable or not own_address)
    if needed and not key:
        raise ConfigurationError(
            f"missing key for {provider}: set the environment variable {preset.key}, or in Python api_key=…"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"invalid key for {provider}: use ASCII characters without spaces and line breaks"
        )
    return key or None
