"""Tool calls that a model writes as text are found, removed, and held back in a stream."""

from __future__ import annotations

import itertools

import pytest

from whyloop.text.visible_text import VisibleText
from whyloop.text.written_calls import without_calls, written_call
from whyloop.values.messages import ToolCall
from whyloop.values.model import ToolSpec

CALL = ToolCall("a", "get_weather", {"city": "Oslo"})
OFFERED = [ToolSpec("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})]

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
        visible = VisibleText(OFFERED)
        shown = "".join(visible.add(text[at : at + size]) for at in range(0, len(text), size))
        assert "Oslo" not in shown
        assert '"city"' not in shown
        assert language.startswith(shown.rstrip())


@pytest.mark.parametrize("text", LANGUAGE)
def test_text_that_cannot_be_a_call_is_shown_as_it_arrives(text: str) -> None:
    for cut in itertools.product(range(0, len(text), 5), repeat=2):
        visible = VisibleText(OFFERED)
        first, second = sorted(cut)
        shown = [visible.add(piece) for piece in (text[:first], text[first:second], text[second:], ".")]
        joined = "".join(shown)
        assert (text + ".").startswith(joined)
        if '{"' not in text and "{}" not in text:
            assert joined == text + "."


# Text that is held back while it streams


def shown_of(text: str, size: int = 1) -> str:
    visible = VisibleText(OFFERED)
    return "".join(visible.add(text[at : at + size]) for at in range(0, len(text), size))


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 42, "why": "it is"}',
        'The result: {"temperature": 3, "city": "Oslo"} as you asked.',
        '{"city": "Oslo", "temperature": 3}',
        '```json\n{"temperature": 3}\n```\nThat is all.',
        "```json\n[1, 2, 3]\n```",
        '```\n{"name": "Ada", "age": 36}\n```',
        '{"name": "Ada", "age": 36}',
        '[{"name": "Ada"}, {"name": "Bob"}] are users.',
        '{"id": 7, "type": "user"}',
        "The tag `<tool_call>` begins a call.",
        "<tool_call> is a tag, <functional> is none.",
        "```python\nprint({})\n```",
        '{"city" is a key of the arguments',
        "{} is empty.",
    ],
)
def test_text_is_shown_in_full_once_it_cannot_be_a_call(text: str) -> None:
    for size in (1, 2, 3, 7, len(text)):
        # Three backticks at the very end may begin a fence.
        assert shown_of(f"{text}\nSo.", size) == f"{text}\nSo."


def test_text_is_shown_as_soon_as_it_cannot_be_a_call() -> None:
    visible = VisibleText(OFFERED)
    assert visible.add('{"temp') == ""
    assert visible.add('erature"') == '{"temperature"'
    assert visible.add(": 3, ") == ": 3, "
    visible = VisibleText(OFFERED)
    assert visible.add('Here: {"city": "Oslo"') == "Here: "
    assert visible.add(', "country": "Norway"}') == '{"city": "Oslo", "country": "Norway"}'


def test_a_tool_with_any_arguments_holds_back_every_object() -> None:
    visible = VisibleText([ToolSpec("store", "", {"type": "object", "additionalProperties": True})])
    assert visible.add('Here: {"answer": 42} and more') == "Here: "


def test_a_text_that_may_be_a_call_for_longer_than_a_slice_is_held_back_to_the_end() -> None:
    visible = VisibleText([ToolSpec("write", "", {"properties": {"content": {}}})])
    assert visible.add('So: {"content": "' + "word " * 20_000) == "So: "
    assert visible.add('", "title": "Not an argument"} and more') == ""


# Calls that are written instead of made

WRITTEN = [
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    '{"tool": "get_weather", "args": {"city": "Oslo"}}',
    '{"type": "function", "function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}}',
    '{"tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]}',
    '{"name": "get_weather"}',
    '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```',
    '```\n{"name": "get_weather", "parameters": {"city": "Oslo"}}\n```',
    'Let me look.\n```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```',
    'Let me look. {"name": "get_weather", "arguments": {"city": "Oslo"}}',
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n\nThis looks up the weather.',
    '```tool_code\nget_weather(city="Oslo")\n```',
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>',
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call> One moment.',
    "<tool_call>get_weather\n<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
    "<function=get_weather><parameter=city>Oslo</parameter></function>",
    '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}',
    '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    '[TOOL_CALLS]get_weather{"city": "Oslo"}',
    '{"name": "functions.get_weather", "arguments": {"city": "Oslo"}}',
    '{"name": "get_weather", "arguments": {"city": "Oslo"}',
    '```json\n[{"name": "get_weather", "arguments": {"city": "Oslo"}\n```',
    "{'name': 'get_weather', 'arguments': {'city': 'Oslo'}}",
    '{"name": "get_weather", "arguments": {"city": "Oslo",}}',
    '{"name": "get_weather", "arguments": {"city": "Oslo\nand around"}}',
    '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo",}}}',
    'Let me look.\n```json\n{"name": "get_weather", "arguments": {"city": "Oslo",}}\n```',
    'Let me look.\n```json\n{"name": "get_weather", "arguments": {"city": "Oslo',
    '{"name": "get_weather", "arguments": {"city": "Oslo',
    '<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n</invoke>',
]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_call_that_is_written_instead_of_made_is_found(text: str) -> None:
    assert written_call(text, ["now", "get_weather"]) == "get_weather"
    assert written_call(text, []) is None


@pytest.mark.parametrize("text", WRITTEN)
def test_nothing_of_a_written_call_is_shown_while_it_streams(text: str) -> None:
    for size in (1, 3, len(text)):
        shown = shown_of(text, size)
        assert "Oslo" not in shown
        assert "get_weather" not in shown


@pytest.mark.parametrize(
    "text",
    [
        *LANGUAGE,
        '{"city": "Oslo"}',
        '{"name": "Ada", "arguments": {"city": "Oslo"}}',
        '{"name": "get_weather", "temperature": 3}',
        '{"name": "get_weather", "temperature": {"of": "Oslo"}',
        'An example: {"name": "get_weather", "arguments": {"city": "Oslo"}',
        'Call it with {"name": "get_weather", "arguments": {"city": "Oslo"}} and you get the weather.',
        "The tag `<tool_call>` begins a call of get_weather.",
        "I called get_weather(city='Oslo') and it is sunny.",
        "```python\nget_weather('Oslo')\n```",
        "Call it with {'name': 'get_weather', 'arguments': {'city': 'Oslo'}} and you get the weather.",
        'The tag `<invoke name="get_weather">` begins a call.',
    ],
)
def test_language_is_not_a_written_call(text: str) -> None:
    assert written_call(text, ["get_weather"]) is None


def test_the_end_of_a_truncated_answer_may_be_a_call_that_is_cut_off() -> None:
    text = 'Let me look. {"name": "get_weather", "arguments": {"city": "Os'
    assert written_call(text, ["get_weather"]) is None
    assert written_call(text, ["get_weather"], truncated=True) == "get_weather"
    assert written_call(text, ["now"], truncated=True) is None
    example = 'Call it with {"name": "get_weather", "arguments": {"city": "Oslo"}} and you'
    assert written_call(example, ["get_weather"], truncated=True) is None


@pytest.mark.parametrize(
    "text",
    [
        'Models write `<tool_call>{"name": "get_weather"}</tool_call>` around a call.',
        "Llama writes `<function=get_weather>` before the arguments.",
        'I did this:\n{"tool": "get_weather", "input": {"city": "Oslo"}, "result": "rain"}',
        '{"name": "get_weather", "input": "main.ts", "output": "dist"}',
    ],
)
def test_a_mention_and_a_record_of_a_call_are_answers(text: str) -> None:
    assert written_call(text, ["get_weather"]) is None


def test_a_written_call_is_named_by_a_whole_word() -> None:
    text = '<tool_call>{"name": "list_threads", "arguments": {}}</tool_call>'
    assert written_call(text, ["name_it", "am", "read", "list_threads"]) == "list_threads"


@pytest.mark.parametrize("depth", [400, 900, 2000])
def test_deeply_nested_text_is_language(depth: int) -> None:
    text = "[" * depth + "]" * depth
    assert written_call(text, ["get_weather"]) is None
    assert without_calls(text, [CALL]) == text
