"""Messages: their roles, their parts, and the tool calls beside the text."""

from __future__ import annotations

from typing import Any

import pytest

from whyloop import FilePart, ImagePart, Message, MessageRole, TextPart, ToolCall
from whyloop.errors import ConfigurationError


def test_the_roles_are_these() -> None:
    assert [role.value for role in MessageRole] == ["system", "developer", "user", "assistant", "tool"]
    assert [role.name for role in MessageRole] == ["SYSTEM", "DEVELOPER", "USER", "ASSISTANT", "TOOL"]


@pytest.mark.parametrize(
    ("message", "true"),
    [
        (Message.user("x"), {"is_user"}),
        (Message.assistant("x"), {"is_assistant"}),
        (Message.result("x", tool_call_id="1", tool="t"), {"is_tool"}),
        (Message.system("x"), {"is_system"}),
        (Message.developer("x"), {"is_developer", "is_system"}),
    ],
    ids=lambda v: str(getattr(v, "role", "")),
)
def test_a_message_knows_its_role(message: Message, true: set[str]) -> None:
    properties = {"is_user", "is_assistant", "is_tool", "is_developer", "is_system"}
    assert {name for name in properties if getattr(message, name)} == true


def test_has_role_takes_any_number_of_members_or_strings() -> None:
    message = Message.user("x")
    assert message.has_role(MessageRole.USER)
    assert message.has_role("system", "user")
    assert not message.has_role("assistant", MessageRole.TOOL)
    assert not message.has_role()


def test_an_assistants_text_and_tool_calls_are_side_by_side() -> None:
    wanted = ToolCall("c1", "search", {"query": "x"})
    message = Message.assistant("Let me look.", [wanted])
    assert message.text == "Let me look."
    assert message.tool_calls == (wanted,)
    assert Message.assistant(tool_calls=[wanted]).text == ""


def test_a_tool_message_names_its_call_and_its_tool() -> None:
    message = Message.result("42", tool_call_id="c1", tool="add")
    assert (message.tool_call_id, message.tool, message.text) == ("c1", "add", "42")


def test_the_text_of_parts_is_their_language() -> None:
    message = Message.user([TextPart("a"), ImagePart(url="https://u"), TextPart("b"), FilePart(data="QQ==")])
    assert message.text == "a\nb"
    assert isinstance(message.content, tuple)


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Message.user("x").content = "y"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("  ", {}),
        (b'{"a": 1}', {"a": 1}),
        ("[1]", "[1]"),
        ("oops", "oops"),
        ('{"a": NaN}', '{"a": NaN}'),
        (b"\xff", "�"),
    ],
)
def test_arguments_are_an_object_or_the_text_as_it_came(written: str | bytes, arguments: object) -> None:
    assert ToolCall.parse_arguments(written) == arguments


def test_arguments_that_are_nested_too_deep_stay_text() -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    assert ToolCall.parse_arguments(deep) == deep


@pytest.mark.parametrize("part", [ImagePart, FilePart])
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "either a url or data"),
        ({"url": "https://a.b/c.png", "data": "QUJD"}, "either a url or data"),
        ({"url": "cat.png"}, r"invalid address of \w+ 'cat.png'"),
        ({"url": "C:\\cat.png"}, "invalid address"),
        ({"url": ""}, "invalid address"),
        ({"url": "javascript:alert(1)"}, "invalid address"),
        ({"url": "file:///etc/passwd"}, "invalid address"),
        ({"url": "https://"}, "invalid address"),
        ({"data": b"\x89PNG"}, "base64.b64encode"),
        ({"data": "not base64!"}, "base64.b64encode"),
        ({"data": "data:image/png;base64,QUJD"}, "base64.b64encode"),
        ({"data": ""}, "base64.b64encode"),
    ],
)
def test_an_unreadable_image_or_file_is_refused(part: Any, fields: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        part(**fields)


def test_an_image_has_the_media_type_of_an_image() -> None:
    with pytest.raises(ValueError, match="use image/…, or a FilePart"):
        ImagePart(data="JVBERi0x", media_type="application/pdf")
    with pytest.raises(ConfigurationError, match="invalid media type of an image 'text/html'"):
        ImagePart(url="data:text/html;base64,PGI+")
    assert ImagePart(data="iVBORw0KGgo=", media_type="image/png").data == "iVBORw0KGgo="
    assert FilePart(data="JVBERi0x", media_type="application/pdf").media_type == "application/pdf"
    # What is left of one after redaction can be read back.
    assert ImagePart(url="[removed]").url == "[removed]"
