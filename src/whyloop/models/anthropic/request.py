"""From a request to the body of an Anthropic message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import msgspec

from whyloop.models.anthropic.blocks import NAME, assistant_blocks, fit, part_blocks
from whyloop.models.fragments import Fragments
from whyloop.models.wire import Settings
from whyloop.values.messages import Message, MessageRole
from whyloop.values.model import ModelRequest, ToolSpec

__all__ = ["NAME", "encode", "encode_message"]

DEFAULT_MAX_TOKENS = 8192
"""The API wants a number; this one is long enough for an answer and every model of today takes it."""

_FIRST_GENERATION = ("claude-3-haiku", "claude-3-sonnet", "claude-3-opus", "claude-2", "claude-instant")
_USER, _ASSISTANT, _TOOL = MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL
_OPENING = {_USER: b'{"role":"user","content":[', _ASSISTANT: b'{"role":"assistant","content":['}


def encode(request: ModelRequest, settings: Settings, fragments: Fragments) -> bytes:
    """The body, with the messages' own JSON joined in rather than encoded again."""
    messages = list(request.messages)
    leading = [message.text for message in takewhile(lambda message: message.is_system, messages)]
    system = [request.instructions or "", *leading]
    options = msgspec.json.encode(_options(request, settings, system) | _container(messages, settings))
    turns = _turns(messages[len(leading) :], fragments)
    return options[:-1] + b',"messages":[' + b",".join(turns) + b"]}"


def encode_message(message: Message) -> bytes:
    """The blocks of one message as JSON, with commas between them; nothing where there is nothing to say."""
    return b",".join([msgspec.json.encode(block) for block in _blocks(message)])


def _turns(messages: Sequence[Message], fragments: Fragments) -> list[bytes]:
    """The messages as user and assistant take turns: neighbours of the same side are one turn."""
    turns: list[list[bytes]] = []
    speaker, results = None, 0
    for message, fragment in zip(messages, fragments.of(messages), strict=True):
        if not fragment:
            continue
        role = message.role
        side = _ASSISTANT if role == _ASSISTANT else _USER
        if side != speaker:
            speaker, results = side, 0
            turns.append([_OPENING[side]])
        # The results of tools come first in a turn, or the API refuses it.
        if role == _TOOL:
            results += 1
            turns[-1].insert(results, fragment)
        else:
            turns[-1].append(fragment)
    return [opening + b",".join(blocks) + b"]}" for opening, *blocks in turns]


def _blocks(message: Message) -> list[dict[str, Any]]:
    """One message as content blocks; what the application says in the middle is said by the user."""
    if message.is_assistant:
        return assistant_blocks(message)
    if not message.is_tool:
        return part_blocks(message.content)
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": fit(message.tool_call_id or "")}
    if isinstance(message.content, str):
        return [{**result, "content": message.content}] if message.content.strip() else [result]
    return [{**result, "content": part_blocks(message.content)}]


def _options(request: ModelRequest, settings: Settings, system: list[str]) -> dict[str, Any]:
    """Everything but the messages."""
    options: dict[str, Any] = {
        "model": settings.model,
        "max_tokens": settings.max_tokens or _max_tokens(settings),
        "stream": settings.stream,
    }
    if words := "\n\n".join([text for text in system if text.strip()]):
        options["system"] = words
    if settings.temperature is not None:
        options["temperature"] = settings.temperature
    if request.tools:
        options["tools"] = [_tool(spec) for spec in request.tools]
    if request.tools or settings.extra.get("tools"):
        options |= _tool_choice(settings)
    if settings.response_format is not None:
        options["output_config"] = {"format": {"type": "json_schema", "schema": settings.response_format}}
    return _with_extra(options, settings.extra)


def _container(messages: Sequence[Message], settings: Settings) -> dict[str, Any]:
    """Return the latest container of this history, for code that goes on with the files of earlier code.

    One that the caller names comes first, and one that has expired would be refused.
    """
    wanted = settings.extra.get("container")
    if not settings.extra.get("tools") or isinstance(wanted, str) or (wanted and wanted.get("id")):
        return {}
    kept = [message.extras.get(NAME, {}).get("container") for message in messages if message.extras]
    latest = next((container for container in reversed(kept) if container), None)
    if latest is None or _has_expired(latest.get("expires_at")):
        return {}
    return {"container": {**wanted, "id": latest["id"]} if wanted else latest["id"]}


def _has_expired(moment: object) -> bool:
    try:
        return datetime.fromisoformat(str(moment)) <= datetime.now(UTC)
    except (ValueError, TypeError):
        return False  # It does not say.


def _max_tokens(settings: Settings) -> int:
    if settings.model.startswith(_FIRST_GENERATION):
        return 4096
    # Thinking is paid from the same purse: what may be thought must leave room for the answer.
    thinking = settings.extra.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return DEFAULT_MAX_TOKENS + (budget if isinstance(budget, int) else 0)


def _tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool in the words of this API."""
    schema = spec.parameters or {"type": "object", "properties": {}}
    return {"name": spec.name, "description": spec.description, "input_schema": schema}


def _tool_choice(settings: Settings) -> dict[str, Any]:
    """Which tools the model may, must or must not call, and whether several at once."""
    wanted, one_by_one = settings.tool_choice, settings.parallel_tool_calls is False
    if wanted is None and not one_by_one:
        return {}
    choice: dict[str, Any]
    if wanted in (None, "auto", "none"):
        choice = {"type": wanted or "auto"}
    elif wanted == "required":
        choice = {"type": "any"}
    else:
        choice = {"type": "tool", "name": wanted}
    if one_by_one and wanted != "none":
        choice["disable_parallel_tool_use"] = True
    return {"tool_choice": choice}


def _with_extra(options: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The options and what the caller adds: tools join ours, objects are filled up, the rest is replaced."""
    merged = dict(options)
    for key, value in extra.items():
        ours = options.get(key)
        if isinstance(ours, dict) and isinstance(value, Mapping):
            merged[key] = {**ours, **value}
        elif isinstance(ours, list) and isinstance(value, list | tuple):
            merged[key] = [*ours, *value]
        else:
            merged[key] = value
    return merged
