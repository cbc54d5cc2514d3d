"""Responses: complete answers, and the items that are kept and sent back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.models.recorded import message_of
from tests.models.responses import SEARCH, THOUGHT, Json, body, called, decoded, said, sent_back
from whyloop.errors import ModelError, RateLimitError, ResponseValidationError
from whyloop.models.openai_responses import OpenAIResponses
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelResponse, Usage


class TestResponse:
    def test_text_calls_thoughts_usage_and_source(self) -> None:
        usage = {
            "input_tokens": 10,
            "output_tokens": 5,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens_details": {"reasoning_tokens": 3},
        }
        summary = [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}]
        response = decoded(
            {**THOUGHT, "summary": summary},
            said("One ", "two"),
            SEARCH,
            said(" three"),
            called(),
            usage=usage,
        )
        assert response.text == "One two three"
        assert response.tool_calls == (ToolCall("call_1", "weather", {"city": "Rome"}),)
        assert response.reasoning == "First.\n\nThen."
        assert response.usage == Usage(10, 5, 4, 3)
        assert response.finish_reason == FinishReason.TOOL_CALLS
        assert response.source is not None
        assert (response.source.model, response.source.response_id) == ("gpt-5", "resp_1")
        assert response.source.finish_word == "completed"

    def test_a_thought_that_a_model_shows_in_full(self) -> None:
        thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []}
        assert decoded(thought, said("Yes")).reasoning == "Hm."

    @pytest.mark.parametrize(
        ("status", "details", "reason", "word"),
        [
            ("completed", None, "stop", "completed"),
            ("complete", None, "stop", "complete"),
            (None, None, "stop", None),
            ("incomplete", {"reason": "max_output_tokens"}, "length", "max_output_tokens"),
            ("incomplete", {"reason": "content_filter"}, "content_filter", "content_filter"),
            ("incomplete", {"reason": "tired"}, "other", "tired"),
            ("incomplete", None, "other", "incomplete"),
            ("odd", None, "other", "odd"),
        ],
    )
    def test_finish_reasons(self, status: str, details: Json | None, reason: str, word: str) -> None:
        response = decoded(said("Yes"), status=status, incomplete_details=details)
        assert response.finish_reason == reason
        assert response.source is not None
        assert response.source.finish_word == word

    def test_cut_off_before_the_first_word(self) -> None:
        details = {"reason": "max_output_tokens"}
        response = decoded(THOUGHT, status="incomplete", incomplete_details=details)
        assert (response.text, response.finish_reason) == ("", FinishReason.LENGTH)
        # A thought that led to nothing would be refused.
        assert response.extras == {}

    def test_a_refusal_is_an_error(self) -> None:
        refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
        with pytest.raises(ModelError, match=r"the model refused: No\.") as caught:
            decoded(refusal)
        assert not caught.value.retryable

    @pytest.mark.parametrize(
        ("fields", "kind", "words"),
        [
            ({"error": {"code": "server_error", "message": "Oh."}}, ModelError, "Oh."),
            ({"error": {"code": "rate_limit_exceeded", "message": "Slow."}}, RateLimitError, "Slow."),
            ({"status": "failed"}, ModelError, "'failed'"),
            ({"status": "cancelled"}, ModelError, "'cancelled'"),
            ({"status": "queued"}, ResponseValidationError, "not finished yet: its status is 'queued'"),
            ({"status": "in_progress"}, ResponseValidationError, "not finished yet"),
        ],
    )
    def test_failures(self, fields: Json, kind: type[ModelError], words: str) -> None:
        with pytest.raises(ModelError, match=words) as caught:
            decoded(**fields)
        assert type(caught.value) is kind

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<html>",
            b"[]",
            b"{}",
            b'{"output": []}',
            b'{"output": 1}',
            b'{"output": [1]}',
            b'{"output": [{"type": "function_call"}]}',
            b'{"output": [{"type": "function_call", "name": 5}]}',
            b'{"output": [{"type": "message", "content": [{"type": "output_text", "text": 1}]}]}',
            b"[" * 100_000,
        ],
    )
    def test_an_unreadable_response_is_refused(self, body: bytes) -> None:
        with pytest.raises(ResponseValidationError):
            OpenAIResponses().decode(body)

    def test_missing_fields_are_survived(self) -> None:
        response = OpenAIResponses().decode(
            b'{"output":[{"role":"assistant","content":"Yes"},{"type":"message"},{},'
            b'{"type":"reasoning"},{"type":"function_call","name":"f"}]}'
        )
        assert response.text == "Yes"
        (call,) = response.tool_calls
        assert call.id.startswith("call_")
        assert (call.name, call.arguments, response.usage) == ("f", {}, Usage(reported=False))

    def test_arguments_in_one_piece_and_arguments_that_are_not_json(self) -> None:
        response = decoded(called(arguments={"a": 1}), called(arguments='{"a', call_id="call_2"))
        assert [call.arguments for call in response.tool_calls] == [{"a": 1}, '{"a']

    def test_calls_that_are_repeated_as_text_are_not_shown(self) -> None:
        response = decoded(said('{"name": "weather", "arguments": {"city": "Rome"}}'), called())
        assert response.text == ""
        assert len(response.tool_calls) == 1
        assert decoded(said('{"city": "Rome"}')).text == '{"city": "Rome"}'


class TestWayBack:
    @pytest.mark.parametrize(
        "items",
        [
            [said("Hi", id="msg_1")],
            [said("Hi", id="msg_1"), called(id="fc_1"), called(id="fc_2", call_id="call_2")],
            [called(id="fc_1")],
        ],
    )
    def test_items_that_can_be_rebuilt_are_not_kept(self, items: Sequence[Json]) -> None:
        assert decoded(*items).extras == {}

    @pytest.mark.parametrize(
        "items",
        [
            [THOUGHT, called(id="fc_1")],
            [THOUGHT, said("Hi", id="msg_1", phase="commentary"), called(id="fc_1")],
            [THOUGHT, SEARCH, {**THOUGHT, "id": "rs_2"}, said("Hé ", "👍", id="msg_1")],
            [called(id="fc_1"), said("Hi", id="msg_1"), called(id="fc_2", call_id="call_2")],
            [said("Hi", id="msg_1"), {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}],
            [said("Hi ", id="msg_1"), said("there", id="msg_2", status="incomplete")],
            [called(arguments='{"city": "Rome"}', id="fc_1", namespace="maps")],
        ],
    )
    def test_items_go_back_as_they_came(self, items: Sequence[Json]) -> None:
        expected = [dict(item) for item in items]
        for item in expected:
            if item["type"] == "function_call":
                del item["status"]
        assert sent_back(*items) == expected

    def test_only_what_cannot_be_rebuilt_is_kept(self) -> None:
        response = decoded({**THOUGHT, "status": None}, said("Hi", "!", id="msg_1"), called(id="fc_1"))
        assert response.extras == {
            "openai-responses": {
                "items": [
                    THOUGHT,
                    {"type": "message", "id": "msg_1", "lengths": [2, 1]},
                    {"type": "function_call", "id": "fc_1", "call_id": "call_1"},
                ]
            }
        }

    def test_a_thought_that_was_not_stored_is_not_sent_back(self) -> None:
        empty = {"type": "reasoning", "id": "rs_1", "summary": []}
        assert [item["type"] for item in sent_back(empty, said("Hi"), store=False)] == ["message"]
        assert [item["type"] for item in sent_back(empty, said("Hi"), store=True)] == ["reasoning", "message"]

    def test_a_message_that_was_changed_goes_without_its_thoughts(self) -> None:
        extras = decoded(THOUGHT, said("The meaning is 41", id="msg_1")).extras
        changed = message_of(ModelResponse("It is 42", extras=extras))
        (item,) = body(changed)["input"]
        assert "id" not in item
        assert item["content"][0]["text"] == "It is 42"

    @pytest.mark.parametrize(("model", "quirks"), [("gpt-4o", ()), ("gpt-5", ("no_encrypted_reasoning",))])
    def test_a_model_that_does_not_reason_gets_no_thoughts(self, model: str, quirks: Sequence[str]) -> None:
        items = sent_back(
            THOUGHT, SEARCH, said("Hi", id="msg_1"), called(id="fc_1"), model=model, quirks=quirks
        )
        assert [item["type"] for item in items] == ["web_search_call", "message", "function_call"]
        assert not any("id" in item for item in items[1:])

    def test_arguments_that_were_changed_are_not_those_that_were_kept(self) -> None:
        extras = decoded(THOUGHT, called(arguments='{"city": "Rome"}')).extras
        changed = ModelResponse("", (ToolCall("call_1", "weather", {"city": "Oslo"}),), extras=extras)
        assert body(message_of(changed))["input"][1]["arguments"] == '{"city":"Oslo"}'


APPROVAL = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "wiki", "name": "ask"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c1", "name": "run_sql", "input": "select 1"}
PICTURE = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0KGgo="}
SHELL = {"type": "shell_call", "call_id": "s1", "action": {"commands": ["ls"]}}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (APPROVAL, "an mcp_approval_request (wiki, ask)"),
        (CUSTOM, "a custom_tool_call (run_sql)"),
        (PICTURE, "an image (image_generation_call)"),
        (SHELL, "a shell_call"),
    ],
)
def test_items_that_only_a_client_can_answer_are_unsupported(item: Json, text: str) -> None:
    assert decoded(item).unsupported == (text,)
    assert decoded(said("Here it is."), item).unsupported == (text,)


def test_a_call_that_the_provider_answered_is_its_own_work() -> None:
    output = {"type": "shell_call_output", "call_id": "s1", "output": []}
    assert decoded(SHELL, output, said("Done.")).unsupported == ()
    assert decoded(SEARCH, said("Done.")).unsupported == ()


def test_a_total_above_its_parts_counts() -> None:
    counted = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 40}
    assert decoded(said("Hi"), usage=counted).usage == Usage(10, 30, 0, 25)
