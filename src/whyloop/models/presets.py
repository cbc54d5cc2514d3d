"""The hosts that people use, each only an address, a key and its known habits."""

from __future__ import annotations

from msgspec import Struct


class Preset(Struct, frozen=True):
    """A host: which wire format it speaks, where it is, which variable holds its key.

    A host without a key variable runs on your own machine and needs no key. `address_variable`
    names the variable with the address of a host that has a different one for everyone.
    """

    wire: str
    base_url: str | None
    key: str | None = None
    quirks: frozenset[str] = frozenset()
    address_variable: str | None = None
    key_header: str | None = None


# Quirks: `max_tokens` (not max_completion_tokens), `no_stream_options`, `tool_choice_any` (any, not
# required), `no_keep_alive` (a connection serves one request), `no_encrypted_reasoning` (reasoning
# items are neither kept nor returned), `no_store` (does not know the field), `no_developer` (knows only
# system messages), `no_extras` (refuses fields of other hosts), `short_ids` (nine letters and digits),
# `reasoning_back` (wants `reasoning_content` with every assistant message).
QUIRKS = frozenset(
    {
        *("max_tokens", "no_stream_options", "tool_choice_any", "no_keep_alive", "no_encrypted_reasoning"),
        *("no_store", "no_developer", "no_extras", "short_ids", "reasoning_back"),
    }
)
_OLD = frozenset({"max_tokens", "no_developer"})

PRESETS = {
    "openai": Preset("openai-chat", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openai-responses": Preset("openai-responses", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Preset("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "gemini": Preset("gemini", "https://generativelanguage.googleapis.com/v1beta", "GEMINI_API_KEY"),
    "groq": Preset(
        "openai-chat",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        frozenset({"no_developer", "no_extras"}),
    ),
    "openrouter": Preset("openai-chat", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "mistral": Preset(
        "openai-chat",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        frozenset(
            {"max_tokens", "no_stream_options", "tool_choice_any", "no_developer", "no_extras", "short_ids"}
        ),
    ),
    "deepseek": Preset(
        "openai-chat", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", _OLD | {"reasoning_back"}
    ),
    "xai": Preset("openai-chat", "https://api.x.ai/v1", "XAI_API_KEY"),
    "together": Preset("openai-chat", "https://api.together.xyz/v1", "TOGETHER_API_KEY", _OLD),
    "cerebras": Preset("openai-chat", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "huggingface": Preset("openai-chat", "https://router.huggingface.co/v1", "HF_TOKEN", _OLD),
    "ollama": Preset("openai-chat", "http://127.0.0.1:11434/v1", None, _OLD),
    "lmstudio": Preset("openai-chat", "http://127.0.0.1:1234/v1", None, _OLD),
    "vllm": Preset("openai-chat", "http://127.0.0.1:8000/v1", None, _OLD),
    # llama.cpp promises to keep a connection and closes it after a stream.
    "llama.cpp": Preset(
        "openai-chat",
        "http://127.0.0.1:8080/v1",
        None,
        frozenset({"max_tokens", "no_developer", "no_keep_alive"}),
    ),
    "azure": Preset(
        "openai-chat",
        None,
        "AZURE_OPENAI_API_KEY",
        address_variable="AZURE_OPENAI_ENDPOINT",
        key_header="api-key",
    ),
}
