"""No text of a model makes a search slow, or keeps the event loop from other work."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.text.test_written_calls import LANGUAGE, LEAKS, OFFERED, WRITTEN
from whyloop import Agent, tool
from whyloop.loop.output import Output
from whyloop.loop.stream import partial_json
from whyloop.models.response import EventParser, http_error
from whyloop.testing import ScriptedModel, call
from whyloop.text import documents as documents_module, turns, visible_text, written_calls
from whyloop.text.documents import Document, documents
from whyloop.text.turns import SLICE, at_once
from whyloop.text.visible_text import VisibleText, text_before_call
from whyloop.text.written_calls import remove_calls, search_call, without_calls, written_call
from whyloop.tools.lenient import lenient
from whyloop.tools.schema import SchemaArguments
from whyloop.values.messages import ToolCall
from whyloop.values.summaries import args_summary, result_summary
from whyloop.values.text import shortened

CALL = ToolCall("a", "get_weather", {"city": "Oslo"})
TOOLS = ("now", "get_weather")

PIECES = [
    *(
        "[",
        "{",
        "[{",
        "{}",
        "[]",
        "{ ",
        "[ ",
        "{]",
        "<",
        "<t",
        "`",
        "```",
        '"',
        "\\",
        '"{"',
        '\\"{"',
        "{'",
        '{"',
    ),
    *(
        '{"name":',
        '{"":',
        '{"city":',
        '[{"city":',
        '{"city":"{',
        '{"city":[[[',
        '{"city":1}',
        '{"city":1,"x":2}',
    ),
    *(
        '{"a":1}',
        '[{"city":1},',
        '{"a":[1,1,',
        '{"a":[[],[1],',
        '{"{":',
        '{"a":"b',
        '{"name":"x"}',
        '{"city":"Oslo"} ',
    ),
    *(
        "<tool_call>",
        "<tool_call> x",
        "<tool_call>`",
        "```tool ",
        "```tool get_weather ",
        "```json\n{",
        "[TOOL_CALLS]",
    ),
    *("[TOOL_CALLS] x", '<invoke name="', "<function=", "<｜tool", "<|tool|>", "get_weather ", "functions."),
    '{"name": "x", "arguments": {}}',
    '{"name": "get_weather", "arguments": {',
    '{"name": "get_weather", "arguments": {}} ',
    "{'name': 'get_weather', 'arguments': {",
    '{"type": "function", "function": {"name": "get_weather"',
    '{"type":"a","type":"a","type":"a",',
]


def hostile(piece: str, size: int) -> str:
    return "language " + (piece * (size // len(piece) + 1))[:size] + " language"


def shown(text: str, size: int) -> None:
    visible = VisibleText(OFFERED)
    for at in range(0, len(text), size):
        visible.add(text[at : at + size])


def fed(text: str, size: int) -> None:
    parser, data = EventParser(), text.encode()
    for at in range(0, len(data), size):
        parser.feed(data[at : at + size])
    parser.close()


OUTPUT = Output(dict[str, int], [], 1, None)
LENIENT = SchemaArguments(
    {"type": "object", "properties": {"count": {"type": "integer"}, "items": {"type": "array"}}}
)

SEARCHES: dict[str, Callable[[str], Any]] = {
    "a call written as text": lambda text: written_call(text, TOOLS),
    "a truncated call": lambda text: written_call(text, TOOLS, truncated=True),
    "repetitions of a call": lambda text: without_calls(text, [CALL]),
    "visible text": lambda text: at_once(text_before_call(text, OFFERED)),
    "visible text in pieces": lambda text: shown(text, 7),
    "documents": lambda text: list(documents(text)),
    "a typed answer": lambda text: at_once(OUTPUT._is_in(text)),
    "a typed answer in a fence": lambda text: at_once(OUTPUT._is_in(f"```json\n{text}")),
    "a typed answer that streams": partial_json,
    "a text in a typed answer that streams": lambda text: partial_json('{"a": "' + text),
    "server-sent events": lambda text: fed(text, 50),
    "one server-sent event": lambda text: fed("data: " + text, 50),
    "lenient arguments": lambda text: lenient({"count": text, "items": text}, LENIENT),
    "summaries": lambda text: (args_summary({"a": text}), result_summary(text), shortened(text, len(text))),
    "an error of a provider": lambda text: http_error(500, {}, text.encode(), ("abcdefgh",)),
}


def seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def repeat(work: Callable[[str], Any], text: str) -> None:
    for _ in range(10):
        work(text)


def fails_in_every_round(
    small: Callable[[], Any], large: Callable[[], Any], most: float, rounds: int = 6
) -> list[float]:
    """The ratios, if none is at most this: others use the machine too, so one good round is enough."""
    ratios = []
    for _ in range(rounds):
        gc.collect()
        bare = min(seconds(small) for _ in range(2))
        ratios.append(seconds(large) / max(bare, 1e-6))
        if ratios[-1] <= most:
            return []
    return ratios


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_ten_times_the_text_takes_at_most_twelve_times_the_time(search: str) -> None:
    slow = {}
    for piece in PIECES:
        small, large = hostile(piece, 10_000), hostile(piece, 100_000)
        work = SEARCHES[search]
        # Reading 200 kB at memory speed takes a few milliseconds, and caches decide the rest.
        if seconds(partial(work, large)) < 0.004:
            continue
        # Ten small texts in one go need as much memory as the large one.
        if ratios := fails_in_every_round(partial(repeat, work, small), partial(work, large), 1.2):
            slow[piece] = ratios
    assert not slow


@tool
async def get_weather(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


def run(text: str, *, calls: bool) -> None:
    reply = replace(call("get_weather", {"city": "Oslo"}), text=text)
    Agent(ScriptedModel([reply, "done"] if calls else [text]), [get_weather]).run_sync("go")


@pytest.mark.slow
@pytest.mark.parametrize("calls", [True, False])
def test_a_hostile_answer_costs_at_most_twenty_times_as_many_plain_words(calls: bool) -> None:
    slow = {}
    for piece in PIECES:
        for size in (20_000, 200_000):
            words, text = hostile("word and ", size), hostile(piece, size)
            ratios = fails_in_every_round(
                partial(run, words, calls=calls), partial(run, text, calls=calls), 20
            )
            if ratios:
                slow[piece, size] = ratios
    assert not slow


# Turns of the event loop


def stops_of(search: Generator[None, None, Any]) -> int:
    return sum(1 for _ in search)


@pytest.mark.parametrize("piece", ["[", "<", "word get_weather {", '{"name": "get_weather", "arguments": {'])
def test_a_search_stops_after_each_slice(piece: str) -> None:
    text = hostile(piece, 10 * SLICE)
    assert stops_of(search_call(text, TOOLS)) >= 9
    assert stops_of(remove_calls(f'{{"city": 1, {text.replace("{", "[")}', [CALL])) >= 9
    assert stops_of(text_before_call(text, OFFERED)) >= 10


async def test_other_work_runs_while_a_long_answer_is_searched() -> None:
    turns_taken = 0

    async def other_work() -> None:
        nonlocal turns_taken
        while True:
            turns_taken += 1
            await asyncio.sleep(0)

    async def count(text: str) -> int:
        nonlocal turns_taken
        turns_taken = 0
        await Agent(ScriptedModel([text]), [get_weather]).run("go")
        return turns_taken

    work = asyncio.create_task(other_work())
    short = await count(hostile("[", 1000))
    assert await count(hostile("[", 20 * SLICE)) >= short + 40
    work.cancel()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that are shorter than most texts."""
    for module in (documents_module, turns, visible_text, written_calls):
        monkeypatch.setattr(module, "SLICE", 120)


@pytest.mark.parametrize("before", [0, 5, 90, 119, 300])
def test_where_a_slice_ends_makes_no_difference(before: int, request: pytest.FixtureRequest) -> None:
    room = "." * before + "\n" if before else ""
    texts = [f"{room}{text}{after}" for text in [*WRITTEN, *LANGUAGE] for after in ("", " So.")]
    texts += [f"{room}{text}" for text, _ in LEAKS]

    def found() -> list[object]:
        return [
            result
            for text in texts
            for result in (
                written_call(text, TOOLS),
                written_call(text, TOOLS, truncated=True),
                without_calls(text, [CALL]),
                at_once(text_before_call(text, OFFERED)),
            )
        ]

    whole = found()
    request.getfixturevalue("narrow")
    assert found() == whole


@pytest.mark.usefixtures("narrow")
def test_a_document_that_is_longer_than_a_slice_is_found() -> None:
    value = {"city": "Oslo", "note": 'a "quoted" }{ text \\ ' * 40, "list": [{"a": [1]}] * 20}
    written = json.dumps(value, indent=1)
    found = [each for each in documents(f"See {written} and {{x}}.".replace("{x}", '{"b": 1}')) if each]
    assert [each.value for each in found if isinstance(each, Document)] == [value, {"b": 1}]
    call = ToolCall("a", "get_weather", value)
    assert without_calls(f"One moment. {written} There.", [call]) == "One moment.  There."
    assert without_calls(f"One moment. {written[:-300]}", [call]) == "One moment."
