"""Responses against recordings of real answers of OpenAI and Azure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.recorded import (
    Recording,
    answer,
    comparable,
    cuts,
    earlier,
    load,
    message_of,
    recordings,
    streamed,
)
from whyloop.errors import ModelError, ResponseValidationError
from whyloop.models.openai_responses import OpenAIResponses
from whyloop.models.provider import Settings
from whyloop.models.response import http_error
from whyloop.values.messages import FilePart, ImagePart, Message, MessageRole, Part, TextPart
from whyloop.values.model import FinishReason, ModelRequest, ModelResponse, Usage

pytestmark = pytest.mark.parametrize("path", recordings("openai_responses"))

Json = dict[str, Any]

_ENDS = ("response.completed", "response.incomplete")


def final(recording: Recording) -> Json:
    """The response object in a body, or in the event that ends a stream."""
    if not recording.is_stream:
        return recording.documents[0]
    (response,) = [event["response"] for event in recording.documents if event["type"] in _ENDS]
    return dict(response)


def is_answer(recording: Recording) -> bool:
    return recording.status == 200 and final(recording)["status"] != "queued"


def test_text_calls_usage_and_finish_equal_the_json(path: Path) -> None:
    recording = load(path)
    if not is_answer(recording):
        return
    response, said = answer(OpenAIResponses(), recording), final(recording)
    items, usage = said["output"], said["usage"]
    assert response.text == "".join(
        part["text"] for item in items if item["type"] == "message" for part in item["content"]
    )
    assert response.reasoning == "\n\n".join(
        part["text"] for item in items if item["type"] == "reasoning" for part in item["summary"]
    )
    assert [(call.id, call.name, call.arguments) for call in response.tool_calls] == [
        (item["call_id"], item["name"], json.loads(item["arguments"]))
        for item in items
        if item["type"] == "function_call"
    ]
    assert response.usage == Usage(
        input=usage["input_tokens"],
        output=usage["output_tokens"],
        cached=usage["input_tokens_details"]["cached_tokens"],
        reasoning=usage["output_tokens_details"]["reasoning_tokens"],
        cache_writes=usage["input_tokens_details"].get("cache_write_tokens", 0),
    )
    reason = FinishReason.TOOL_CALLS if response.tool_calls else FinishReason.STOP
    assert response.finish_reason == reason
    assert response.source is not None
    assert response.source.finish_word == said["status"]
    assert (response.source.model, response.source.response_id) == (said["model"], said["id"])


def test_a_failed_exchange_is_an_error(path: Path) -> None:
    recording = load(path)
    if recording.status != 200:
        error = http_error(recording.status, recording.headers, recording.body)
        assert type(error) is ModelError
        assert recording.documents[0]["error"]["message"] in str(error)
    elif not is_answer(recording):
        with pytest.raises(ResponseValidationError, match="'queued'"):
            answer(OpenAIResponses(), recording)


def test_a_stream_is_the_same_wherever_it_is_cut(path: Path) -> None:
    recording = load(path)
    if not recording.is_stream:
        return
    whole, shown = streamed(OpenAIResponses().reader(), [recording.body])
    assert whole.text.startswith(shown)
    for chunks in cuts(recording.body):
        again, shown_again = streamed(OpenAIResponses().reader(), chunks)
        assert comparable(again) == comparable(whole)
        assert shown_again == shown


def test_a_stream_is_the_same_without_the_response_at_its_end(path: Path) -> None:
    recording = load(path)
    if not recording.is_stream:
        return
    whole, _ = streamed(OpenAIResponses().reader(), [recording.body])
    for left_out in ((), ("response.output_item.done",)):
        events = [event for event in recording.documents if event["type"] not in left_out]
        emptied = [
            {**event, "response": {**event["response"], "output": []}} if event["type"] in _ENDS else event
            for event in events
        ]
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in emptied)
        again, _ = streamed(OpenAIResponses().reader(), [body])
        assert (again.text, again.tool_calls, again.usage) == (whole.text, whole.tool_calls, whole.usage)
        if not left_out:
            assert items_kept(again) == items_kept(whole)


def items_kept(response: ModelResponse) -> list[Json]:
    """The items that go back, unsealed: the same thought is sealed anew each time it is sent."""
    items = response.extras.get("openai-responses", {}).get("items", [])
    return [{**item, "encrypted_content": bool(item.get("encrypted_content"))} for item in items]


def test_a_stream_that_is_cut_off_is_not_an_answer(path: Path) -> None:
    recording = load(path)
    if not recording.is_stream:
        return
    events = recording.body.replace(b"\r\n", b"\n").strip().split(b"\n\n")
    for count in range(len(events)):
        body = b"\n\n".join(events[:count]) + b"\n\n"
        with pytest.raises(ResponseValidationError):
            streamed(OpenAIResponses().reader(), [body])


def test_a_recorded_request_is_what_we_would_send(path: Path) -> None:
    request = load(path).request
    assert_agree(encoded(messages(request["input"]), request["model"]), request["input"])


def test_an_answer_sent_back_is_what_was_sent_back(path: Path) -> None:
    later = load(path).request
    for before in earlier(path):
        asked = before.request["input"]
        if not is_answer(before) or later["input"][: len(asked)] != asked or kept_by_provider(later):
            continue
        # A later recording than the next one goes on from the same beginning.
        rest = later["input"][len(asked) :]
        ours = sum(1 for _ in itertools.takewhile(is_said_by_model, rest))
        response = answer(OpenAIResponses(), before)
        history = [*messages(asked), message_of(response), *messages(rest[ours:])]
        assert_agree(encoded(history, later["model"]), later["input"])


def kept_by_provider(request: Json) -> bool:
    return bool(request.get("previous_response_id") or request.get("conversation"))


def is_said_by_model(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") not in (
        None,
        "message",
        "function_call_output",
    )


def encoded(history: Iterable[Message], model: str) -> list[Json]:
    body = OpenAIResponses().encode(ModelRequest(list(history)), Settings(model=model))
    items: list[Json] = json.loads(body)["input"]
    return items


def messages(items: Iterable[Json]) -> Iterator[Message]:
    """Recorded items as messages; what a model said in one go goes through the decoder."""
    for by_model, group in itertools.groupby(items, is_said_by_model):
        if by_model:
            body = json.dumps({"status": "completed", "output": list(group)}).encode()
            yield message_of(OpenAIResponses().decode(body))
            continue
        for item in group:
            if item.get("type") == "function_call_output":
                yield Message.result(item["output"], tool_call_id=item["call_id"], tool="")
            else:
                yield Message(MessageRole(item["role"]), content(item["content"]))


def content(said: Any) -> str | tuple[Part, ...]:
    return said if isinstance(said, str) else tuple(map(part, said))


def part(said: Json) -> Part:
    match said["type"]:
        case "input_text":
            return TextPart(said["text"])
        case "input_image":
            return ImagePart(url=said["image_url"])
        case _ if "file_url" in said:
            return FilePart(url=said["file_url"])
        case _:
            head, _, data = said["file_data"].partition(";base64,")
            return FilePart(data=data, media_type=head.removeprefix("data:"), name=said["filename"])


def assert_agree(ours: list[Json], recorded: list[Json]) -> None:
    """The same items in the same order; what only one of them says at all is no disagreement."""
    theirs = [
        item
        for item in map(simple, recorded)
        if item != {"type": "message", "role": "assistant", "content": ""}
    ]
    mine = list(map(simple, ours))
    assert [kind(item) for item in mine] == [kind(item) for item in theirs]
    for one, other in zip(mine, theirs, strict=True):
        shared = one.keys() & other.keys()
        assert {name: one[name] for name in shared} == {name: other[name] for name in shared}
        assert "encrypted_content" not in other or "encrypted_content" in one
        assert one.keys() >= other.keys() - {"status"}


def kind(item: Json) -> tuple[Any, Any]:
    return item["type"], item.get("role")


def simple(item: Json) -> Json:
    """An item without what says nothing, a message's text as text."""
    said = {"type": "message", **{name: value for name, value in item.items() if value is not None}}
    if said.get("role") == "assistant" and not isinstance(said["content"], str):
        said["content"] = "".join(piece["text"] for piece in said["content"])
    return said
