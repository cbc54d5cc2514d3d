"""Texts of any content arrive as data and as nothing else."""

from __future__ import annotations

import pytest

from tests.server.streams_clients import LIVE, Event, Parser, read
from tests.server.streams_support import stage
from tests.support import scripted
from whyloop import ErrorPolicy, tool
from whyloop.testing import call, calls
from whyloop.values.text import clean
from whyloop.wire.envelope import BroadcastConfig

HOSTILE = {
    "a script": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "an override": "abc\u202edef\u2066ghi\u2069",
    "line separators": "one\u2028two\u2029three\u0085four",
    "line breaks": "a\n\ndata: x\n\nid: 1\nretry: 0\r\rdata: y\r\n\r\nevent: close\n\n: z",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x80\x9b\x1b[2J",
    "nothing and a half": "\x00 \ud800 \udfff \ud83d",
    "an emoji": "👩\u200d👩\u200d👧 é e\u0301",
    "a mark of order": "\ufeffdata: x",
    "a megabyte": "x" * 1_000_000,
}


@pytest.mark.parametrize("words", HOSTILE.values(), ids=list(HOSTILE))
async def test_texts_of_models_and_tools_arrive_as_they_are_stored(words: str) -> None:
    @tool
    async def repeat(value: str = "") -> str:
        """Says it back."""
        return words

    both = calls(call("repeat", {"value": words}), call(words, {words: words}), text=words)
    agent = scripted(both, words, tools=[repeat], error_policy=ErrorPolicy.retry_tool_errors())
    async with stage(agent=agent, config=BroadcastConfig.debug()) as a:
        async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
            await a.ask("go")
            heard = await client.run()
            assert await other.run() == heard
        kept = await a.to.page(a.url)
    # After the end of a run there is an unnumbered event, for which the clients did not wait.
    assert [each for each in heard if each["event"] not in LIVE] == kept[:-1]
    said = "".join(each["data"].get("chunk", "") for each in heard)
    assert said == clean(words) * 2
    assert kept[-2]["data"]["last_response"] == clean(words)
    started = [each["data"] for each in kept if each["event"] == "agent.tool.started"]
    assert [each["tool"] for each in started] == ["repeat", clean(words)]


NAMES = [
    "e\n\ndata: x\n\n",
    "e\nid: 1",
    "\rid: 2\r",
    "a:b:7",
    "%0A%3A",
    "\0",
    "\u2028\u202e",
    "é 💥",
    "e" * 5000,
]


@pytest.mark.parametrize("name", NAMES)
async def test_the_id_of_an_execution_is_a_cursor_and_not_another_line(name: str) -> None:
    async with stage() as a:
        await a.record("begin", "step", "end", execution=name)
        async with a.to.events(a.url) as client, a.to.socket(a.url) as other:
            heard = await client.hears(1, 2, 3)
            recorded = [read(each.data) for each in heard]
            assert [await other.next() for _ in recorded] == recorded
        assert {each["execution_id"] for each in recorded} == {name}
        async with a.to.events(a.url, last=heard[1].id) as client:
            assert await client.hears(3) == heard[2:]
        assert await a.to.page(a.url) == recorded


def test_the_parser_of_these_tests_reads_as_the_standard_says() -> None:
    stream = (
        "\ufeffid: 1\ndata: one\n\n: hello\r\n\r\ndata\r\rid:2\rdata:  two\rdata:2\rnonsense: x\r\r"
        "id\ndata: three\nid: 4\0\n\nretry: 12\nretry: x\n\nid: 5\ndata: cut off\n"
    ).encode()
    expected = [
        Event("1", "one"),
        Event("1", "", comment="hello"),
        Event("1", ""),
        Event("2", " two\n2"),
        Event("", "three"),
    ]
    for size in (1, 2, 3, 7, len(stream)):
        parser = Parser()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [event for piece in pieces for event in parser.feed(piece)] == expected
        assert parser.retry == 12
