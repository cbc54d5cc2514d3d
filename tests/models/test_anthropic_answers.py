"""Complete answers of Anthropic's messages."""

from __future__ import annotations

import json

import pytest

from tests.models.anthropic_traffic import (
    CALL,
    ROW,
    SERVER,
    THOUGHT,
    decoded,
    events,
    read,
    sent_back,
    stream,
    text,
)
from tests.models.recorded import deltas_of, message_of
from whyloop.errors import ModelError, RateLimitError, ResponseValidationError
from whyloop.models.anthropic import AnthropicMessages
from whyloop.models.provider import Settings
from whyloop.values.messages import Message, ToolCall
from whyloop.values.model import FinishReason, ModelRequest, ReasoningDelta, TextDelta, Usage


class TestAnswer:
    def test_text_tool_calls_and_thoughts_are_distinguished(self) -> None:
        response = decoded(*ROW, word="tool_use")

        assert response.text == "Let me see. Cited.And \U0001f680."
        assert response.reasoning == "Hm, é."
        assert response.tool_calls == (
            ToolCall("t1", "search", CALL["input"]),
            ToolCall("t2", "search", CALL["input"]),
        )

    def test_the_row_of_blocks_is_sent_back_unchanged(self) -> None:
        assert sent_back(decoded(*ROW)) == ROW

    def test_only_what_cannot_be_rebuilt_is_kept(self) -> None:
        assert decoded(text("Let me."), {**CALL, "caller": {"type": "direct"}}).extras == {}
        assert decoded(THOUGHT, text("Let me."), CALL).extras == {
            "anthropic": {
                "blocks": [THOUGHT, {"type": "text", "length": 7}, {"type": "tool_use", "id": "t1"}]
            }
        }

    def test_a_thought_without_a_signature_is_heard_and_not_kept(self) -> None:
        response = decoded({"type": "thinking", "thinking": "Hm."}, text("Yes."))

        assert (response.reasoning, response.extras) == ("Hm.", {})

    def test_a_text_that_only_repeats_the_call_is_not_shown(self) -> None:
        said = text(json.dumps({"name": "search", "arguments": CALL["input"]}))
        response, shown = read(events(said, CALL))

        assert (response.text, shown) == ("", "")
        assert decoded(THOUGHT, said, CALL).text == ""
        assert sent_back(decoded(THOUGHT, said, CALL)) == [THOUGHT, CALL]

    def test_fields_that_a_host_leaves_out(self) -> None:
        call = {"type": "tool_use", "name": "now"}
        response = AnthropicMessages().decode(json.dumps({"content": [call, {"type": "text"}]}).encode())

        assert response.tool_calls[0].id.startswith("call_")
        assert response.tool_calls[0].arguments == {}
        assert (response.text, response.usage) == ("", Usage(reported=False))
        assert response.finish_reason is FinishReason.OTHER

    def test_usage_counts_the_cache_as_input(self) -> None:
        usage = {
            "input_tokens": 3,
            "cache_creation_input_tokens": 418,
            "cache_read_input_tokens": 1111,
            "output_tokens": 33,
            "output_tokens_details": {"thinking_tokens": 20},
        }

        assert decoded(usage=usage).usage == Usage(1532, 33, 1111, 20, cache_writes=418)

    @pytest.mark.parametrize(
        ("word", "reason"),
        [
            ("end_turn", FinishReason.STOP),
            ("stop_sequence", FinishReason.STOP),
            ("max_tokens", FinishReason.LENGTH),
            ("model_context_window_exceeded", FinishReason.LENGTH),
            ("tool_use", FinishReason.TOOL_CALLS),
            ("refusal", FinishReason.CONTENT_FILTER),
            ("pause_turn", FinishReason.PAUSE_TURN),
            ("something_new", FinishReason.OTHER),
        ],
    )
    def test_why_the_model_fell_silent(self, word: str, reason: FinishReason) -> None:
        for response in (decoded(text("Hi"), word=word), read(events(text("Hi"), word=word))[0]):
            assert response.finish_reason == reason
            assert response.source is not None
            assert response.source.finish_word == word

    def test_a_refusal_with_nothing_to_show_is_an_error(self) -> None:
        why = {"type": "refusal", "explanation": "It is dangerous."}

        with pytest.raises(ModelError, match="the model refused: It is dangerous"):
            decoded(word="refusal", stop_details=why)
        with pytest.raises(ModelError, match="the model refused: It is dangerous") as caught:
            read(events(word="refusal", stop_details=why))
        assert not caught.value.retryable

    @pytest.mark.parametrize(
        "body",
        [
            "",
            "<html>",
            "[]",
            "null",
            "{}",
            '{"content": 7}',
            '{"content": ["x"]}',
            '{"content": [{}]}',
            '{"content": [{"type": "tool_use", "id": "x"}]}',
            '{"content": [{"type": "text", "text": 3}]}',
        ],
    )
    def test_an_unreadable_answer(self, body: str) -> None:
        with pytest.raises(ResponseValidationError):
            AnthropicMessages().decode(body.encode())

    def test_an_error_in_a_response_with_a_success_status(self) -> None:
        with pytest.raises(RateLimitError, match="Overloaded"):
            AnthropicMessages().decode(
                b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
            )


def test_a_paused_turn_goes_back_as_it_was_for_the_provider_to_continue() -> None:
    paused = decoded(text("Searching."), SERVER, word="pause_turn")
    body = AnthropicMessages().encode(
        ModelRequest([Message.user("go"), message_of(paused)]), Settings(model="claude")
    )
    turns = json.loads(body)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert turns[1]["content"] == [text("Searching."), SERVER]


def test_reasoning_streams_as_it_comes() -> None:
    deltas = deltas_of(AnthropicMessages().reader(), stream(events(THOUGHT, text("Hi"))))
    thoughts = [delta.text for delta in deltas if isinstance(delta, ReasoningDelta)]
    assert len(thoughts) > 1
    assert "".join(thoughts) == THOUGHT["thinking"]
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Hi"
