"""From the body of a chat completion to a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.failures import stream_error
from whyloop.models.openai_chat.request import NAME
from whyloop.models.parts import arguments_of, count, json_of, name, new_call_id, usage
from whyloop.rules.written_calls import without_calls
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ModelSource
from whyloop.values.usage import Usage

_FINISH = {
    "stop": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
    "error": FinishReason.ERROR,
    "network_error": FinishReason.ERROR,
}


# What hosts call the part of a prompt that they did not have to read again.
_CACHED = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")


def decode(body: bytes) -> ModelResponse:
    """The response in a complete body."""
    document = json_of(body, "the response")
    if isinstance(document, dict) and document.get("error"):
        raise stream_error(document)
    try:
        choices = document["choices"]
        choice = next((one for one in choices if not one.get("index")), choices[0])
        if choice.get("error"):
            raise stream_error(choice)
        message = choice["message"]
        asked = message.get("tool_calls") or _older_calls(message)
        calls = [_call(call) for call in asked if "custom" not in call]
        text, thought = texts_of(message.get("content"))
        return build(
            document, message, text=text, reasoning=thought, calls=calls, word=choice.get("finish_reason")
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ResponseValidationError(f"the response has no answer in it: {_shape(error)}") from None


def build(
    document: Mapping[str, Any],
    message: Mapping[str, Any],
    *,
    text: str,
    reasoning: str,
    calls: list[tuple[ToolCall, Mapping[str, Any]]],
    word: str | None,
) -> ModelResponse:
    """The response that a message, complete or put together from a stream, amounts to."""
    if refusal := message.get("refusal"):
        raise ModelError(f"the model refused: {refusal}", retryable=False)
    tool_calls = tuple([call for call, _ in calls])
    extras = _extras(message, calls)
    return ModelResponse(
        text=without_calls(text, tool_calls),
        tool_calls=tool_calls,
        finish_reason=_FINISH.get(word or "", FinishReason.OTHER),
        usage=usage_of(document),
        reasoning=reasoning or _reasoning(message),
        extras={NAME: extras} if extras else {},
        source=ModelSource(document.get("model"), document.get("id"), word),
        unsupported=_unsupported(message),
    )


def usage_of(document: Mapping[str, Any]) -> Usage:
    """The tokens, wherever this host counts them."""
    counted = document.get("usage") or (document.get("x_groq") or {}).get("usage") or {}
    counted = counted if isinstance(counted, dict) else {}
    read = counted.get("prompt_tokens_details") or {}
    written = counted.get("completion_tokens_details") or {}
    cached = [read.get("cached_tokens"), *[counted.get(key) for key in _CACHED]]
    return usage(
        read=count(counted.get("prompt_tokens")),
        written=count(counted.get("completion_tokens")),
        cached=next(filter(None, cached), 0),
        reasoning=written.get("reasoning_tokens"),
        total=counted.get("total_tokens"),
    )


def _unsupported(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what of a message is neither text nor the call of a function."""
    customs = [call["custom"].get("name") for call in message.get("tool_calls") or () if "custom" in call]
    items = [f"a custom tool call ({name})" for name in customs if name]
    items += ["an image" for _ in message.get("images") or ()]
    return (*items, "audio") if message.get("audio") else tuple(items)


def signature_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """What has to go back with a tool call."""
    return {"extra_content": call["extra_content"]} if call.get("extra_content") else {}


def _call(call: Mapping[str, Any]) -> tuple[ToolCall, Mapping[str, Any]]:
    function = call["function"]
    wanted = ToolCall(
        call.get("id") or new_call_id(), name(function["name"]), arguments_of(function.get("arguments"))
    )
    return wanted, signature_of(call)


def texts_of(content: Any) -> tuple[str, str]:
    """Text and thought, from a string, nothing, or a list of parts."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    texts = [part.get("text", "") for part in content if part.get("type") in ("text", "output_text")]
    return "".join(texts), "".join(_thought(part) for part in content if part.get("type") == "thinking")


def _thought(part: Mapping[str, Any]) -> str:
    said = part.get("thinking") or ""
    return said if isinstance(said, str) else "".join(piece.get("text", "") for piece in said)


def _older_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The one call that a message had before there were several."""
    return [{"function": message["function_call"]}] if message.get("function_call") else []


def _reasoning(message: Mapping[str, Any]) -> str:
    said = message.get("reasoning_content") or message.get("reasoning")
    return said if isinstance(said, str) else ""


def _extras(message: Mapping[str, Any], calls: list[tuple[ToolCall, Mapping[str, Any]]]) -> dict[str, Any]:
    keys = ("reasoning_content", "reasoning_details", "extra_content", "thought_signature")
    extras: dict[str, Any] = {key: message[key] for key in keys if message.get(key)}
    if signed := {call.id: signature for call, signature in calls if signature}:
        extras["tool_calls"] = signed
    return extras


def _shape(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
