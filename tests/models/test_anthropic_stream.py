"""Streamed answers of Anthropic's messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from tests.models.anthropic_traffic import (
    CALL,
    ROW,
    SERVER,
    Block,
    decoded,
    events,
    read,
    sent_back,
    stream,
    text,
)
from tests.models.recorded import streamed
from whyloop.errors import ModelError, RateLimitError, RequestTimeoutError, ResponseValidationError
from whyloop.models.anthropic import AnthropicMessages
from whyloop.values.model import Usage


class TestStream:
    def test_a_stream_is_the_same_answer(self) -> None:
        response, shown = read(events(*ROW, word="tool_use"))

        assert response == decoded(*ROW, word="tool_use")
        assert shown == response.text

    @given(st.lists(st.integers(0, len(stream(events(*ROW)))), max_size=30))
    def test_a_stream_may_be_split_anywhere(self, places: list[int]) -> None:
        body = stream(events(*ROW))
        ends = [0, *sorted(places), len(body)]
        pieces = [body[a:b] for a, b in pairwise(ends)]

        assert streamed(AnthropicMessages().reader(), pieces) == read(events(*ROW))

    @pytest.mark.parametrize("count", range(len(events(*ROW))))
    def test_a_stream_that_ends_early_is_refused(self, count: int) -> None:
        with pytest.raises(ResponseValidationError):
            read(events(*ROW)[:count])

    def test_a_stream_without_a_stop_reason_is_refused(self) -> None:
        with pytest.raises(ResponseValidationError, match="before the answer was complete"):
            read(events(text("Hi"), word=None))

    def test_blocks_may_be_interleaved_and_indexes_used_twice(self) -> None:
        row = events(CALL, {**CALL, "id": "t2"})
        first, second = [[e for e in row if e.get("index") == index] for index in (0, 1)]
        woven = [event for pair in zip(first, second, strict=True) for event in pair]
        same_index = [{**event, "index": 0} if "index" in event else event for event in row]

        assert read([row[0], *woven, *row[-2:]])[0] == decoded(CALL, {**CALL, "id": "t2"})
        assert read(same_index)[0] == decoded(CALL, {**CALL, "id": "t2"})

    def test_a_call_in_one_piece_and_one_without_input(self) -> None:
        row = events()
        whole = {"type": "content_block_start", "index": 0, "content_block": CALL}
        bare = {"type": "content_block_start", "index": 1, "content_block": {**CALL, "input": None}}

        calls = read([*row[:2], whole, bare, *row[-2:]])[0].tool_calls

        assert [call.arguments for call in calls] == [CALL["input"], {}]

    def test_arguments_that_were_cut_off_are_kept_as_they_came(self) -> None:
        row = events(CALL, SERVER, word="max_tokens")
        ends = [row.index(event) - 1 for event in row if event["type"] == "content_block_stop"]
        response, shown = read([event for place, event in enumerate(row) if place not in ends])

        assert isinstance(response.tool_calls[0].arguments, str)
        assert sent_back(response)[1]["input"] == {}
        assert shown == ""

    def test_json_is_shown_as_it_comes_where_no_tool_was_offered(self) -> None:
        answer = '{"words": "' + "x" * 200 + '"}'
        response, shown = read(events(text(answer)))

        assert (response.text, shown) == (answer, answer)

    def test_a_summary_of_what_was_forgotten_is_sent_back(self) -> None:
        row = events(text("Hi"))
        pieces: list[Block] = [
            {"type": "content_block_start", "index": 5, "content_block": {"type": "compaction"}},
            {
                "type": "content_block_delta",
                "index": 5,
                "delta": {"type": "compaction_delta", "content": "So."},
            },
        ]
        response = read([*row[:2], *pieces, *row[2:]])[0]

        assert sent_back(response) == [{"type": "compaction", "content": "So."}, text("Hi")]

    def test_the_last_usage_counts(self) -> None:
        row = events(text("Hi"))
        row[0]["message"]["usage"] = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 1}
        row[-2]["usage"] = {"input_tokens": 9, "cache_read_input_tokens": None, "output_tokens": 4}

        assert read(row)[0].usage == Usage(11, 4, 2)

    @pytest.mark.parametrize(
        ("type", "error"),
        [
            ("overloaded_error", RateLimitError),
            ("rate_limit_error", RateLimitError),
            ("timeout_error", RequestTimeoutError),
            ("api_error", ModelError),
        ],
    )
    def test_an_error_inside_a_stream(self, type: str, error: type[ModelError]) -> None:
        row = [*events(text("Hi"))[:4], {"type": "error", "error": {"type": type, "message": "Sorry"}}]

        with pytest.raises(error, match="Sorry"):
            read(row)

    @pytest.mark.parametrize(
        "data",
        [
            "{",
            "[]",
            "7",
            '{"type": "message_start"}',
            '{"type": "message_delta", "delta": 3}',
            '{"type": "content_block_start", "index": 0}',
            '{"type": "content_block_delta", "index": []}',
            '{"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta", "text": "x"}}',
        ],
    )
    def test_an_unreadable_event(self, data: str) -> None:
        with pytest.raises(ResponseValidationError):
            list(AnthropicMessages().reader().read("", data.encode()))

    def test_events_that_mean_nothing_are_passed_over(self) -> None:
        reader = AnthropicMessages().reader()

        assert list(reader.read("", b"[DONE]")) == []
        assert list(reader.read("news", b'{"type": "news"}')) == []
