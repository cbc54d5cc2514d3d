"""Habits of hosts, each with a request or a response that shows it."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest

from tests.models.recorded import streamed
from whyloop.errors import ConfigurationError, ModelError, ResponseValidationError
from whyloop.models.openai_chat import OpenAIChat, message_document
from whyloop.models.presets import PRESETS
from whyloop.models.provider import EncodedMessages, Settings, media_of
from whyloop.models.response import ResponseBody
from whyloop.values.messages import FilePart, ImagePart, Message, MessageRole, ToolCall
from whyloop.values.model import ModelRequest, ModelResponse, ReasoningDelta, TextDelta, Usage


def answered(document: dict[str, Any]) -> ModelResponse:
    """What the client makes of a complete body."""
    answer = ResponseBody(OpenAIChat(), "application/json")
    answer.feed(json.dumps(document).encode())
    complete = answer.finish()[-1]
    assert isinstance(complete, ModelResponse)
    return complete


def choice(message: dict[str, Any], word: Any = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": word}], **more}


def chunks(*deltas: dict[str, Any], word: str = "tool_calls") -> list[bytes]:
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": word}]})
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]


@pytest.mark.parametrize("word", ["error", "network_error"])
def test_an_answer_that_ends_in_an_error_is_refused(word: str) -> None:
    with pytest.raises(ModelError, match=word):
        answered(choice({"content": "Half"}, word))


def test_a_source_is_text_or_none() -> None:
    response = answered(choice({"content": "Hi"}, id=5, model=7))
    assert response.source is not None
    assert (response.source.model, response.source.response_id) == (None, None)


def test_one_id_for_two_calls_becomes_two() -> None:
    call = {"id": "same", "function": {"name": "f", "arguments": "{}"}}
    ids = [call.id for call in answered(choice({"tool_calls": [call, call]})).tool_calls]
    assert ids[0] == "same"
    assert len(set(ids)) == 2


def test_the_first_of_several_answers_is_found_by_its_index() -> None:
    second = {"index": 1, "message": {"content": "second"}, "finish_reason": "stop"}
    first = {"index": 0, "message": {"content": "first"}, "finish_reason": "stop"}
    assert answered({"choices": [second, first]}).text == "first"


def test_one_id_at_two_indexes_is_two_calls() -> None:
    def piece(index: int, arguments: str) -> dict[str, Any]:
        call = {"index": index, "id": "same", "function": {"name": "f", "arguments": arguments}}
        return {"tool_calls": [call]}

    response, _ = streamed(OpenAIChat().reader(), chunks(piece(0, '{"a": 1}'), piece(1, '{"a": 2}')))
    assert [call.arguments for call in response.tool_calls] == [{"a": 1}, {"a": 2}]


def test_an_empty_object_before_the_arguments_is_passed_over() -> None:
    pieces = [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
    ]
    response, _ = streamed(OpenAIChat().reader(), chunks(*pieces))
    assert response.tool_calls[0].arguments == {"a": 1}


def test_a_character_that_is_cut_in_two_is_put_together() -> None:
    events = [
        b'data: {"choices": [{"index": 0, "delta": {"content": "\\ud83d"}}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"content": "\\ude00"}, "finish_reason": "stop"}]}\n\n',
    ]
    response, _ = streamed(OpenAIChat().reader(), events)
    assert response.text.encode("utf-16", "surrogatepass").decode("utf-16") == "😀"


def test_text_streams_as_it_comes_where_no_tools_were_offered() -> None:
    pieces = ['{"city"', ': "Oslo"}']
    body = chunks(*[{"content": piece} for piece in pieces], word="stop")
    answer = ResponseBody(OpenAIChat(), "text/event-stream")
    assert ["".join(delta.text for delta in answer.feed(event)) for event in body] == [*pieces, ""]


MISTRAL = PRESETS["mistral"].quirks
ASKED = Message.assistant("", [ToolCall("call_0123456789", "f", {})])


def test_a_host_with_short_ids_gets_the_same_one_for_call_and_result() -> None:
    call_id = message_document(ASKED, MISTRAL)["tool_calls"][0]["id"]
    result = message_document(Message.result("ok", tool_call_id="call_0123456789", tool="f"), MISTRAL)
    assert result["tool_call_id"] == call_id
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert message_document(ASKED)["tool_calls"][0]["id"] == "call_0123456789"


def test_a_host_that_knows_no_developer_gets_system_messages_first_and_user_messages_later() -> None:
    messages = [
        Message.system("Be kind."),
        Message.developer("Be brief."),
        Message.user("Hi"),
        Message.assistant("Hello."),
        Message.developer("You repeat yourself."),
    ]

    def roles(quirks: frozenset[str]) -> list[str]:
        body = OpenAIChat().encode(ModelRequest(messages), Settings(model="m", quirks=quirks))
        return [message["role"] for message in json.loads(body)["messages"]]

    assert roles(MISTRAL) == ["system", "system", "user", "assistant", "user"]
    assert roles(frozenset()) == ["system", "developer", "user", "assistant", "developer"]


def test_reasoning_goes_back_with_every_message_where_the_host_requires_it() -> None:
    thought = Message(MessageRole.ASSISTANT, "Hi", extras={"openai-chat": {"reasoning_content": "Hm."}})
    deepseek = PRESETS["deepseek"].quirks
    assert message_document(thought, deepseek)["reasoning_content"] == "Hm."
    assert message_document(Message.assistant("Hi"), deepseek)["reasoning_content"] == ""
    assert message_document(ASKED, deepseek)["reasoning_content"] == ""
    # Elsewhere only with calls: a host may refuse it on other messages.
    assert "reasoning_content" not in message_document(thought)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 109}, Usage(35, 74, 0, 62)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 35,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(10, 25, 0, 20),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, Usage(10, 5)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 3}, Usage(10, 5)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": "many"}, Usage(10, 5)),
    ],
)
def test_a_total_above_its_parts_counts(usage: dict[str, Any], expected: Usage) -> None:
    assert answered(choice({"content": "Hi"}, usage=usage)).usage == expected


def test_a_riff_file_has_the_type_in_its_header() -> None:
    def riff(kind: bytes) -> str:
        return base64.b64encode(b"RIFF\x24\x00\x00\x00" + kind + b"fmt ").decode()

    assert media_of(FilePart(data=riff(b"WEBP")))[0] == "image/webp"
    assert media_of(FilePart(data=riff(b"WAVE")))[0] == "audio/wav"
    assert media_of(FilePart(data=riff(b"WAVE"), media_type="audio/x-wav"))[0] == "audio/wav"
    assert media_of(FilePart(data=riff(b"AVI ")))[0] == "video/x-msvideo"
    assert media_of(FilePart(data=riff(b"sfbk"), media_type="audio/sf2"))[0] == "audio/sf2"


def test_fields_of_one_host_are_not_sent_to_one_that_refuses_them() -> None:
    thought = Message(
        ASKED.role,
        "",
        ASKED.tool_calls,
        extras={"openai-chat": {"reasoning_content": "Hm.", "extra_content": 1}},
    )
    assert "reasoning_content" not in message_document(thought, PRESETS["groq"].quirks)
    assert message_document(thought)["reasoning_content"] == "Hm."


def test_a_file_by_data_address_is_its_data_and_by_any_other_is_refused() -> None:
    pdf = Message.user([FilePart(url="data:application/pdf;base64,JVBERi0x", name="a.pdf")])
    (part,) = message_document(pdf)["content"]
    assert part["file"] == {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0x"}
    with pytest.raises(ConfigurationError, match="no files by URL") as caught:
        message_document(Message.user([FilePart(url="https://example.org/" + "x" * 500)]))
    assert len(str(caught.value)) < 300


def test_an_image_without_a_type_is_recognised_by_its_bytes() -> None:
    (part,) = message_document(Message.user([ImagePart(data="iVBORw0KGgo=")]))["content"]
    assert part["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="


def test_encoded_messages_are_bounded_by_their_size_and_keep_nothing_huge() -> None:
    encoded: list[str] = []

    def encode(message: Message, _: object) -> bytes:
        encoded.append(message.text[:1])
        return message.text.encode()

    fragments = EncodedMessages(encode, most=25)
    first, second, third = (Message.user(letter * 10) for letter in "abc")
    fragments.of([first, second])
    fragments.of([first, second, third])
    fragments.of([third, second])
    assert encoded == ["a", "b", "c"]
    fragments.of([first])
    assert encoded == ["a", "b", "c", "a"]
    huge = Message.user("x" * (EncodedMessages.LARGEST_BYTES + 1))
    fragments.of([huge])
    fragments.of([huge])
    assert encoded[-2:] == ["x", "x"]


def test_encoded_messages_can_be_shared_by_threads() -> None:
    fragments = EncodedMessages(lambda message, _: message.text.encode(), most=500)
    problems: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(300):
                messages = [Message.user(f"{n:010}") for n in range(20)]
                assert fragments.of(messages) == [message.text.encode() for message in messages]
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"x": "no"}', "x is string"), ("{}", "x is missing"), ("no", "not JSON"), ("", "not JSON")],
)
def test_structured_output_that_misses_its_schema_is_a_validation_error(text: str, words: str) -> None:
    answer = ResponseBody(OpenAIChat(), "application/json", schema=SCHEMA)
    answer.feed(json.dumps(choice({"content": text})).encode())
    with pytest.raises(ResponseValidationError, match=words):
        answer.finish()


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ({"content": '{"x": 1}'}, "stop"),
        ({"content": '{"x": '}, "length"),
        ({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}, "tool_calls"),
    ],
)
def test_only_a_finished_answer_is_held_to_its_schema(message: dict[str, Any], word: str) -> None:
    answer = ResponseBody(OpenAIChat(), "application/json", schema=SCHEMA)
    answer.feed(json.dumps(choice(message, word)).encode())
    assert isinstance(answer.finish()[-1], ModelResponse)


def test_arguments_that_were_no_json_go_back_as_an_empty_object() -> None:
    broken = Message.assistant("", [ToolCall("a", "f", '{"a":1')])
    assert message_document(broken)["tool_calls"][0]["function"]["arguments"] == "{}"


def pieces(answer: ResponseBody, body: list[bytes]) -> tuple[str, str, ModelResponse]:
    """The text and the reasoning that an answer shows, and the complete response."""
    items = [delta for chunk in body for delta in answer.feed(chunk)] + answer.finish()
    response = items[-1]
    assert isinstance(response, ModelResponse)
    texts = [item.text for item in items if isinstance(item, TextDelta)]
    thoughts = [item.text for item in items if isinstance(item, ReasoningDelta)]
    return "".join(texts), "".join(thoughts), response


def test_reasoning_that_did_not_stream_comes_in_one_piece() -> None:
    answer = ResponseBody(OpenAIChat(), "application/json")
    body = json.dumps(choice({"content": "Hi", "reasoning_content": "Hm."})).encode()
    assert pieces(answer, [body])[:2] == ("Hi", "Hm.")
    streams = ResponseBody(OpenAIChat(), "text/event-stream")
    body_chunks = chunks(
        {"reasoning_content": "H"}, {"reasoning_content": "m."}, {"content": "Hi"}, word="stop"
    )
    assert pieces(streams, body_chunks)[:2] == ("Hi", "Hm.")
