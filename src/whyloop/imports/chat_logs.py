"""Logs of OpenAI's chat completions and responses, and of Anthropic's messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from whyloop.errors import ConfigurationError, WhyloopError
from whyloop.imports.transcript import (
    MISREAD,
    LogError,
    LogFormat,
    LoggedAnswer,
    Result,
    Transcript,
    answer_of,
    first_text,
    first_time,
    list_of,
    naming,
    object_of,
    text_of,
)
from whyloop.models.anthropic import AnthropicMessages
from whyloop.models.openai_chat import OpenAIChat
from whyloop.models.openai_response_items import kind_of, response_from
from whyloop.values.messages import FilePart, ImagePart, Message, MessageRole, Part, TextPart
from whyloop.values.model import ModelResponse
from whyloop.values.text import shortened

_IDS = ("id", "conversation_id", "session_id", "thread_id", "custom_id", "run_id", "trace_id")
_TIMES = ("timestamp", "created_at", "created", "time")
_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use")


class ChatLog(LogFormat):
    """A log of conversations, each a list of messages: the part that both providers share."""

    def runs(self, document: object) -> Sequence[object]:
        if isinstance(document, list) and not (document and _is_message(document[0])):
            return document
        return [document]

    def read(self, run: object) -> Transcript:
        document: Mapping[str, Any] = (
            {"messages": run} if isinstance(run, list) else object_of(run, "the run")
        )
        request, response = document.get("request"), document.get("response")
        name = first_text(document, *_IDS)
        if isinstance(request, dict):  # The form that proxies write.
            document = {**document, **request}
        transcript = Transcript(name)
        transcript.agent = first_text(document, "agent", "agent_name")
        transcript.began_at = first_time(document, *_TIMES)
        if model := first_text(document, "model"):
            transcript.metadata["model"] = model
        self.read_messages(transcript, document, response if isinstance(response, dict) else document)
        if not transcript.items:
            raise LogError("it has no messages")
        return transcript

    @abstractmethod
    def read_messages(
        self, transcript: Transcript, request: Mapping[str, Any], response: Mapping[str, Any]
    ) -> None:
        """Add the messages of a request, and the answer in the response, if there is one."""

    def add_messages(self, transcript: Transcript, request: Mapping[str, Any]) -> None:
        """Add each of the messages of a request."""
        for number, entry in enumerate(list_of(request.get("messages"), "messages"), 1):
            with naming(f"message {number}"):
                self.add_message(transcript, object_of(entry, "it"))

    @abstractmethod
    def add_message(self, transcript: Transcript, entry: Mapping[str, Any]) -> None:
        """Add one message."""


class OpenAILog(ChatLog):
    """Conversations in the form of OpenAI's chat completions, or of its responses."""

    title = "an OpenAI chat log"

    def fits(self, document: object) -> bool:
        run = _first_run(document)
        messages = _messages_of(run)
        if messages:
            return not _has_blocks(messages) and all(map(_is_message, messages[:1]))
        return isinstance(run, dict) and ("choices" in run or isinstance(run.get("output"), list))

    def read_messages(
        self, transcript: Transcript, request: Mapping[str, Any], response: Mapping[str, Any]
    ) -> None:
        if "messages" not in request and ("input" in request or "output" in response):
            _read_items(transcript, request, response)
            return
        self.add_messages(transcript, request)
        if response.get("choices"):
            transcript.answer(_read(OpenAIChat().read_document, response, response))

    def add_message(self, transcript: Transcript, entry: Mapping[str, Any]) -> None:
        at = first_time(entry, *_TIMES)
        match entry.get("role"):
            case "system" | "developer":
                transcript.instruct(_text_of_parts(entry.get("content")), at)
            case "user":
                transcript.query(Message(MessageRole.USER, _content(entry.get("content"))), at)
            case "assistant":
                transcript.answer(_read(_read_chat_message, entry, entry))
            case "tool":
                content = _text_of_parts(entry.get("content"))
                transcript.result(
                    first_text(entry, "tool_call_id") or None, Result(content, at=at), _name(entry)
                )
            case "function":
                transcript.result(None, Result(_text_of_parts(entry.get("content")), at=at), _name(entry))
            case role:
                raise _unknown_role(role)


def _read_chat_message(entry: Mapping[str, Any]) -> ModelResponse:
    message = {**entry, "content": entry.get("content") or entry.get("refusal")}
    message.pop("refusal", None)
    document = {
        "choices": [{"message": message, "finish_reason": entry.get("finish_reason")}],
        "usage": entry.get("usage"),
        "model": entry.get("model"),
    }
    return OpenAIChat().read_document(document)


# Items of responses


def _read_items(transcript: Transcript, request: Mapping[str, Any], response: Mapping[str, Any]) -> None:
    transcript.instruct(text_of(request.get("instructions") or response.get("instructions")))
    given = request.get("input", [])
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list_of(given, "input")
    held: list[Mapping[str, Any]] = []

    def answer(document: Mapping[str, Any]) -> None:
        if held:
            transcript.answer(_read(response_from, {**document, "output": list(held)}, document))
            held.clear()

    for number, entry in enumerate(items, 1):
        item = object_of(entry, f"item {number}")
        kind, role = kind_of(item), item.get("role")
        if kind in ("function_call", "reasoning") or role == "assistant":
            held.append({"type": "message", **item} if role == "assistant" else item)
            continue
        answer({"status": "completed"})
        if kind == "function_call_output":
            call_id = first_text(item, "call_id") or None
            transcript.result(call_id, Result(_text_of_parts(item.get("output"))))
        elif role in ("system", "developer"):
            transcript.instruct(_text_of_parts(item.get("content")))
        elif role == "user":
            transcript.query(Message(MessageRole.USER, _content(item.get("content"))))
        else:
            raise LogError(f"item {number}: unknown type {shortened(repr(kind or role), 60)}")
    answer({"status": "completed"})
    held.extend(list_of(response.get("output") or [], "output"))
    answer({"status": "completed", **response})


# Anthropic


class AnthropicLog(ChatLog):
    """Conversations in the form of Anthropic's messages."""

    title = "an Anthropic message log"

    def fits(self, document: object) -> bool:
        run = _first_run(document)
        messages = _messages_of(run)
        roles = [entry.get("role") for entry in messages if isinstance(entry, dict)]
        if not messages or not all(role in ("user", "assistant") for role in roles):
            return False
        calls = any(isinstance(entry, dict) and entry.get("tool_calls") for entry in messages)
        says_so = isinstance(run, dict) and ("system" in run or "stop_reason" in run)
        return not calls and (_has_blocks(messages) or says_so or _has_only_blocks_of_text(messages))

    def read_messages(
        self, transcript: Transcript, request: Mapping[str, Any], response: Mapping[str, Any]
    ) -> None:
        transcript.instruct(_text_of_parts(request.get("system")))
        self.add_messages(transcript, request)
        if isinstance(response.get("content"), list) and response.get("role") == "assistant":
            self.add_message(transcript, response)

    def add_message(self, transcript: Transcript, entry: Mapping[str, Any]) -> None:
        at, content = first_time(entry, *_TIMES), entry.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found = [object_of(block, "a block") for block in list_of(blocks or [], "its content")]
        match entry.get("role"):
            case "assistant":
                document = {**entry, "content": found}
                transcript.answer(_read(AnthropicMessages().read_document, document, entry))
            case "user":
                results = [block for block in found if block.get("type") == "tool_result"]
                others = [block for block in found if block.get("type") != "tool_result"]
                for block in results:
                    transcript.result(first_text(block, "tool_use_id") or None, _tool_result(block, at))
                if results and others:  # Without a developer role, feedback is beside the results.
                    transcript.instruct(_text_of_parts(others), at)
                elif others or not results:
                    transcript.query(Message(MessageRole.USER, _content(others)), at)
            case role:
                raise _unknown_role(role)


def _tool_result(block: Mapping[str, Any], at: Any) -> Result:
    content = _text_of_parts(block.get("content"))
    error = shortened(content, 300) or "the tool failed" if block.get("is_error") else None
    return Result(content, error, at=at)


# Shared by both providers


def _read(reader: Any, document: Mapping[str, Any], entry: Mapping[str, Any]) -> LoggedAnswer:
    """Return the answer, read like a provider's; raise a `LogError` if it is invalid."""
    try:
        return answer_of(reader(document), first_time(entry, *_TIMES))
    except LogError:
        raise
    except (WhyloopError, *MISREAD) as error:
        raise LogError(f"not a response of this API: {shortened(str(error) or repr(error), 200)}") from None


def _unknown_role(role: object) -> LogError:
    return LogError(f"unknown role {shortened(repr(role), 60)}")


def _name(entry: Mapping[str, Any]) -> str | None:
    return first_text(entry, "name") or None


def _first_run(document: object) -> object:
    if isinstance(document, list) and document and not _is_message(document[0]):
        return document[0]
    return document


def _messages_of(run: object) -> list[Any]:
    if isinstance(run, dict) and isinstance(run.get("request"), dict):
        run = run["request"]
    messages = run.get("messages") if isinstance(run, dict) else run
    return messages if isinstance(messages, list) else []


def _is_message(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("role"), str)


def _has_blocks(messages: list[Any]) -> bool:
    """Return whether a message has blocks that only Anthropic's API has."""
    for entry in messages:
        content = entry.get("content") if isinstance(entry, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") in _BLOCKS:
                return True
    return False


def _has_only_blocks_of_text(messages: list[Any]) -> bool:
    """Return whether all messages, the assistant's too, are lists of parts."""
    return all(isinstance(entry, dict) and isinstance(entry.get("content"), list) for entry in messages)


def _text_of_parts(content: object) -> str:
    """Return the text of a message; name any other content."""
    kept = _content(content)
    if isinstance(kept, str):
        return kept
    named = {ImagePart: "[image]", FilePart: "[file]"}
    return "\n".join([part.text if isinstance(part, TextPart) else named[type(part)] for part in kept])


def _content(content: object) -> str | tuple[Part, ...]:
    """Return the content of a message: text, or parts with images or files."""
    if not isinstance(content, list):
        return text_of(content)
    parts = [_part(part) for part in content]
    if not parts:
        return ""
    return parts[0].text if len(parts) == 1 and isinstance(parts[0], TextPart) else tuple(parts)


def _part(part: object) -> Part:
    if not isinstance(part, dict):
        return TextPart(text_of(part))
    if isinstance(part.get("text"), str):
        return TextPart(text_of(part["text"]))
    try:
        held = _image_or_file(part)
    except (ConfigurationError, *MISREAD):
        held = None  # Not in the provider's form, but the conversation can be read without it.
    return held or TextPart(f"[{text_of(part.get('type')) or 'part'} left out]")


def _image_or_file(part: Mapping[str, Any]) -> Part | None:
    match part.get("type"):
        case "image_url" | "input_image":
            held = part.get("image_url")
            return ImagePart(*_address(held.get("url") if isinstance(held, dict) else held))
        case "image":
            return ImagePart(*_source(part))
        case "document":
            return FilePart(*_source(part))
        case "file" | "input_file":
            inner = part.get("file")
            file = inner if isinstance(inner, dict) else part
            url, data, media = _address(file.get("file_data") or file.get("file_url"))
            return FilePart(url, data, media, first_text(file, "filename") or None)
    return None


def _address(url: object) -> tuple[str | None, str | None, str | None]:
    """Return an address, or the data and the type in a data URL."""
    head, comma, data = text_of(url).partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return None, data, head[5:-7] or None
    return text_of(url), None, None


def _source(part: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    source = part["source"]
    if source.get("type") == "url":
        return source["url"], None, None
    return None, source["data"], source.get("media_type")
