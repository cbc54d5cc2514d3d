"""From what generateContent answers, whole or in pieces, to a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.failures import stream_error
from whyloop.models.gemini.request import NAME
from whyloop.models.parts import arguments_of, count, json_of, media_text, new_call_id, usage
from whyloop.rules.written_calls import without_calls
from whyloop.values.messages import ToolCall
from whyloop.values.model import Delta, FinishReason, ModelResponse, ModelSource, ReasoningDelta, TextDelta
from whyloop.values.usage import Usage

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
# The model said something that Google could not read, and does not pass on.
_UNREADABLE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})


def decode(body: bytes) -> ModelResponse:
    """The response in a complete body: one document, or a list of its pieces."""
    document = json_of(body, "the response")
    answer = Answer()
    for piece in document if isinstance(document, list) else [document]:
        answer.take(piece)
    return answer.complete()


class Answer:
    """One answer, put together from as many documents as it comes in; a whole one is a single piece."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []

    @property
    def finished(self) -> bool:
        """True once a piece has said why the model fell silent."""
        return "finishReason" in self._candidate

    def take(self, document: Any) -> list[Delta]:
        """Take the next piece; return what it adds to the visible text and to the reasoning."""
        if not isinstance(document, dict):
            raise ResponseValidationError(f"the response is no object: {str(document)[:80]!r}")
        if document.get("error"):
            raise stream_error(document)
        try:
            return self._take(document)
        except (TypeError, AttributeError, ValueError) as error:
            raise _unreadable(error) from None

    def complete(self) -> ModelResponse:
        """The response that all pieces amount to."""
        try:
            if not self._candidate:
                self._say_why()
            return self._response()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _unreadable(error) from None

    def _take(self, document: Mapping[str, Any]) -> list[Delta]:
        self._document |= {key: value for key, value in document.items() if value}
        # Where several answers were asked for, the first one is the answer.
        candidate: Mapping[str, Any]
        candidate = next((one for one in document.get("candidates") or () if not one.get("index")), {})
        self._candidate |= {key: value for key, value in candidate.items() if value}
        parts = [dict(part) for part in (candidate.get("content") or {}).get("parts") or ()]
        self._parts += parts
        texts = [part for part in parts if _is_text(part) and part["text"]]
        return [(ReasoningDelta if part.get("thought") else TextDelta)(part["text"]) for part in texts]

    def _response(self) -> ModelResponse:
        parts, word = self._parts, self._candidate.get("finishReason")
        if word in _UNREADABLE:
            said = _with_words(word, self._candidate.get("finishMessage"))
            raise ResponseValidationError(f"the model's answer was unreadable: {said}")
        calls = [_call(part["functionCall"]) for part in parts if part.get("functionCall")]
        texts = [part for part in parts if _is_text(part)]
        text = "".join([part["text"] for part in texts if not part.get("thought")])
        reason = _FINISH.get(word or "", FinishReason.OTHER)
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return ModelResponse(
            text=without_calls(text, calls),
            tool_calls=tuple(calls),
            finish_reason=reason,
            usage=usage_of(self._document),
            reasoning="".join([part["text"] for part in texts if part.get("thought")]),
            extras=_extras(parts, text, calls),
            source=ModelSource(self._document.get("modelVersion"), self._document.get("responseId"), word),
            unsupported=_unsupported(parts),
        )

    def _say_why(self) -> NoReturn:
        """Tell why there is no answer."""
        feedback = self._document.get("promptFeedback") or {}
        if reason := feedback.get("blockReason"):
            said = _with_words(reason, feedback.get("blockReasonMessage"))
            raise ModelError(f"the prompt was blocked: {said}", retryable=False)
        raise ResponseValidationError("the response has no answer in it")


def usage_of(document: Mapping[str, Any]) -> Usage:
    """The tokens; what a tool of Google's read is read, and what the model thought is written."""
    counted = document.get("usageMetadata") or {}
    thoughts = count(counted.get("thoughtsTokenCount"))
    return usage(
        read=count(counted.get("promptTokenCount")) + count(counted.get("toolUsePromptTokenCount")),
        written=count(counted.get("candidatesTokenCount")) + thoughts,
        cached=counted.get("cachedContentTokenCount"),
        reasoning=thoughts,
        total=counted.get("totalTokenCount"),
    )


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _unsupported(parts: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the pictures and other files of an answer; those that Google's own code made are its work."""
    if any(part.get("executableCode") or part.get("codeExecutionResult") for part in parts):
        return ()
    files = [part.get("inlineData") or part.get("fileData") for part in parts]
    return tuple([media_text(file.get("mimeType")) for file in files if file])


def _call(call: Mapping[str, Any]) -> ToolCall:
    if not (name := call["name"]) or not isinstance(name, str):
        raise ValueError("a function call has no name")
    return ToolCall(call.get("id") or new_call_id(), name, arguments_of(call.get("args")))


def _extras(parts: list[dict[str, Any]], text: str, calls: list[ToolCall]) -> dict[str, Any]:
    """The parts as they came, if text and calls alone do not tell; text by its length, calls by id."""
    kept: list[dict[str, Any]] = []
    ids = iter([call.id for call in calls])
    for part in parts:
        if part.get("functionCall"):
            kept.append({**part, "functionCall": next(ids)})
        elif _is_text(part):
            _keep_text(kept, part)
        else:
            kept.append(part)
    plain: list[dict[str, Any]] = [{"text": len(text)}] if text else []
    plain += [{"functionCall": call.id} for call in calls]
    return {} if kept == plain else {NAME: {"parts": kept}}


def _keep_text(kept: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Keep a text or a thought; pieces of one are one again, but for what is signed."""
    entry = part if part.get("thought") else {**part, "text": len(part["text"])}
    signed = not entry.keys() <= {"text", "thought"}
    if not (signed or entry["text"]):
        return
    last = kept[-1] if kept else {}
    if not signed and last.keys() == entry.keys() and type(last["text"]) is type(entry["text"]):
        kept[-1] = {**entry, "text": last["text"] + entry["text"]}
    else:
        kept.append(entry)


def _with_words(reason: str, words: str | None) -> str:
    return f"{reason}: {words}" if words else reason


def _unreadable(error: Exception) -> ResponseValidationError:
    return ResponseValidationError(f"the response cannot be read: {type(error).__name__}: {error}")
