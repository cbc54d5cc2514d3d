"""How a history is sent to Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from whyloop.models.anthropic import AnthropicMessages, encode_message
from whyloop.models.provider import Settings
from whyloop.values.log import Log
from whyloop.values.messages import Message, MessageRole, TextPart, ToolCall
from whyloop.values.model import ModelRequest

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}


def body(*messages: Message, instructions: str | None = None) -> dict[str, Any]:
    request = ModelRequest(messages, instructions=instructions)
    sent: dict[str, Any] = json.loads(AnthropicMessages().encode(request, Settings(model="claude-opus-5")))
    return sent


def turns(*messages: Message) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(turn["role"], turn["content"]) for turn in body(*messages)["messages"]]


def called(*ids: str, text: str = "", **extras: Any) -> Message:
    calls = tuple(ToolCall(name, "search", {"q": name}) for name in ids)
    return Message(MessageRole.ASSISTANT, text, calls, None, None, extras)


def result(id: str, text: str = "found") -> Message:
    return Message.result(text, tool_call_id=id, tool="search")


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def tool_use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "search", "input": {"q": id}}


def tool_result(id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "found"}


class TestAddress:
    def test_a_key_and_the_version_are_in_the_headers(self) -> None:
        wire = AnthropicMessages()

        assert wire.name == "anthropic"
        assert wire.path(Settings(model="m")) == "/v1/messages"
        assert wire.headers("secret") == {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
        assert wire.headers(None) == {"anthropic-version": "2023-06-01"}


class TestSystem:
    def test_instructions_and_leading_messages_of_the_application_are_the_system(self) -> None:
        sent = body(
            Message.system("Be kind."), Message.developer("Be brief."), Message.user("Hi"), instructions="Be."
        )

        assert sent["system"] == "Be.\n\nBe kind.\n\nBe brief."
        assert sent["messages"] == [{"role": "user", "content": [text("Hi")]}]

    def test_later_messages_of_the_application_are_part_of_the_users_turn(self) -> None:
        said = turns(Message.user("Hi"), Message.developer("In French."), Message.assistant("Salut"))

        assert said == [("user", [text("Hi"), text("In French.")]), ("assistant", [text("Salut")])]

    def test_no_system_where_there_is_nothing_to_say(self) -> None:
        assert "system" not in body(Message.system("  "), Message.user("Hi"))


class TestTurns:
    def test_the_results_of_a_step_and_the_text_after_them_are_one_turn(self) -> None:
        said = turns(
            Message.user("Go"),
            called("a", "b", text="Let me."),
            result("a"),
            result("b"),
            Message.user("So?"),
        )

        assert said == [
            ("user", [text("Go")]),
            ("assistant", [text("Let me."), tool_use("a"), tool_use("b")]),
            ("user", [tool_result("a"), tool_result("b"), text("So?")]),
        ]

    def test_results_come_before_text(self) -> None:
        said = turns(Message.user("Go"), called("a"), Message.user("Hurry!"), result("a"))

        assert said[-1] == ("user", [tool_result("a"), text("Hurry!")])

    def test_nothing_is_not_sent(self) -> None:
        said = turns(
            Message.user("Hi"),
            Message.assistant(""),
            Message.user([TextPart(" "), TextPart("there")]),
            Message.assistant(" \n"),
            Message.assistant("Yes?"),
            Message.assistant("Go on."),
            called("a", text="\n"),
            result("a", ""),
        )

        assert said == [
            ("user", [text("Hi"), text("there")]),
            ("assistant", [text("Yes?"), text("Go on."), tool_use("a")]),
            ("user", [{"type": "tool_result", "tool_use_id": "a"}]),
        ]

    @given(
        st.lists(
            st.sampled_from(
                [
                    Message.user("u"),
                    Message.user(""),
                    Message.assistant("a"),
                    Message.assistant(""),
                    Message.developer("d"),
                    called("x"),
                    result("x"),
                ]
            )
        )
    )
    def test_user_and_assistant_take_turns_in_any_history(self, history: list[Message]) -> None:
        said = turns(Message.user("start"), *history)

        assert [role for role, _ in said] == [("user", "assistant")[n % 2] for n in range(len(said))]
        assert all(blocks for _, blocks in said)


class TestAssistant:
    def test_arguments_that_are_not_an_object_are_sent_as_an_empty_one(self) -> None:
        broken = Message.assistant("", [ToolCall("a", "search", '{"q": ')])

        assert turns(broken) == [("assistant", [{**tool_use("a"), "input": {}}])]

    def test_ids_and_names_of_other_providers_are_made_to_fit(self) -> None:
        call = Message.assistant("", [ToolCall("functions.search:0|x", "web.search", {})])
        said = turns(call, result("functions.search:0|x"))

        assert said[0][1][0]["id"] == said[1][1][0]["tool_use_id"] == "functions_search_0_x"
        assert said[0][1][0]["name"] == "web_search"

    def test_extras_of_other_providers_are_never_sent(self) -> None:
        foreign = called("a", gemini={"blocks": [THOUGHT]}, openai={"reasoning_content": "secret"})

        assert turns(foreign) == [("assistant", [tool_use("a")])]

    def test_a_message_that_was_edited_keeps_its_thoughts_and_loses_its_order(self) -> None:
        row = [THOUGHT, {"type": "text", "length": 3}, {"type": "server_tool_use", "id": "s"}]
        edited = called("a", text="Something else.", anthropic={"blocks": row})

        assert turns(edited) == [("assistant", [THOUGHT, text("Something else."), tool_use("a")])]

    def test_a_turn_does_not_end_in_a_thought(self) -> None:
        cut = called(anthropic={"blocks": [THOUGHT]})

        assert turns(Message.user("Hi"), cut, Message.user("Well?")) == [
            ("user", [text("Hi"), text("Well?")])
        ]


def test_an_encoded_message_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Message] = []

    def noted(message: Message, variant: object) -> bytes:
        encoded.append(message)
        return encode_message(message, variant)

    monkeypatch.setattr("whyloop.models.anthropic.encode_message", noted)
    api = AnthropicMessages()
    history = Log([Message.system("Be."), Message.user("Hi"), called("a"), result("a")])

    api.encode(ModelRequest(history), Settings(model="m"))
    later = history.appended(Message.assistant("Found."))
    api.encode(ModelRequest(later), Settings(model="m"))

    assert encoded == [*history[1:], later[-1]]
