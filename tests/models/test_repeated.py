"""Calls that a host writes out beside the calls themselves are no language, wherever they stand."""

from __future__ import annotations

import itertools

import pytest

from whyloop.models.visible import VisibleText
from whyloop.rules.repeated import without_calls
from whyloop.values.messages import ToolCall

CALL = ToolCall("a", "get_weather", {"city": "Oslo"})

LEAKS = [
    ('{"city": "Oslo"}', ""),
    ('I will check.\n{"name": "get_weather", "arguments": {"city": "Oslo"}}', "I will check."),
    ('Checking: {"city": "Oslo"}', "Checking:"),
    ('Let me look.\n```json\n{"city": "Oslo"}\n```', "Let me look."),
    ('{"city": "Oslo"}\nI will check it.', "I will check it."),
    ('<function=get_weather>{"city": "Oslo"}</function>', ""),
    ('<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}', ""),
    ('[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]', ""),
    ('<function_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</function_call>', ""),
    ('<tool_call>{"city": "Oslo"}', ""),
    ('One moment. <tool_call>{"city": "Oslo"}</tool_call> There.', "One moment.  There."),
    ('{"tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]}', ""),
    ('{"tool": "get_weather", "args": {"city": "Oslo"}}', ""),
    ('Checking {"city": "Os', "Checking"),
]

LANGUAGE = [
    "It is sunny in Oslo.",
    "Use {name} and [links](https://example.org) and `code`.",
    'The answer is {"city": "Rome"}.',
    "```python\nprint({})\n```",
    "An empty object is {}.",
    "a < b and b <c> d",
]


@pytest.mark.parametrize(("text", "language"), LEAKS)
def test_a_call_that_is_written_out_is_taken_out(text: str, language: str) -> None:
    assert without_calls(text, [CALL]) == language


@pytest.mark.parametrize("text", LANGUAGE)
def test_language_stays_as_it_is(text: str) -> None:
    assert without_calls(text, [CALL]) == text
    assert without_calls(text, [ToolCall("a", "now", {})]) == text


@pytest.mark.parametrize("text", [text for text, _ in LEAKS])
def test_without_calls_every_text_stays(text: str) -> None:
    assert without_calls(text, []) == text


def test_an_empty_call_is_repeated_only_by_an_empty_object_alone() -> None:
    assert without_calls(" {} ", [ToolCall("a", "now", {})]) == ""


@pytest.mark.parametrize(("text", "language"), LEAKS)
def test_nothing_of_a_call_is_shown_while_it_streams(text: str, language: str) -> None:
    for size in (1, 2, 3, 7, len(text)):
        visible = VisibleText()
        shown = "".join(visible.add(text[at : at + size]) for at in range(0, len(text), size))
        assert "Oslo" not in shown
        assert '"city"' not in shown
        assert language.startswith(shown.rstrip())


@pytest.mark.parametrize("text", LANGUAGE)
def test_what_cannot_be_a_call_is_shown_as_it_comes(text: str) -> None:
    for cut in itertools.product(range(0, len(text), 5), repeat=2):
        visible = VisibleText()
        first, second = sorted(cut)
        shown = [visible.add(piece) for piece in (text[:first], text[first:second], text[second:], ".")]
        joined = "".join(shown)
        assert (text + ".").startswith(joined)
        if '{"' not in text and "{}" not in text:
            assert joined == text + "."
