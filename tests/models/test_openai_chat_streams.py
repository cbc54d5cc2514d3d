"""Chat completions: streamed answers, cut in any way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.recorded import deltas_of, message_of, streamed
from whyloop.errors import ModelError, RateLimitError, ResponseValidationError
from whyloop.models.openai_chat import OpenAIChat, message_document
from whyloop.values.model import FinishReason, ModelResponse, ReasoningDelta, TextDelta

DONE = "[DONE]"


def read(*chunks: Any) -> tuple[ModelResponse, str]:
    """The response in these chunks, and the text that was shown."""
    events = [
        b"data: " + (chunk if isinstance(chunk, str) else json.dumps(chunk)).encode() + b"\n\n"
        for chunk in chunks
    ]
    return streamed(OpenAIChat().reader(), events)


def said(content: Any = None, word: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content, **delta}, "finish_reason": word}]}


def piece(arguments: Any = None, name: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {**more, "function": {key: value for key, value in function.items() if value is not None}}


def asked(*pieces: dict[str, Any]) -> dict[str, Any]:
    return said(tool_calls=list(pieces))


def calls_in(*chunks: Any) -> list[tuple[str, Any]]:
    response, shown = read(*chunks, said(word="tool_calls"), DONE)
    assert (response.text, shown) == ("", "")
    assert response.finish_reason is FinishReason.TOOL_CALLS
    assert len({call.id for call in response.tool_calls}) == len(response.tool_calls)
    return [(call.name, call.arguments) for call in response.tool_calls]


def test_text() -> None:
    response, shown = read(
        {"id": "r-1", "model": "m-1", **said("", role="assistant")},
        said("Hello "),
        said("there."),
        said(word="stop"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        DONE,
    )
    assert (response.text, shown, response.finish_reason) == ("Hello there.", "Hello there.", "stop")
    assert (response.usage.input, response.usage.output) == (3, 2)
    assert response.source is not None
    assert (response.source.model, response.source.response_id) == ("m-1", "r-1")


def test_done_is_not_needed_and_may_come_early() -> None:
    assert read(said("Hi", "stop"))[0].text == "Hi"
    assert read(said("Hi"), DONE, said("!", "stop"))[0].text == "Hi!"


def test_a_stream_that_stops_short() -> None:
    with pytest.raises(ResponseValidationError, match="ended before"):
        read(said("Hello "))
    with pytest.raises(ResponseValidationError, match="ended before"):
        read({"choices": []}, DONE)


FIRST, SECOND = ("weather", {"city": "Paris"}), ("time", {"zone": "CET"})


def test_arguments_in_pieces() -> None:
    text = '{"city": "Paris"}'
    pieces = [asked(piece(letter, index=0)) for letter in text]
    assert calls_in(asked(piece("", "weather", index=0, id="a")), *pieces) == [FIRST]


@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', {"city": "Paris"}])
def test_arguments_in_one_piece(arguments: Any) -> None:
    assert calls_in(asked(piece(arguments, "weather", index=0, id="a"))) == [FIRST]


def test_calls_in_turn_and_interleaved() -> None:
    starts = [
        asked(piece("", "weather", index=0, id="a")),
        asked(piece("", "time", index=1, id="b")),
    ]
    pieces = [('{"city"', 0), ('{"zone"', 1), (': "Paris"}', 0), (': "CET"}', 1)]
    assert calls_in(*starts, *[asked(piece(text, index=index)) for text, index in pieces]) == [FIRST, SECOND]
    in_turn = sorted(pieces, key=lambda pair: pair[1])
    assert calls_in(*starts, *[asked(piece(text, index=index)) for text, index in in_turn]) == [FIRST, SECOND]
    both = [asked(*[piece(text, index=index) for text, index in pieces])]
    assert calls_in(*starts, *both) == [FIRST, SECOND]


def test_ids_without_indexes() -> None:
    first, second = piece('{"city": ', "weather", id="a"), piece('{"zone": ', "time", id="b")
    rest = [piece('"Paris"}', id="a"), piece('"CET"}', id="b")]
    assert calls_in(asked(first), asked(second), *map(asked, rest)) == [FIRST, SECOND]
    assert calls_in(asked(first), asked(piece('"Paris"}')), asked(second), asked(piece('"CET"}'))) == [
        FIRST,
        SECOND,
    ]


def test_indexes_without_ids() -> None:
    chunks = [asked(piece('{"city": "Paris"}', "weather", index=0)), asked(piece("", "time", index=1))]
    assert calls_in(*chunks, asked(piece('{"zone": "CET"}', index=1))) == [FIRST, SECOND]


def test_one_index_for_several_calls() -> None:
    first = piece('{"city": "Paris"}', "weather", index=0, id="a")
    second = piece('{"zone": "CET"}', "time", index=0, id="b")
    assert calls_in(asked(first), asked(second)) == [FIRST, SECOND]
    assert calls_in(asked(first, second)) == [FIRST, SECOND]


def test_a_name_and_an_id_that_come_with_every_piece() -> None:
    chunks = [asked(piece(text, "weather", index=0, id="a")) for text in ('{"city"', ': "Paris"}')]
    assert calls_in(*chunks) == [FIRST]


def test_a_call_without_a_name_is_unreadable() -> None:
    with pytest.raises(ResponseValidationError, match="without a name"):
        calls_in(asked(piece("{}", index=0, id="a")))


@pytest.mark.parametrize("cut", range(1, 17))
def test_content_that_repeats_the_call_is_never_shown(cut: int) -> None:
    text = '{"city": "Paris"}'
    call = asked(piece(text, "weather", index=0, id="a"))
    assert calls_in(said(text[:cut]), said(text[cut:]), call) == [FIRST]
    assert calls_in(call, said(text[:cut]), said(text[cut:])) == [FIRST]


def test_tagged_content_that_repeats_the_call_is_never_shown() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
    call = asked(piece('{"city": "Paris"}', "weather", index=0, id="a"))
    assert calls_in(*map(said, text), call) == [FIRST]


def test_text_beside_a_call_is_shown_at_once() -> None:
    call = asked(piece("{}", "weather", index=0, id="a"))
    response, shown = read(said("Let me "), said("see: {"), call, said(word="tool_calls"))
    assert (response.text, shown) == ("Let me see: {", "Let me see: ")


def test_json_is_shown_as_it_comes_where_no_tool_was_offered() -> None:
    response, shown = read(said('{"city": '), said('"Paris"}', "stop"))
    assert (response.text, shown) == ('{"city": "Paris"}', '{"city": "Paris"}')


def test_the_first_text_waits_until_it_is_language() -> None:
    response, shown = read(said("<"), said("b> bold", "stop"))
    assert (response.text, shown) == ("<b> bold", "<b> bold")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thoughts_are_reasoning(key: str) -> None:
    thoughts = [said(**{key: "Hm, "}), said(**{key: "yes."})]
    response, shown = read(*thoughts, said("Yes.", "stop"))
    assert (response.text, shown, response.reasoning) == ("Yes.", "Yes.", "Hm, yes.")


def test_reasoning_content_goes_back_whole_with_its_calls() -> None:
    call = asked(piece("{}", "weather", index=0, id="a"))
    response, _ = read(
        said(reasoning_content="Hm, "), said(reasoning_content="yes."), call, said(word="stop")
    )
    assert message_document(message_of(response))["reasoning_content"] == "Hm, yes."


def test_thinking_parts_are_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    response, shown = read(said([thinking]), said([{"type": "text", "text": "Yes."}], "stop"))
    assert (response.text, shown, response.reasoning) == ("Yes.", "Yes.", "Hm.")


def test_fields_that_a_host_wants_back_are_sent_back() -> None:
    signed: dict[str, Any] = {"extra_content": {"google": {"thought_signature": "s"}}}
    call = piece("{}", "weather", index=0, id="a", **signed)
    details = [{"type": "reasoning.encrypted", "data": "x", "index": 0}]
    response, _ = read(
        said(reasoning_details=details, thought_signature="t", **signed), asked(call), said(word="tool_calls")
    )
    document = message_document(message_of(response))
    assert (document["reasoning_details"], document["thought_signature"]) == (details, "t")
    assert document["extra_content"] == document["tool_calls"][0]["extra_content"] == signed["extra_content"]


def test_a_refusal_in_pieces() -> None:
    with pytest.raises(ModelError, match="refused: I will not"):
        read(said(refusal="I will "), said(refusal="not."), said(word="stop"))


def test_an_error_inside_the_stream() -> None:
    with pytest.raises(RateLimitError, match="slow down"):
        read(said("Hello "), {"error": {"code": 429, "message": "slow down"}})
    with pytest.raises(ModelError, match="broken"):
        list(OpenAIChat().reader().read("error", b'{"message": "broken"}'))


@pytest.mark.parametrize(
    "data",
    ["", "text", "{", "[]", "7", '{"choices": [7]}', '{"choices": 7}', '{"choices": [{"delta": "text"}]}'],
)
def test_an_unreadable_chunk_is_refused(data: str) -> None:
    with pytest.raises(ResponseValidationError):
        list(OpenAIChat().reader().read("", data.encode()))


def test_usage_in_the_fields_of_groq() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    response, _ = read(said("Hi"), {**said(word="stop"), "x_groq": {"id": "r", "usage": usage}})
    assert (response.usage.input, response.usage.output) == (3, 2)


@pytest.mark.parametrize("more", [{}, {"index": 0}, {"index": 0, "id": ""}])
@pytest.mark.parametrize("apart", [True, False])
def test_whole_calls_that_only_a_name_sets_apart(more: dict[str, Any], apart: bool) -> None:
    pieces = [piece('{"city": "Paris"}', "weather", **more), piece('{"zone": "CET"}', "time", **more)]
    assert calls_in(*(map(asked, pieces) if apart else [asked(*pieces)])) == [FIRST, SECOND]


def test_the_rest_of_a_call_whose_index_is_taken() -> None:
    first = asked(piece('{"city": "Paris"}', "weather", index=0, id="a"))
    second = asked(piece("", "time", index=0, id="b"))
    assert calls_in(first, second, asked(piece('{"zone": "CET"}', index=0))) == [FIRST, SECOND]


def test_details_in_pieces_go_back_as_one() -> None:
    detail = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    pieces = [{**detail, "text": "Hm, "}, {**detail, "text": "yes."}, {**detail, "signature": "s"}]
    response, _ = read(*[said(reasoning_details=[one]) for one in pieces], said("Yes.", "stop"))
    sent = message_document(message_of(response))["reasoning_details"]
    assert sent == [{**detail, "text": "Hm, yes.", "signature": "s"}]


@pytest.mark.parametrize("more", [{"choices": [{"delta": {}, "finish_reason": ["stop"]}]}])
def test_values_of_the_wrong_kind_are_unreadable(more: dict[str, Any]) -> None:
    with pytest.raises(ResponseValidationError):
        read({**said("Hi", "stop"), **more})


def test_only_the_first_of_several_answers_is_read() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "Other"}}]}
    assert read(said("Hi"), other, said(word="stop"))[0].text == "Hi"


def test_reasoning_streams_as_it_comes() -> None:
    chunks = [said(reasoning_content="Hm, "), said(reasoning="so."), said("Hi", "stop")]
    body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    assert deltas_of(OpenAIChat().reader(), body) == [
        ReasoningDelta("Hm, "),
        ReasoningDelta("so."),
        TextDelta("Hi"),
    ]


def test_custom_calls_pictures_and_audio_are_reported_as_unsupported() -> None:
    custom = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "run_sql", "input": ""}}
    rest = {"index": 0, "custom": {"input": "select 1"}}
    response, _ = read(asked(custom), asked(rest), said(word="tool_calls"))
    assert response.unsupported == ("a custom tool call (run_sql)",)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    response, _ = read(said("Look:", images=[image]), said(word="stop"))
    assert response.unsupported == ("an image",)
