"""Responses: streamed answers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.models.recorded import comparable, deltas_of, streamed
from tests.models.responses import Json, called, document, said
from whyloop.errors import ModelError, RateLimitError, ResponseValidationError
from whyloop.models.openai_responses import OpenAIResponses
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, ReasoningDelta, Usage


def event(kind: str, **fields: Any) -> Json:
    return {"type": f"response.{kind}", **fields}


def in_bytes(*events: Json) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one, ensure_ascii=False).encode())
        for one in events
    )


def read(*events: Json) -> tuple[ModelResponse, str]:
    return streamed(OpenAIResponses().reader(), [in_bytes(*events)])


END = event("completed", response={"id": "resp_1", "output": [], "usage": {"input_tokens": 3}})

TWO_AT_ONCE = [
    event("created", response={"id": "resp_1", "model": "gpt-5", "status": "in_progress", "output": []}),
    {"type": "keepalive", "sequence_number": 3},
    event("output_item.added", output_index=0, item={"type": "reasoning", "id": "rs_1", "summary": []}),
    event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="Hm, "),
    event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="well."),
    event("reasoning_summary_text.delta", output_index=0, summary_index=1, delta="So."),
    event("output_item.added", output_index=1, item={**said(id="msg_1"), "status": "in_progress"}),
    event("output_item.added", output_index=2, item=called(arguments="", id="fc_1")),
    event("output_item.added", output_index=3, item=called(arguments="", id="fc_2", call_id="call_2")),
    event("content_part.added", output_index=1, content_index=0, part={"type": "output_text", "text": ""}),
    event("output_text.delta", output_index=1, content_index=0, delta="Zwölf "),
    event("function_call_arguments.delta", output_index=3, delta='{"city":'),
    event("function_call_arguments.delta", output_index=2, delta='{"city":"Ro'),
    event("output_text.delta", output_index=1, content_index=0, delta="👍"),
    event("function_call_arguments.delta", output_index=3, delta='"Köln"}'),
    event("function_call_arguments.done", output_index=2, arguments='{"city":"Rome"}'),
    END,
]


class TestStream:
    def test_items_that_interleave_without_a_response_at_the_end(self) -> None:
        response, shown = read(*TWO_AT_ONCE)
        assert shown == response.text == "Zwölf 👍"
        assert response.tool_calls == (
            ToolCall("call_1", "weather", {"city": "Rome"}),
            ToolCall("call_2", "weather", {"city": "Köln"}),
        )
        assert response.reasoning == "Hm, well.\n\nSo."
        assert response.usage == Usage(3)
        assert response.finish_reason == FinishReason.TOOL_CALLS
        assert response.source is not None
        assert response.source.model == "gpt-5"

    @given(st.lists(st.integers(1, len(in_bytes(*TWO_AT_ONCE)) - 1), max_size=30))
    def test_any_split_gives_the_same(self, places: list[int]) -> None:
        whole = in_bytes(*TWO_AT_ONCE)
        edges = [0, *sorted(places), len(whole)]
        chunks = [whole[start:end] for start, end in itertools.pairwise(edges)]
        response, shown = streamed(OpenAIResponses().reader(), chunks)
        assert comparable(response) == comparable(read(*TWO_AT_ONCE)[0])
        assert shown == "Zwölf 👍"

    @pytest.mark.parametrize("count", range(len(TWO_AT_ONCE)))
    def test_a_stream_that_is_cut_off(self, count: int) -> None:
        with pytest.raises(ResponseValidationError, match="ended before"):
            read(*TWO_AT_ONCE[:count])

    def test_done_alone_does_not_end_a_stream(self) -> None:
        whole = in_bytes(*TWO_AT_ONCE[:-1]) + b"data: [DONE]\n\n"
        with pytest.raises(ResponseValidationError, match="ended before"):
            streamed(OpenAIResponses().reader(), [whole])

    def test_the_response_at_the_end_is_preferred(self) -> None:
        final = document(said("Yes."), usage={"output_tokens": 7})
        response, shown = read(
            event("output_text.delta", output_index=0, delta="Ye"), event("completed", response=final)
        )
        assert (response.text, response.usage.output, shown) == ("Yes.", 7, "Ye")

    def test_messages_that_interleave_are_shown_in_their_order(self) -> None:
        response, shown = read(
            event("output_item.added", output_index=0, item=said(id="msg_1")),
            event("output_item.added", output_index=1, item=said(id="msg_2")),
            event("output_text.delta", output_index=1, delta="two "),
            event("output_text.delta", output_index=0, delta="one "),
            event("output_text.delta", output_index=1, delta="more"),
            event("output_item.done", output_index=0, item=said("one ", id="msg_1")),
            event("output_item.done", output_index=1, item=said("two more", id="msg_2")),
            END,
        )
        assert shown == response.text == "one two more"

    def test_a_host_without_places_and_types(self) -> None:
        # What llama.cpp leaves out, and a little more.
        events = [
            event("output_item.added", item=said(id="msg_1")),
            event("output_text.delta", item_id="msg_1", delta="Hi"),
            event("output_item.added", item=called(arguments="", id="fc_1")),
            event("function_call_arguments.delta", item_id="fc_1", delta='{"city": "Rome"}'),
            event("output_item.added", item=called(arguments="", call_id="fc_2")),
            event("function_call_arguments.delta", item_id="fc_2", delta="{}"),
            event("output_item.added", item={"type": "function_call", "name": "last"}),
            event("function_call_arguments.delta", delta='{"a":1}'),
            event("completed"),
        ]
        whole = b"".join(
            b"event: %s\ndata: %s\n\n" % (one.pop("type").encode(), json.dumps(one).encode())
            for one in events
        )
        response, shown = streamed(OpenAIResponses().reader(), [whole])
        assert shown == response.text == "Hi"
        assert [(call.name, call.arguments) for call in response.tool_calls] == [
            ("weather", {"city": "Rome"}),
            ("weather", {}),
            ("last", {"a": 1}),
        ]
        assert response.usage == Usage(reported=False)

    def test_a_call_in_one_piece(self) -> None:
        response, shown = read(event("output_item.done", output_index=0, item=called()), END)
        assert response.tool_calls == (ToolCall("call_1", "weather", {"city": "Rome"}),)
        assert shown == ""

    def test_a_call_that_is_repeated_as_text_is_never_shown(self) -> None:
        pieces = ["```", "json\n", '{"name": "weather", ', '"arguments": {"city": "Rome"}}', "\n```"]
        told = [event("output_text.delta", output_index=0, delta=piece) for piece in pieces]
        item = event("output_item.done", output_index=1, item=called())
        response, shown = read(*told, item, END)
        assert (response.text, shown) == ("", "")
        assert read(*told, END)[0].text == "".join(pieces)

    def test_text_that_waits_is_shown_when_it_is_language(self) -> None:
        pieces = [" ", "<", "b>", "Hi"]
        told = [event("output_text.delta", output_index=0, delta=piece) for piece in pieces]
        assert read(*told, END)[1] == " <b>Hi"

    def test_cut_off_by_the_provider(self) -> None:
        final = {"incomplete_details": {"reason": "max_output_tokens"}}
        response, _ = read(
            event("output_text.delta", output_index=0, delta="He"), event("incomplete", response=final)
        )
        assert (response.text, response.finish_reason) == ("He", FinishReason.LENGTH)

    def test_a_refusal_that_streams(self) -> None:
        with pytest.raises(ModelError, match="the model refused: I will not"):
            read(
                event("refusal.delta", output_index=0, delta="I will "),
                event("refusal.delta", output_index=0, delta="not"),
                END,
            )

    @pytest.mark.parametrize(
        ("last", "kind"),
        [
            ({"type": "error", "code": "server_error", "message": "Oh."}, ModelError),
            ({"type": "error", "error": {"type": "too_many_requests", "message": "Oh."}}, ModelError),
            ({"type": "error", "code": "rate_limit_exceeded", "message": "Oh."}, RateLimitError),
            (event("failed", response={"error": {"code": "server_error", "message": "Oh."}}), ModelError),
            (
                event("failed", response={"error": {"code": "rate_limit_exceeded", "message": "Oh."}}),
                RateLimitError,
            ),
        ],
    )
    def test_failures_inside_a_stream(self, last: Json, kind: type[ModelError]) -> None:
        with pytest.raises(kind, match="Oh"):
            read(*TWO_AT_ONCE[:-1], last)

    @pytest.mark.parametrize(
        "data",
        [
            b"{",
            b"[]",
            b'{"type": 5}',
            b'{"type": "response.output_item.added"}',
            b'{"type": "response.output_item.done", "item": 3}',
            b'{"type": "response.output_text.delta", "item_id": [1]}',
        ],
    )
    def test_events_that_cannot_be_read(self, data: bytes) -> None:
        with pytest.raises(ResponseValidationError):
            list(OpenAIResponses().reader().read("", data))

    def test_events_that_say_nothing(self) -> None:
        reader = OpenAIResponses().reader()
        for data in (
            b"",
            b"{}",
            b'{"type": "response.output_text.delta", "delta": null}',
            b'{"type": "response.web_search_call.searching", "output_index": 0}',
        ):
            assert list(reader.read("", data)) == []


def test_reasoning_streams_as_it_comes() -> None:
    deltas = deltas_of(OpenAIResponses().reader(), in_bytes(*TWO_AT_ONCE))
    thoughts = [delta.text for delta in deltas if isinstance(delta, ReasoningDelta)]
    assert thoughts == ["Hm, ", "well.", "\n\nSo."]
