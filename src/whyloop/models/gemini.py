"""Gemini's generateContent.

An answer of this API is a list of parts, some with a signature that must be sent back. The message itself has
the text and the calls. `extras["gemini"]["parts"]` refers to a text by its length and to a call by its id,
and has all other parts as they came. It is omitted if text and calls describe the answer completely.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.prices import gemini_billing, gemini_usage
from whyloop.models.provider import (
    EncodedMessages,
    ProviderApi,
    Settings,
    StreamReader,
    language_of,
    media_label,
    media_of,
    new_call,
    with_extra,
)
from whyloop.models.response import stream_error
from whyloop.models.structured_output import google_schema
from whyloop.values import encoding
from whyloop.values.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from whyloop.values.model import (
    OUTPUT_TOOL,
    Delta,
    FinishReason,
    ModelRequest,
    ModelResponse,
    ModelSource,
    OutputDelta,
    ReasoningDelta,
    TextDelta,
)

NAME = "gemini"

_FINISH = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "SAFETY": FinishReason.CONTENT_FILTER,
    "RECITATION": FinishReason.CONTENT_FILTER,
    "BLOCKLIST": FinishReason.CONTENT_FILTER,
    "PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "SPII": FinishReason.CONTENT_FILTER,
    "MODEL_ARMOR": FinishReason.CONTENT_FILTER,
    "IMAGE_SAFETY": FinishReason.CONTENT_FILTER,
    "IMAGE_PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "IMAGE_RECITATION": FinishReason.CONTENT_FILTER,
    "TOO_MANY_TOOL_CALLS": FinishReason.ERROR,
    "MISSING_THOUGHT_SIGNATURE": FinishReason.ERROR,
}
# Google could not read the model's answer, and did not pass it on.
_UNREADABLE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})

_SYSTEM = b'{"role":"system","parts":['
_USER = b'{"role":"user","parts":['
_MODEL = b'{"role":"model","parts":['
_ROLE = len(b'{"role":"')  # The index of the first letter of the role.
# Google accepts this in place of a signature on calls that another model made.
_UNSIGNED = "skip_thought_signature_validator"
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_MADE_UP = re.compile(r"call_[0-9a-f]{24}")
_DATA_ADDRESS = re.compile(r"data:([^;,]*)(?:;[^,]*)?;base64,(.*)", re.DOTALL)
# The result of a failed tool begins with this.
_FAILED = "Error: "


class GeminiContent(ProviderApi):
    """Gemini's generateContent, complete or streamed."""

    name = NAME

    def __init__(self) -> None:
        self._messages = EncodedMessages(encode_message)

    def path(self, settings: Settings) -> str:
        # The name of a tuned model includes its collection: "tunedModels/mine".
        model = settings.model if "/" in settings.model else f"models/{settings.model}"
        return f"/{model}:streamGenerateContent?alt=sse" if settings.stream else f"/{model}:generateContent"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {"x-goog-api-key": api_key} if api_key else {}

    def encode(self, request: ModelRequest, settings: Settings) -> bytes:
        leading = sum(1 for _ in takewhile(lambda message: message.is_system, request.messages))
        # These models require a signature on the first call of each turn.
        encoded = self._messages.of(request.messages, "gemini-3" in settings.model)
        contents, instructions = _turns(encoded, leading)
        if request.instructions:
            instructions.insert(0, msgspec.json.encode({"text": request.instructions}))
        body: dict[str, Any] = {"contents": msgspec.Raw(contents)}
        if instructions:
            body["systemInstruction"] = {"parts": [msgspec.Raw(part) for part in instructions]}
        return msgspec.json.encode(with_extra(body | _options(request, settings), settings.extra))

    def read_document(self, document: Any) -> ModelResponse:
        """Return the response in one document, or in a list of its pieces."""
        answer = _PartialAnswer()
        for piece in document if isinstance(document, list) else [document]:
            if piece.get("error"):
                raise stream_error(piece)
            answer.add(piece)
        return answer.complete()

    def reader(self) -> StreamReader:
        return ContentStream()


# Requests


def encode_message(message: Message, signed: Any = False) -> bytes:
    """Return one message as the beginning of a turn, open for more parts.

    With `signed`, for a model that refuses calls without a signature, even those of other models.
    """
    parts = message_parts(message)
    calls = [part for part in parts if "functionCall" in part] if signed else []
    if calls and not any("thoughtSignature" in part for part in calls):
        calls[0]["thoughtSignature"] = _UNSIGNED
    # This API has no developer role: after the beginning, such messages are part of the user's turn.
    opening = _SYSTEM if message.is_system and not message.is_developer else _USER
    return (_MODEL if message.is_assistant else opening) + msgspec.json.encode(parts)[1:-1]


def _turns(encoded: Sequence[bytes], leading: int) -> tuple[bytes, list[bytes]]:
    """Return all turns as JSON, and separately the application's messages.

    Turns must alternate, and all results of one round of calls belong in one turn.
    """
    turns: list[bytes] = []
    instructions = [message[message.index(b"[") + 1 :] for message in encoded[:leading]]
    role = None
    for message in encoded[leading:]:
        if message[_ROLE] == role:
            turns += (b",", message[message.index(b"[") + 1 :])
        elif message.startswith(_SYSTEM):
            instructions.append(message.removeprefix(_SYSTEM))
        else:
            turns += (b"]},", message)
            role = message[_ROLE]
    # The API refuses a request without contents, as with instructions alone.
    turns = turns[1:] or [_USER, b'{"text":""}']
    return b"".join([b"[", *turns, b"]}]"]), instructions


def message_parts(message: Message) -> list[dict[str, Any]]:
    """Return the parts of one message."""
    if message.is_assistant:
        return _model_parts(message)
    if message.is_tool:
        response = {"name": message.tool, "response": _tool_response(message.model_text)}
        return [{"functionResponse": {**_id(message.tool_call_id), **response}}]
    if isinstance(message.content, str):
        return [{"text": message.content}]
    return [_part(part) for part in message.content] or [{"text": ""}]


def _model_parts(message: Message) -> list[dict[str, Any]]:
    """Return the parts of an answer in their order, each with its signature.

    Text and calls that the kept parts do not refer to (from another provider, or changed since) come last.
    """
    text, calls = message.model_text, list(message.tool_calls)
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


def _id(call_id: str | None) -> dict[str, str]:
    """Return the id of a call, unless it was generated here."""
    return {"id": call_id} if call_id and not _MADE_UP.fullmatch(call_id) else {}


def _tool_response(text: str) -> Any:
    """Return the result of a tool as the object that this API requires."""
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
    if known := media_of(part)[0]:
        return known
    if isinstance(part, ImagePart):
        return "image/jpeg"
    return mimetypes.guess_type(part.name or "")[0] or "application/octet-stream"


def _options(request: ModelRequest, settings: Settings) -> dict[str, Any]:
    """Return every field of the request but the contents and the instructions."""
    options: dict[str, Any] = {}
    if request.tools:
        # The older `parameters` refuses references, definitions and additional properties.
        tools = [
            {"name": spec.name, "description": spec.description, "parametersJsonSchema": spec.parameters}
            for spec in request.tools
        ]
        options["tools"] = [{"functionDeclarations": tools}]
        if settings.tool_choice is not None:
            options["toolConfig"] = {"functionCallingConfig": _tool_choice(settings.tool_choice)}
    generation: dict[str, Any] = {}
    if settings.temperature is not None:
        generation["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        generation["maxOutputTokens"] = settings.max_tokens
    schema = google_schema(request.output.schema) if request.output else settings.response_format
    if schema is not None:
        generation |= {"responseMimeType": "application/json", "responseJsonSchema": schema}
    return options | ({"generationConfig": generation} if generation else {})


def _tool_choice(choice: str) -> dict[str, Any]:
    if choice in _MODES:
        return {"mode": _MODES[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


# Responses


class ContentStream(StreamReader):
    """A reader of the pieces of one answer; calls arrive whole and are never shown."""

    def __init__(self) -> None:
        super().__init__()
        self._answer = _PartialAnswer()

    def take(self, kind: str, document: dict[str, Any]) -> Iterable[Delta]:
        deltas = self._answer.add(document)
        # The piece with the finish reason and the usage is the last one.
        self.ended = self._answer.finished and "usageMetadata" in document
        return deltas

    def complete(self) -> ModelResponse | None:
        response = self._answer.complete()
        return response if self._answer.finished else None


class _PartialAnswer:
    """One answer, put together from one document or several."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []

    @property
    def finished(self) -> bool:
        """Whether a piece with a finish reason has arrived."""
        return "finishReason" in self._candidate

    def add(self, document: Mapping[str, Any]) -> list[Delta]:
        """Add the next piece; return the text and the reasoning in it."""
        self._document |= {key: value for key, value in document.items() if value}
        # If several answers were requested, the first one counts.
        candidate: Mapping[str, Any]
        candidate = next((one for one in document.get("candidates") or () if not one.get("index")), {})
        self._candidate |= {key: value for key, value in candidate.items() if value}
        parts = [dict(part) for part in (candidate.get("content") or {}).get("parts") or ()]
        self._parts += parts
        texts = [part for part in parts if _is_text(part) and part["text"]]
        deltas: list[Delta] = [
            (ReasoningDelta if part.get("thought") else TextDelta)(part["text"]) for part in texts
        ]
        called = [part["functionCall"] for part in parts if part.get("functionCall")]
        answers = [call.get("args") or {} for call in called if call.get("name") == OUTPUT_TOOL]
        return deltas + [OutputDelta(encoding.json_text(arguments)) for arguments in answers]

    def complete(self) -> ModelResponse:
        """Return the response made of all pieces."""
        if not self._candidate:
            raise self._refusal()
        parts, reason = self._parts, self._candidate.get("finishReason")
        if reason in _UNREADABLE:
            problem = _explained(reason, self._candidate.get("finishMessage"))
            raise ResponseValidationError(f"the model's answer was unreadable: {problem}")
        wanted = [part["functionCall"] for part in parts if part.get("functionCall")]
        calls = [new_call(call.get("id"), call["name"], call.get("args")) for call in wanted]
        texts = [part for part in parts if _is_text(part)]
        text = "".join([part["text"] for part in texts if not part.get("thought")])
        finish_reason = _FINISH.get(reason or "", FinishReason.OTHER)
        if calls and finish_reason is FinishReason.STOP:
            finish_reason = FinishReason.TOOL_CALLS
        return ModelResponse(
            text=language_of(text, calls),
            tool_calls=tuple(calls),
            finish_reason=finish_reason,
            usage=gemini_usage(self._document.get("usageMetadata") or {}),
            billing=gemini_billing(self._document.get("usageMetadata") or {}),
            reasoning="".join([part["text"] for part in texts if part.get("thought")]),
            extras=_extras(parts, text, calls),
            source=ModelSource(self._document.get("modelVersion"), self._document.get("responseId"), reason),
            unsupported=_unsupported(parts),
        )

    def _refusal(self) -> ModelError:
        """Return the error that says why the answer is missing."""
        feedback = self._document.get("promptFeedback") or {}
        if reason := feedback.get("blockReason"):
            problem = _explained(reason, feedback.get("blockReasonMessage"))
            return ModelError(f"the prompt was blocked: {problem}", retryable=False)
        return ResponseValidationError("the response contains no answer")


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _unsupported(parts: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the files of an answer, unless Google's own code made them."""
    if any(part.get("executableCode") or part.get("codeExecutionResult") for part in parts):
        return ()
    files = [part.get("inlineData") or part.get("fileData") for part in parts]
    return tuple([media_label(file.get("mimeType")) for file in files if file])


def _extras(parts: list[dict[str, Any]], text: str, calls: list[ToolCall]) -> dict[str, Any]:
    """Return the parts to keep: text by its length, calls by id, others as they came."""
    kept: list[dict[str, Any]] = []
    ids = iter([call.id for call in calls])
    for part in parts:
        if part.get("functionCall"):
            kept.append({**part, "functionCall": next(ids)})
        elif _is_text(part):
            _keep_text(kept, part)
        else:
            kept.append(part)
    usual: list[dict[str, Any]] = [{"text": len(text)}] if text else []
    usual += [{"functionCall": call.id} for call in calls]
    return {} if kept == usual else {NAME: {"parts": kept}}


def _keep_text(kept: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Keep a text or a thought; the pieces of one are joined, unless they are signed."""
    entry = part if part.get("thought") else {**part, "text": len(part["text"])}
    signed = not entry.keys() <= {"text", "thought"}
    if not (signed or entry["text"]):
        return
    last = kept[-1] if kept else {}
    if not signed and last.keys() == entry.keys() and type(last["text"]) is type(entry["text"]):
        kept[-1] = {**entry, "text": last["text"] + entry["text"]}
    else:
        kept.append(entry)


def _explained(reason: str, message: str | None) -> str:
    return f"{reason}: {message}" if message else reason
