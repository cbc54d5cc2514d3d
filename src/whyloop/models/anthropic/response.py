"""From the body of an Anthropic message to a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.anthropic.blocks import NAME, Block, call_entry, text_entry, usual_row
from whyloop.models.failures import stream_error
from whyloop.models.parts import arguments_of, count, json_of, new_call_id
from whyloop.rules.written_calls import without_calls
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ModelSource
from whyloop.values.usage import Usage

_FINISH = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "refusal": FinishReason.CONTENT_FILTER,
    "pause_turn": FinishReason.PAUSE_TURN,
}


def decode(body: bytes) -> ModelResponse:
    """The response in a complete body."""
    document = json_of(body, "the response")
    if isinstance(document, dict) and (document.get("error") or document.get("type") == "error"):
        raise stream_error(document)
    return build(document)


def build(document: Any) -> ModelResponse:
    """The response that a message, complete or put together from a stream, amounts to."""
    try:
        return _built(document)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        words = f"{type(error).__name__}: {error}"
        raise ResponseValidationError(f"the response has no answer in it: {words}") from None


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """The tokens; this API counts what it wrote to and read from its cache beside the input."""
    read = count(usage.get("cache_read_input_tokens"))
    return Usage(
        input=count(usage.get("input_tokens")) + count(usage.get("cache_creation_input_tokens")) + read,
        output=count(usage.get("output_tokens")),
        cached=read,
        reasoning=count((usage.get("output_tokens_details") or {}).get("thinking_tokens")),
    )


def _built(document: Mapping[str, Any]) -> ModelResponse:
    said: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    row: list[Block] = []
    for block in document["content"] or ():
        kind = block["type"]
        if kind == "text":
            text = block.get("text") or ""
            said.append(text)
            row += [text_entry(text, block)] if text else []
        elif kind == "tool_use":
            arguments = arguments_of(block.get("input"))
            calls.append(ToolCall(block.get("id") or new_call_id(), block["name"], arguments))
            row.append(call_entry(calls[-1], block))
        elif kind == "thinking":
            thoughts.append(block.get("thinking") or "")
            # Without its signature, which a thought that was cut off lacks, it would be refused.
            row += [block] if block.get("signature") else []
        else:
            row.append(block)
    word = document.get("stop_reason")
    text = without_calls("".join(said), calls)
    if said and not text:
        row = [entry for entry in row if entry["type"] != "text"]
    if word == "refusal" and not text.strip() and not calls:
        raise ModelError(_refusal(document), retryable=False)
    return ModelResponse(
        text=text,
        tool_calls=tuple(calls),
        finish_reason=_FINISH.get(word or "", FinishReason.OTHER),
        usage=usage_of(document.get("usage") or {}),
        reasoning="".join(thoughts),
        extras=_extras(document, [] if row == usual_row(text, calls) else row),
        source=ModelSource(document.get("model"), document.get("id"), word),
    )


def _extras(document: Mapping[str, Any], row: list[Block]) -> dict[str, Any]:
    """Return what goes back: the row of blocks, and the container in which the provider's code ran."""
    kept: dict[str, Any] = {"blocks": row} if row else {}
    container = document.get("container")
    if isinstance(container, dict) and isinstance(container.get("id"), str):
        kept["container"] = {key: container[key] for key in ("id", "expires_at") if container.get(key)}
    return {NAME: kept} if kept else {}


def _refusal(document: Mapping[str, Any]) -> str:
    """The words for a refusal that leaves nothing to show; one that came with text is a content filter's."""
    details = document.get("stop_details")
    words = details.get("explanation") or details.get("category") if isinstance(details, dict) else None
    return f"the model refused: {words or 'it gave no explanation'}"
