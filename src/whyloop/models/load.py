"""From a name like "anthropic:claude-sonnet-4-5" to a model that can be asked."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from whyloop.errors import ConfigurationError
from whyloop.models.presets import PRESETS, QUIRKS, Preset
from whyloop.models.wire import Settings, ToolChoice, WireFormat
from whyloop.values.text import shortened

if TYPE_CHECKING:
    from whyloop.models.http import HttpModel

# Other names under which people keep the same key.
_ALSO = {"GEMINI_API_KEY": "GOOGLE_API_KEY", "HF_TOKEN": "HUGGINGFACE_API_KEY"}

# How the models of each maker are called.
_MODELS = {
    "openai": re.compile(r"gpt-|o\d|chatgpt|codex", re.IGNORECASE),
    "anthropic": re.compile(r"claude", re.IGNORECASE),
    "gemini": re.compile(r"gemini", re.IGNORECASE),
    "mistral": re.compile(r"(?:mi|co|ma|mini|dev|pix)\w*str[ai]l", re.IGNORECASE),
    "deepseek": re.compile(r"deepseek", re.IGNORECASE),
    "xai": re.compile(r"grok", re.IGNORECASE),
    "ollama": re.compile(r"llama|qwen|gemma|phi|smollm", re.IGNORECASE),
}

_OWN_OPTIONS = frozenset(
    {
        *("base_url", "api_key", "headers", "timeout", "max_concurrency", "temperature", "max_tokens"),
        *("tool_choice", "parallel_tool_calls", "response_format", "stream", "quirks"),
    }
)
# What people pass through to their providers most; only there to tell a misspelt one.
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

_WIRES = {
    "openai-chat": ("whyloop.models.openai_chat.client", "OpenAIChat"),
    "openai-responses": ("whyloop.models.openai_responses.client", "OpenAIResponses"),
    "anthropic": ("whyloop.models.anthropic.client", "AnthropicMessages"),
    "gemini": ("whyloop.models.gemini.client", "GeminiContent"),
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
    """The model that a name stands for; whatever is missing is told here, before the first request.

    `quirks` adds habits of a host that has no preset of its own; `whyloop.models.presets` lists them.
    Keywords that whyloop does not know go into every request as they are, `tools` beside those of the agent.
    """
    quirks = frozenset([quirks] if isinstance(quirks, str) else quirks)
    _check_options(temperature, max_tokens, tool_choice)
    _check_names(extra, quirks)
    provider, preset, model = _named(name)
    address = _address(provider, preset, base_url)
    key = _key(provider, preset, api_key, own_address=base_url is not None)
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
        _wire(preset.wire),
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
    """The JSON schema that an answer has to fit, also out of the wrapping that OpenAI has for it."""
    if given is None:
        return None
    if isinstance(given, Mapping) and given.get("type") == "json_schema":
        inner = given.get("json_schema", given)  # The responses API has it without the inner wrapping.
        given = inner.get("schema") if isinstance(inner, Mapping) else None
    # These are words of an API, and no types that a schema knows.
    if not isinstance(given, Mapping) or given.get("type") in ("json_object", "json_schema", "text"):
        raise ConfigurationError(
            f"response_format is the JSON schema that the answer has to fit, not {shortened(repr(given), 80)}"
        )
    return given


def _named(name: str) -> tuple[str, Preset, str]:
    if not isinstance(name, str):
        raise ConfigurationError(f"a model is named by text such as openai:gpt-5, not by {name!r}")
    provider, colon, model = name.partition(":")
    preset = PRESETS.get(provider)
    if preset is None:
        suggested = _suggestion(provider, model if colon else None)
        hint = f"did you mean {suggested!r}?" if suggested else "write provider:model."
        problem = f"unknown provider {provider!r}" if colon else f"no provider in {name!r}"
        raise ConfigurationError(f"{problem}: {hint} The providers are {', '.join(PRESETS)}")
    if not model.strip():
        raise ConfigurationError(f"{name!r} names no model: write provider:model, such as openai:gpt-5")
    return provider, preset, model


def _suggestion(provider: str, model: str | None) -> str | None:
    """Return the name that was probably meant: by the maker of a model, or by a provider spelt like this."""
    if model is None:
        maker = next((maker for maker, models in _MODELS.items() if models.match(provider)), None)
        return f"{maker}:{provider}" if maker else None
    alike = get_close_matches(provider.lower(), PRESETS, 1, 0.6)
    return f"{alike[0]}:{model}" if alike else None


def _check_names(extra: Mapping[str, Any], quirks: Iterable[str]) -> None:
    """Refuse an option that is spelt almost like a known one: it would be sent, and change nothing."""
    for name in extra:
        alike = get_close_matches(name, _OWN_OPTIONS | _PROVIDER_OPTIONS, 1, 0.85)
        if alike and alike[0] != name:
            raise ConfigurationError(f"unknown option {name!r}: did you mean {alike[0]!r}?")
    for quirk in quirks:
        if quirk not in QUIRKS:
            raise ConfigurationError(f"unknown quirk {quirk!r}: choose from {', '.join(sorted(QUIRKS))}")


def _address(provider: str, preset: Preset, given: str | None) -> str:
    variable = preset.address_variable
    if given is not None and not isinstance(given, str):
        raise ConfigurationError(f"base_url is the text of an address, not {given!r}")
    # One that is given and empty is refused: what was meant for another host must not go to this one.
    address = given
    if address is None:
        address = os.environ.get(variable) if variable else preset.base_url
        if not address:
            raise ConfigurationError(
                f"{provider} has its own address for everyone: set {variable} or pass base_url=…"
            )
    path = _path_of(address)
    return address.rstrip("/") + "/openai/v1" if variable and not path.strip("/") else address


def _path_of(address: str) -> str:
    """The path of an address that a request can be sent to; any other is refused."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"{address!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not host or not address.isprintable() or " " in address:
        raise ConfigurationError(f"{address!r} is no address: write http://… or https://… with a host")
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"the address of {host} has a name or a password in it: use api_key=… or headers=…"
        )
    if parts.query or parts.fragment:
        raise ConfigurationError(f"the address of {host} goes on after its path: leave out ?… and #…")
    return parts.path


def _key(provider: str, preset: Preset, given: str | None, *, own_address: bool) -> str | None:
    names = (preset.key, _ALSO.get(preset.key)) if preset.key else ()
    kept = next((found for name in names if name and (found := os.environ.get(name))), "")
    key = (given or kept).strip()
    # Somebody else's address may need no key, unless every address of this provider is somebody's own.
    needed = preset.key and (preset.address_variable or not own_address)
    if needed and not key:
        raise ConfigurationError(f"there is no key for {provider}: set {preset.key} or pass api_key=…")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(f"the key for {provider} has characters in it that no key has")
    return key or None


def _wire(name: str) -> WireFormat:
    module, wire = _WIRES[name]
    made: WireFormat = getattr(importlib.import_module(module), wire)()
    return made


def _http_model() -> type[HttpModel]:
    try:
        from whyloop.models.http import HttpModel
    except ImportError as error:
        raise ConfigurationError(
            f"talking to a real model needs an HTTP client: pip install 'whyloop[models]' ({error})"
        ) from None
    return HttpModel
