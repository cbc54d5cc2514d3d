"""From a request to the body of generateContent."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import msgspec

from whyloop.models.fragments import Fragments
from whyloop.models.parts import own_bytes
from whyloop.models.wire import Settings
from whyloop.values.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from whyloop.values.model import ModelRequest, ToolSpec

NAME = "gemini"

_SYSTEM = b'{"role":"system","parts":['
_USER = b'{"role":"user","parts":['
_MODEL = b'{"role":"model","parts":['
_ROLE = len(b'{"role":"')  # Where the first letter of the role stands.
# What Google accepts in place of a signature on calls that another model made.
_UNSIGNED = "skip_thought_signature_validator"
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_MADE_UP = re.compile(r"call_[0-9a-f]{24}")
_DATA_ADDRESS = re.compile(r"data:([^;,]*)(?:;[^,]*)?;base64,(.*)", re.DOTALL)
# This is how the loop tells a model that a tool failed.
_FAILED = "Error: "


def encode(request: ModelRequest, settings: Settings, fragments: Fragments) -> bytes:
    """The body, with the messages' own JSON joined in rather than encoded again."""
    leading = sum(1 for _ in takewhile(lambda message: message.is_system, request.messages))
    contents, instructions = _turns(fragments.of(request.messages), leading)
    if request.instructions:
        instructions.insert(0, msgspec.json.encode({"text": request.instructions}))
    body: dict[str, Any] = {"contents": msgspec.Raw(contents)}
    if instructions:
        body["systemInstruction"] = {"parts": [msgspec.Raw(part) for part in instructions]}
    return msgspec.json.encode(_merged(body | _options(request, settings), settings.extra))


def encode_message(message: Message) -> bytes:
    """One message as the beginning of a turn: its role and its parts, open for more parts."""
    return _lead(message) + msgspec.json.encode(message_parts(message))[1:-1]


def encode_signed_message(message: Message) -> bytes:
    """The same, for a model that refuses calls without a signature, whoever made them."""
    parts = message_parts(message)
    calls = [part for part in parts if "functionCall" in part]
    if calls and not any("thoughtSignature" in part for part in calls):
        calls[0]["thoughtSignature"] = _UNSIGNED
    return _lead(message) + msgspec.json.encode(parts)[1:-1]


def needs_signatures(model: str) -> bool:
    """True for the models that want a signature on the first call of each turn."""
    return "gemini-3" in model


def _lead(message: Message) -> bytes:
    if message.is_assistant:
        return _MODEL
    # This API has no developers: what they say after the beginning is part of the user's turn.
    return _SYSTEM if message.is_system and not message.is_developer else _USER


def _turns(fragments: list[bytes], leading: int) -> tuple[bytes, list[bytes]]:
    """Return all turns as JSON, and apart from them the messages of the application, which lead.

    Turns must alternate, and all answers to one round of calls belong into one.
    """
    turns: list[bytes] = []
    instructions = [fragment[fragment.index(b"[") + 1 :] for fragment in fragments[:leading]]
    role = None
    for fragment in fragments[leading:]:
        if fragment[_ROLE] == role:
            turns += (b",", fragment[fragment.index(b"[") + 1 :])
        elif fragment.startswith(_SYSTEM):
            instructions.append(fragment.removeprefix(_SYSTEM))
        else:
            turns += (b"]},", fragment)
            role = fragment[_ROLE]
    # A request without contents is refused, and with instructions alone there are none.
    turns = turns[1:] or [_USER, b'{"text":""}']
    return b"".join([b"[", *turns, b"]}]"]), instructions


def message_parts(message: Message) -> list[dict[str, Any]]:
    """One message in the words of this API."""
    if message.is_assistant:
        return _model_parts(message)
    if message.is_tool:
        return [_function_response(message)]
    if isinstance(message.content, str):
        return [{"text": message.content}]
    return [_part(part) for part in message.content] or [{"text": ""}]


def _model_parts(message: Message) -> list[dict[str, Any]]:
    """The parts of an answer in the order they came in, each with the signature it came with.

    What was kept of an answer names a text by its length and a call by its id. Text and calls that
    it does not name (another provider's, or changed since) come last.
    """
    text, calls = message.text, list(message.tool_calls)
    parts: list[dict[str, Any]] = []
    for kept in message.extras.get(NAME, {}).get("parts", ()):
        if isinstance(kept.get("text"), int):
            piece, text = text[: kept["text"]], text[kept["text"] :]
            if piece or "thoughtSignature" in kept:
                parts.append({**kept, "text": piece})
        elif isinstance(kept.get("functionCall"), str):
            for call in [call for call in calls if call.id == kept["functionCall"]][:1]:
                calls.remove(call)
                parts.append({**kept, **_function_call(call)})
        else:
            parts.append({**kept})
    if text:
        parts.append({"text": text})
    parts += map(_function_call, calls)
    return parts or [{"text": ""}]


def _function_call(call: ToolCall) -> dict[str, Any]:
    arguments = {"arguments": call.arguments} if isinstance(call.arguments, str) else call.arguments
    return {"functionCall": {**_id(call.id), "name": call.name, "args": arguments}}


def _function_response(message: Message) -> dict[str, Any]:
    response = _response(message.text)
    return {
        "functionResponse": {**_id(message.tool_call_id), "name": message.tool_name, "response": response}
    }


def _id(call_id: str | None) -> dict[str, str]:
    """The id, unless it was made up here: calls that came without one are answered without one."""
    return {"id": call_id} if call_id and not _MADE_UP.fullmatch(call_id) else {}


def _response(text: str) -> Any:
    """What a tool returned as the object that it has to be."""
    if text.startswith(_FAILED):
        return {"error": text.removeprefix(_FAILED)}
    if text.startswith("{"):
        try:
            document = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            document = None
        if isinstance(document, dict):
            return document
    return {"result": text}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"text": part.text}
    if part.url is None:
        return {"inlineData": {"mimeType": _media_type(part), "data": part.data or ""}}
    if match := _DATA_ADDRESS.fullmatch(part.url):
        return {"inlineData": {"mimeType": match[1] or _media_type(part), "data": match[2]}}
    stated = {"mimeType": part.media_type} if part.media_type else {}
    return {"fileData": {**stated, "fileUri": part.url}}


def _media_type(part: ImagePart | FilePart) -> str:
    if known := own_bytes(part)[0]:
        return known
    if isinstance(part, ImagePart):
        return "image/jpeg"
    return mimetypes.guess_type(part.name or "")[0] or "application/octet-stream"


def _options(request: ModelRequest, settings: Settings) -> dict[str, Any]:
    """Everything but what was said."""
    options: dict[str, Any] = {}
    if request.tools:
        options["tools"] = [{"functionDeclarations": [tool_document(spec) for spec in request.tools]}]
        if settings.tool_choice is not None:
            options["toolConfig"] = {"functionCallingConfig": _tool_choice(settings.tool_choice)}
    if generation := _generation(settings):
        options["generationConfig"] = generation
    return options


def tool_document(spec: ToolSpec) -> dict[str, Any]:
    """A tool in the words of this API.

    The older `parameters` knows no references, definitions or additional properties and refuses
    a schema that has them; `parametersJsonSchema` takes it as it is.
    """
    return {"name": spec.name, "description": spec.description, "parametersJsonSchema": spec.parameters}


def _tool_choice(choice: str) -> dict[str, Any]:
    if choice in _MODES:
        return {"mode": _MODES[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def _generation(settings: Settings) -> dict[str, Any]:
    generation: dict[str, Any] = {}
    if settings.temperature is not None:
        generation["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        generation["maxOutputTokens"] = settings.max_tokens
    if settings.response_format is not None:
        generation["responseMimeType"] = "application/json"
        generation["responseJsonSchema"] = settings.response_format
    return generation


def _merged(options: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Both; objects are merged at every depth, tools of Google's own stand beside ours."""
    merged = dict(options)
    for key, value in extra.items():
        known = merged.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(known, value)
        elif key == "tools" and isinstance(known, list) and isinstance(value, list | tuple):
            merged[key] = [*known, *value]
        else:
            merged[key] = value
    return merged
