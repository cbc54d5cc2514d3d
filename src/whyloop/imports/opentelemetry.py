"""Spans of OpenTelemetry's conventions for generative AI, as OTLP JSON, also in the forms before 2025."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from whyloop.imports.transcript import (
    MISREAD,
    UNKNOWN_USAGE,
    LogError,
    LogFormat,
    LoggedAnswer,
    Result,
    Transcript,
    first_text,
    joined_text,
    object_in,
    objects_in,
    text_of,
)
from whyloop.models.openai_chat import FINISH_REASONS
from whyloop.models.provider import parsed, token_count
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.messages import Message, MessageRole, ToolCall
from whyloop.values.model import FinishReason, ModelSource, Usage
from whyloop.values.text import clean, counted, shortened

_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_CHATS = frozenset(("chat", "generate_content", "text_completion"))
_TOOL, _AGENT = "execute_tool", "invoke_agent"
_FAILED = 2
_FINISH_REASONS = FINISH_REASONS | dict.fromkeys(("tool_call", "tool_use"), FinishReason.TOOL_CALLS)
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


class Span(Struct):
    """One span: an operation, its attributes and its times."""

    id: str
    parent: str
    trace: str
    operation: str
    start: datetime
    end: datetime
    error: str | None
    attributes: dict[str, Any]


class OpenTelemetryLog(LogFormat):
    """Spans in OTLP JSON; a run is what one agent did: all chats and tools below its `invoke_agent`.

    The spans of a run may be in several lines of a file, so runs are complete at its end.
    """

    title = "a file of OpenTelemetry spans"

    def __init__(self) -> None:
        self._spans: dict[str, Span] = {}
        self._parents: dict[str, str] = {}

    def fits(self, document: object) -> bool:
        run = document[0] if isinstance(document, list) and document else document
        return isinstance(run, dict) and "resourceSpans" in run

    def runs(self, document: object) -> Iterable[object]:
        broken: LogError | None = None
        for batch in document if isinstance(document, list) else [document]:
            for data in _spans_of(batch):
                try:
                    span = _span(data)
                except LogError as error:
                    broken = error
                    continue
                except (RecursionError, *MISREAD) as error:
                    broken = LogError(f"a span does not follow OpenTelemetry: {error!r}")
                    continue
                key = f"{span.trace}/{span.id}"
                self._parents[key] = f"{span.trace}/{span.parent}" if span.parent else ""
                if span.operation in _CHATS or span.operation in (_TOOL, _AGENT):
                    self._spans[key] = span
        if broken is not None:
            raise broken
        return ()

    def rest(self) -> Iterable[object]:
        groups: dict[str, list[Span]] = {}
        for key, span in sorted(self._spans.items(), key=lambda each: each[1].start):
            groups.setdefault(self._agent_of(key, span), []).append(span)
        for key, spans in groups.items():
            if any(span.operation != _AGENT for span in spans):
                yield self._spans.get(key), spans

    def absence(self) -> str:
        if not self._parents:
            return "no spans found: use OTLP JSON, an object with resourceSpans, scopeSpans and spans"
        return (
            f"{counted(len(self._parents), 'span')} found, but no model call: use spans with the "
            "attribute gen_ai.operation.name, such as chat or execute_tool"
        )

    def _agent_of(self, key: str, span: Span) -> str:
        """Return the key of the agent that a span is part of, or its trace."""
        if span.operation == _AGENT:
            return key
        for _ in range(len(self._parents)):
            key = self._parents.get(key, "")
            if not key:
                break
            above = self._spans.get(key)
            if above is not None and above.operation == _AGENT:
                return key
        return span.trace

    def read(self, run: object) -> Transcript:
        assert isinstance(run, tuple)
        agent, spans = run
        first = agent or spans[0]
        transcript = Transcript(first_text(first.attributes, "gen_ai.conversation.id") or first.trace)
        transcript.agent = first_text(first.attributes, "gen_ai.agent.name")
        transcript.metadata["trace"] = first.trace
        chats = [span for span in spans if span.operation in _CHATS]
        tools = [span for span in spans if span.operation == _TOOL]
        if not chats:
            raise LogError(f"trace {shortened(first.trace, 60)!r} has tool calls, but no model call")
        if model := _model(chats[0]):
            transcript.metadata["model"] = model
        for text in _instructions(chats[0]) or _instructions(first):
            transcript.instruct(text)
        seen, has_content = 0, False
        ends = [*[chat.start for chat in chats[1:]], datetime.max.replace(tzinfo=UTC)]
        for chat, end in zip(chats, ends, strict=True):
            given = _messages(chat, _INPUT) or (_messages(first, _INPUT) if chat is chats[0] else [])
            ran = [tool for tool in tools if chat.start <= tool.start < end]
            for entry in given[seen:]:
                _add_message(transcript, entry, chat.start)
            if not transcript.items:
                transcript.query(Message.user(""), chat.start)
            answer = _answer(chat, ran)
            has_content = has_content or bool(given)
            transcript.answer(answer)
            _add_results(transcript, answer, ran)
            seen = len(given) + (answer.message is not None) if given else 0
        if not has_content:
            transcript.gaps.append("the spans have no messages: texts are unknown")
        return transcript


def _spans_of(batch: object) -> Iterable[Mapping[str, Any]]:
    for resource in _dicts(batch, "resourceSpans"):
        for scope in (*_dicts(resource, "scopeSpans"), *_dicts(resource, "instrumentationLibrarySpans")):
            yield from _dicts(scope, "spans")


def _dicts(data: object, key: str) -> list[dict[str, Any]]:
    return objects_in(data.get(key)) if isinstance(data, dict) else []


def _span(data: Mapping[str, Any]) -> Span:
    events = [{**_attributes(each), "event.name": each.get("name")} for each in _dicts(data, "events")]
    attributes = _with_messages(_attributes(data), events)
    status, kind = object_in(data, "status"), first_text(attributes, "error.type")
    failed = bool(kind) or status.get("code") in (_FAILED, "STATUS_CODE_ERROR")
    texts = [kind if kind != "_OTHER" else "", first_text(status, "message")]
    operation = first_text(attributes, "gen_ai.operation.name")
    if not operation and first_text(attributes, "llm.request.type") in ("chat", "completion"):
        operation = "chat"  # As OpenLLMetry names it.
    start, end = _time(data, "startTimeUnixNano"), _time(data, "endTimeUnixNano")
    return Span(
        first_text(data, "spanId"),
        first_text(data, "parentSpanId"),
        first_text(data, "traceId"),
        operation,
        start,
        max(start, end),
        (shortened(": ".join(filter(None, texts)), 300) or "an error without a message") if failed else None,
        attributes,
    )


def _attributes(data: Mapping[str, Any]) -> dict[str, Any]:
    return {text_of(each.get("key")): _value(each.get("value")) for each in _dicts(data, "attributes")}


def _time(data: Mapping[str, Any], key: str) -> datetime:
    try:
        return _1970 + timedelta(microseconds=int(data[key]) // 1000)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise LogError(f"a span has no {key}: {shortened(repr(data.get(key)), 60)}") from None


def _value(value: object) -> Any:
    """Return the value of an attribute; lists and objects inside of it too."""
    if not isinstance(value, dict):
        return None
    for kind, held in value.items():
        match kind:
            case "intValue":
                return int(held) if str(held).lstrip("-").isdigit() else None
            case "arrayValue":
                return [_value(each) for each in _dicts(held, "values")]
            case "kvlistValue":
                return {each.get("key"): _value(each.get("value")) for each in _dicts(held, "values")}
            case "stringValue" | "boolValue" | "doubleValue" | "bytesValue":
                return held
    return None


def _model(span: Span) -> str:
    return first_text(span.attributes, "gen_ai.response.model", "gen_ai.request.model")


def _parsed(span: Span, key: str) -> Any:
    """Return an attribute that is an object, or the JSON of one."""
    held = span.attributes.get(key)
    return _from_json(held) if isinstance(held, str) else held


def _from_json(text: str) -> Any:
    """Return the value that a text has in JSON, or the text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _messages(span: Span, key: str) -> list[dict[str, Any]]:
    return objects_in(_parsed(span, key))


def _instructions(span: Span) -> list[str]:
    held = _parsed(span, "gen_ai.system_instructions")
    return [held] if isinstance(held, str) else [text_of(each.get("content")) for each in objects_in(held)]


def _texts(entry: Mapping[str, Any], kind: str = "text") -> str:
    parts = [part for part in _dicts(entry, "parts") if part.get("type") == kind]
    texts = [text_of(part.get("content")) for part in parts]
    return "\n".join(texts) if parts or kind != "text" else text_of(entry.get("content"))


def _message(entry: Mapping[str, Any]) -> Message:
    """Return an answer of the model."""
    calls = [
        ToolCall(first_text(part, "id"), clean(first_text(part, "name")), parsed(part.get("arguments")))
        for part in _dicts(entry, "parts")
        if part.get("type") == "tool_call" and first_text(part, "name")
    ]
    thoughts = _texts(entry, "reasoning") or _texts(entry, "thinking")
    return Message(MessageRole.ASSISTANT, _texts(entry), tuple(calls), reasoning=thoughts)


def _add_message(transcript: Transcript, entry: Mapping[str, Any], at: datetime) -> None:
    match entry.get("role"):
        case "system" | "developer":
            transcript.instruct(_texts(entry), at)
        case "user":
            transcript.query(Message.user(_texts(entry)), at)
        case "assistant":
            transcript.answer(LoggedAnswer(_message(entry), at))
        case "tool":
            for part in _dicts(entry, "parts"):
                _add_response(transcript, part, at)
        case role:
            raise LogError(f"unknown role {shortened(repr(role), 60)}")


def _add_response(transcript: Transcript, part: Mapping[str, Any], at: datetime) -> None:
    """Add the result of a call, unless the span of the tool has it already."""
    call_id = first_text(part, "id")
    last = transcript.items[-1] if transcript.items else None
    text = text_of(part.get("response", part.get("result")))
    if isinstance(last, LoggedAnswer) and last.message is not None:
        for call, result in zip(last.message.tool_calls, last.results, strict=True):
            if call.id == call_id and result is not None:
                result.content = result.content or text
                return
    transcript.result(call_id or None, Result(text, at=at))


def _answer(chat: Span, tools: Sequence[Span]) -> LoggedAnswer:
    """Return the answer of a chat.

    Without messages, its calls are those of the tools that ran.
    """
    usage, word = _usage(chat), _finish_word(chat)
    source = ModelSource(
        _model(chat) or None, first_text(chat.attributes, "gen_ai.response.id") or None, word
    )
    reason = None if word is None else _FINISH_REASONS.get(word, FinishReason.OTHER)
    answer = LoggedAnswer(None, chat.end, chat.start, usage, reason, source)
    if chat.error is not None:
        answer.failure = Failure(_error_type(chat), chat.error)
        return answer
    if entries := _messages(chat, _OUTPUT):
        answer.message = _message(entries[0])
    else:
        calls = [
            ToolCall(
                first_text(tool.attributes, "gen_ai.tool.call.id") or tool.id,
                clean(first_text(tool.attributes, "gen_ai.tool.name") or "unknown"),
                parsed(_parsed(tool, "gen_ai.tool.call.arguments")),
            )
            for tool in tools
        ]
        answer.message = Message(MessageRole.ASSISTANT, "", tuple(calls))
    return answer


def _add_results(transcript: Transcript, answer: LoggedAnswer, tools: Sequence[Span]) -> None:
    """Add what the spans of tools say about the calls of an answer."""
    calls = list(answer.message.tool_calls) if answer.message is not None else []
    for tool in tools:
        call_id = first_text(tool.attributes, "gen_ai.tool.call.id")
        name = first_text(tool.attributes, "gen_ai.tool.name")
        call = next((each for each in calls if each.id == (call_id or tool.id)), None)
        call = call or next((each for each in calls if not call_id and each.name == name), None)
        if call is None:
            continue  # A tool that the model did not ask for.
        calls.remove(call)
        content = text_of(_parsed(tool, "gen_ai.tool.call.result"))
        seconds = (tool.end - tool.start).total_seconds()
        kind = _error_type(tool, ErrorType.TOOL)
        transcript.result(call.id, Result(content or tool.error or "", tool.error, kind, tool.end, seconds))


def _finish_word(chat: Span) -> str | None:
    held = chat.attributes.get("gen_ai.response.finish_reasons")
    if isinstance(held, list) and held and isinstance(held[0], str):
        return held[0]
    entries = _messages(chat, _OUTPUT)
    return (first_text(entries[0], "finish_reason") or None) if entries else None


def _usage(chat: Span) -> Usage:
    read, written = (
        chat.attributes.get(f"gen_ai.usage.{key}", chat.attributes.get(f"gen_ai.usage.{older}"))
        for key, older in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
    )
    if read is None and written is None:
        return UNKNOWN_USAGE
    cached = chat.attributes.get("gen_ai.usage.cache_read.input_tokens")
    writes = chat.attributes.get("gen_ai.usage.cache_creation.input_tokens")
    return Usage(
        token_count(read),
        token_count(written),
        cached=token_count(cached),
        cache_writes=token_count(writes),
        reported=read is not None and written is not None,
    )


def _error_type(span: Span, default: ErrorType = ErrorType.MODEL) -> ErrorType:
    kind = first_text(span.attributes, "error.type").lower()
    if "timeout" in kind or kind in ("408", "504"):
        return ErrorType.TIMEOUT
    if kind in ("429", "529") or "ratelimit" in kind.replace("_", ""):
        return ErrorType.RATE_LIMIT
    return default


# Older forms of the conventions: until 2025 messages were events of a span, `gen_ai.user.message` and
# `gen_ai.choice`, and before that `gen_ai.content.prompt` and `gen_ai.content.completion`. OpenLLMetry writes
# one attribute for each field of a message, `gen_ai.prompt.0.role`.

_MESSAGE = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_FIELD = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(role|content|finish_reason|tool_call_id)")
_CALL_FIELD = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.tool_calls\.(\d+)\.(id|name|arguments)")

Messages = list[Mapping[str, Any]]


def _with_messages(attributes: dict[str, Any], events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes of a span, with the messages that its events have or older attributes."""
    if _INPUT in attributes or _OUTPUT in attributes:
        return attributes
    given, answers = _in_events(events)
    if not given and not answers:
        given, answers = _in_attributes(attributes, "prompt"), _in_attributes(attributes, "completion")
    if not given and not answers:
        return attributes
    return {**attributes, _INPUT: list(map(_entry, given)), _OUTPUT: list(map(_entry, answers))}


def _in_events(events: Iterable[Mapping[str, Any]]) -> tuple[Messages, Messages]:
    """Return the messages that a model read, and those that it wrote."""
    given: Messages = []
    answers: Messages = []
    for event in events:
        name = first_text(event, "event.name")
        content = _decoded(event.get("gen_ai.event.content"))
        body: Mapping[str, Any] = content if isinstance(content, dict) else event
        if name == "gen_ai.content.prompt":
            given += _objects(event.get("gen_ai.prompt"))
        elif name == "gen_ai.content.completion":
            answers += _objects(event.get("gen_ai.completion"))
        elif name == "gen_ai.choice":
            message = _decoded(body.get("message"))
            held = message if isinstance(message, dict) else body
            answers.append({"finish_reason": body.get("finish_reason"), **held, "role": "assistant"})
        elif found := _MESSAGE.fullmatch(name):
            given.append({"role": found[1], **body})
    return given, answers


def _in_attributes(attributes: Mapping[str, Any], kind: str) -> Messages:
    """Return messages that have one attribute for each field."""
    messages: dict[int, dict[str, Any]] = {}
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    for key, value in attributes.items():
        if (field := _FIELD.fullmatch(key)) and field[1] == kind:
            messages.setdefault(int(field[2]), {})[field[3]] = value
        elif (field := _CALL_FIELD.fullmatch(key)) and field[1] == kind:
            messages.setdefault(int(field[2]), {})
            calls.setdefault((int(field[2]), int(field[3])), {})[field[4]] = value
    for (number, _), call in sorted(calls.items()):
        messages[number].setdefault("tool_calls", []).append(call)
    return [messages[number] for number in sorted(messages)]


def _entry(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the current form: a role, and parts."""
    role, text = first_text(message, "role") or "assistant", joined_text(_decoded(message.get("content")))
    if role == "tool":
        result = {"type": "tool_call_response", "response": text}
        return {"role": role, "parts": [{**result, "id": first_text(message, "tool_call_id", "id")}]}
    parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
    for call in _objects(message.get("tool_calls")):
        function = call.get("function")
        named = function if isinstance(function, dict) else call
        asked = {"id": first_text(call, "id"), "name": named.get("name"), "arguments": named.get("arguments")}
        parts.append({"type": "tool_call", **asked})
    return {"role": role, "parts": parts, "finish_reason": message.get("finish_reason")}


def _decoded(value: Any) -> Any:
    """Return a value, decoded if it is a JSON object or list."""
    is_written = isinstance(value, str) and value.lstrip().startswith(("{", "["))
    return _from_json(value) if is_written else value


def _objects(value: object) -> Messages:
    """Return one object or a list of them, which may be written as JSON."""
    held = _decoded(value)
    return [*objects_in(held if isinstance(held, list) else [held])]
