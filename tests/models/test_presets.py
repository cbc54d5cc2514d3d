"""From a name to a model; a missing key or address is an error at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.models.faulty_server import KEY, FaultyServer, chat_answer, say
from whyloop import Message, ModelRequest, ToolSpec
from whyloop.errors import ConfigurationError
from whyloop.models import load
from whyloop.models.presets import PRESETS, QUIRKS

KEYED = sorted(name for name, preset in PRESETS.items() if preset.key)
LOCAL = sorted(name for name, preset in PRESETS.items() if not preset.key)
AZURE = "https://mine.openai.azure.com"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key of whoever runs the tests is ever used."""
    for preset in PRESETS.values():
        for variable in (preset.key, preset.address_variable):
            if variable:
                monkeypatch.delenv(variable, raising=False)


# Presets


@pytest.mark.parametrize("provider", KEYED)
def test_every_host_loads_with_a_key_from_its_variable(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = PRESETS[provider]
    monkeypatch.setenv(str(preset.key), KEY)
    if preset.address_variable:
        monkeypatch.setenv(preset.address_variable, AZURE)
    model = load(f"{provider}:some-model")
    assert model.name == f"{provider}:some-model"
    assert model.settings.model == "some-model"
    assert model.url.startswith(preset.base_url or AZURE)
    assert KEY not in repr(model)
    assert KEY in model.secrets


@pytest.mark.parametrize("provider", LOCAL)
def test_a_host_on_your_own_machine_needs_no_key(provider: str) -> None:
    assert load(f"{provider}:llama3:8b").settings.model == "llama3:8b"
    assert load(f"{provider}:m").url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("provider", KEYED)
def test_a_missing_key_is_reported_with_its_variable(provider: str) -> None:
    preset = PRESETS[provider]
    with pytest.raises(ConfigurationError) as refused:
        load(f"{provider}:m", base_url=AZURE if preset.address_variable else None)
    assert str(refused.value) == (
        f"missing key for {provider}: set the environment variable {preset.key}, or in Python api_key=…"
    )


@pytest.mark.parametrize("key", ["", "  "])
def test_an_empty_key_is_a_missing_one(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigurationError, match="set the environment variable OPENAI_API_KEY"):
        load("openai:gpt-5")


def test_a_key_that_is_passed_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    assert load("openai:gpt-5", api_key=f" {KEY}\n").secrets == (KEY,)


def test_another_address_may_need_no_key() -> None:
    assert load("openai:gpt-5", base_url="http://127.0.0.1:8000/v1").secrets == ()


@pytest.mark.parametrize("key", ["sk-…", "sk-a b", "sk-a\nb"])
def test_a_key_that_is_none_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ConfigurationError, match="use ASCII characters without spaces") as refused:
        load("openai:gpt-5", api_key=key)
    assert key not in str(refused.value)


# Names and addresses


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as refused:
        load("opnai:gpt-5", api_key=KEY)
    assert "unknown provider 'opnai': did you mean 'openai:gpt-5'?" in str(refused.value)
    assert all(name in str(refused.value) for name in PRESETS)


@pytest.mark.parametrize("name", ["openai", "openai:", "openai: "])
def test_a_name_without_a_model(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no model in .*: write provider:model"):
        load(name, api_key=KEY)


def test_a_name_that_is_not_text() -> None:
    nothing: Any = None
    with pytest.raises(ConfigurationError, match="invalid model name None"):
        load(nothing)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "invalid address ''"),
        ("api.example.com/v1", ": write http://… or https://… with a host"),
        ("ftp://example.com", "invalid address"),
        ("http://", "invalid address"),
        ("http://exa mple.com", "invalid address"),
        ("http://example.com:99999", ": Port out of range"),
        ("http://[::1", ": Invalid IPv6 URL"),
        ("https://me:pass@example.com/v1", "has a name or a password in it: use api_key=… or headers=…"),
        ("https://example.com/v1?key=1", "has more than a path"),
    ],
)
def test_a_bad_address(address: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load("openai:gpt-5", api_key=KEY, base_url=address)
    assert words in str(refused.value)
    assert "pass@" not in str(refused.value)


def test_a_slash_at_the_end_of_an_address_does_not_matter() -> None:
    for address in ("http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1/"):
        assert load("openai:m", base_url=address).url == "http://127.0.0.1:1/v1/chat/completions"


# Azure


@pytest.mark.parametrize("address", [AZURE, f"{AZURE}/", f"{AZURE}/openai/v1", f"{AZURE}/openai/v1/"])
def test_azure_has_an_address_for_each_account(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = f"{AZURE}/openai/v1/chat/completions"
    assert load("azure:gpt", api_key=KEY, base_url=address).url == expected
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", address)
    assert load("azure:gpt", api_key=KEY).url == expected


def test_azure_without_an_address() -> None:
    with pytest.raises(ConfigurationError, match="set AZURE_OPENAI_ENDPOINT or pass base_url=…"):
        load("azure:gpt", api_key=KEY)


async def test_azure_gets_its_key_in_a_separate_header() -> None:
    async with FaultyServer(say(chat_answer())) as server:
        model = load("azure:gpt", api_key=KEY, base_url=server.base_url)
        [_ async for _ in model.respond(ModelRequest((Message.user("Hi"),)))]
    headers = server.requests[0].headers
    assert headers["api-key"] == KEY
    assert "authorization" not in headers


# Options


async def test_options_reach_the_request_and_unknown_ones_pass_through() -> None:
    async with FaultyServer(say(chat_answer())) as server:
        model = load("openai:m", base_url=server.base_url, temperature=0.5, max_tokens=9, seed=7)
        [_ async for _ in model.respond(ModelRequest((Message.user("Hi"),)))]
    sent = server.requests[0].json
    assert (sent["temperature"], sent["max_completion_tokens"], sent["seed"]) == (0.5, 9, 7)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    "given",
    [
        SCHEMA,
        {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}},
        {"type": "json_schema", "name": "place", "schema": SCHEMA},
    ],
)
def test_a_schema_may_come_in_the_wrapping_of_an_api(given: Any) -> None:
    assert load("ollama:m", response_format=given).settings.response_format == SCHEMA


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_object"},
        {"type": "text"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": 7},
        {"type": "json_schema", "json_schema": {"name": "place"}},
        "json",
        7,
    ],
)
def test_a_response_format_that_is_not_a_schema(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"invalid response_format .*: use the JSON schema"):
        load("ollama:m", response_format=given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "invalid max_tokens 0: use a whole number"),
        ({"max_tokens": -1}, "invalid max_tokens -1: use a whole number"),
        ({"max_tokens": 1.5}, "invalid max_tokens 1.5: use a whole number"),
        ({"max_tokens": "9"}, "invalid max_tokens '9': use a whole number"),
        ({"max_tokens": True}, "invalid max_tokens True: use a whole number"),
        ({"temperature": "hot"}, "invalid temperature 'hot': use a number"),
        ({"temperature": True}, "invalid temperature True: use a number"),
        ({"temperature": float("nan")}, "invalid temperature nan: use a number"),
        ({"tool_choice": {"type": "auto"}}, "use auto, none, required or the name of a tool"),
        ({"tool_choice": ""}, "invalid tool_choice '': use auto, none"),
        ({"base_url": 7}, "invalid base_url 7: use text"),
    ],
)
def test_an_option_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load("ollama:m", **options)
    assert words in str(refused.value)


def test_an_empty_address_is_not_azures_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", AZURE)
    with pytest.raises(ConfigurationError, match="invalid address ''"):
        load("azure:gpt", api_key=KEY, base_url="")


# What the guide says


@pytest.mark.parametrize("provider", PRESETS)
def test_the_guide_has_every_host_with_its_variables(provider: str) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    (row,) = [line for line in guide.splitlines() if line.startswith(f"| `{provider}` |")]
    preset = PRESETS[provider]
    for variable in filter(None, (preset.key, preset.address_variable)):
        assert f"`{variable}`" in row
    assert not preset.base_url or str(urlsplit(preset.base_url).netloc) in row


# What it costs


def test_the_client_is_loaded_only_when_a_model_is() -> None:
    program = (
        "import sys, whyloop.models; assert 'aiohttp' not in sys.modules;"
        "whyloop.models.load('ollama:m'); assert 'aiohttp' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_client_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "whyloop.models.http", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigurationError, match=r'pip install "\.\[models\]"'):
        load("ollama:m")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpt-5", "openai:gpt-5"),
        ("o3-mini", "openai:o3-mini"),
        ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("gemini-2.5-pro", "gemini:gemini-2.5-pro"),
        ("grok-4", "xai:grok-4"),
        ("mistral-large-latest", "mistral:mistral-large-latest"),
        ("deepseek-chat", "deepseek:deepseek-chat"),
        ("qwen3", "ollama:qwen3"),
        ("antropic:claude-opus-5", "anthropic:claude-opus-5"),
        ("google:gemini-2.5-pro", None),
        ("something-else", None),
    ],
)
def test_a_name_without_a_known_provider_suggests_the_one_that_was_meant(
    name: str, meant: str | None
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(name, api_key=KEY)
    assert ("did you mean" in str(refused.value)) is (meant is not None)
    assert meant is None or f"did you mean '{meant}'?" in str(refused.value)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("tool_choise", "tool_choice"),
        ("parallel_tool_call", "parallel_tool_calls"),
        ("base_uri", "base_url"),
        ("reasoning_efort", "reasoning_effort"),
    ],
)
def test_a_misspelt_option_is_refused(option: str, meant: str) -> None:
    options: dict[str, Any] = {option: 1}
    with pytest.raises(ConfigurationError, match=f"unknown option '{option}': did you mean '{meant}'?"):
        load("openai:gpt-5", api_key=KEY, **options)


def test_unknown_options_go_to_the_provider() -> None:
    options: dict[str, Any] = {
        "top_p": 1,
        "max_completion_tokens": 9,
        "top_a": 0.5,
        "enable_thinking": True,
        "n": 1,
    }
    assert load("openai:gpt-5", api_key=KEY, **options).settings.extra == options


def test_an_unknown_quirk_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown quirk 'nostore': choose from .*no_store"):
        load("openai:gpt-5", api_key=KEY, quirks=["nostore"])
    assert "no_store" in load("openai:gpt-5", api_key=KEY, quirks="no_store").settings.quirks
    assert all(preset.quirks <= QUIRKS.keys() for preset in PRESETS.values())


WEATHER = ToolSpec("weather", "The weather.", {"type": "object", "properties": {}})


@pytest.mark.parametrize("provider", ["openai", "openai-responses", "anthropic", "gemini"])
def test_tools_of_the_provider_stand_beside_those_of_the_agent(provider: str) -> None:
    search = {"type": "web_search"}
    model = load(f"{provider}:m", api_key=KEY, tools=[search])
    for tools, expected in (((WEATHER,), 2), ((), 1)):
        body = model.api.encode(ModelRequest((Message.user("Hi"),), tools), model.settings)
        sent = json.loads(body)["tools"]
        assert len(sent) == expected
        assert sent[-1] == search
        assert ("weather" in json.dumps(sent)) is bool(tools)
