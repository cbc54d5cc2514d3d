"""Server-sent events, cut in any way."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from whyloop.models.response import EventParser, ServerEvent


def events_in(*chunks: bytes) -> list[ServerEvent]:
    parser = EventParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.close()


ENDS = st.sampled_from(["\n", "\r\n", "\r"])
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8)
FIELDS = st.one_of(
    WORDS.map("data: ".__add__),
    WORDS.map("data:".__add__),
    WORDS.map("event: ".__add__),
    WORDS.map(": ".__add__),
    WORDS.map("id: ".__add__),
    WORDS,
    st.just(""),
    st.just("data"),
    st.just("retry: 10"),
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """A stream with one kind of line end, and the places where it is cut."""
    end = draw(ENDS)
    body = end.join(draw(st.lists(FIELDS, max_size=12))).encode()
    return body, sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))


@given(streams())
def test_any_cut_gives_the_same_events(stream: tuple[bytes, list[int]]) -> None:
    body, places = stream
    whole = events_in(body)
    chunks = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
    assert events_in(*chunks) == whole
    assert events_in(*[body[at : at + 1] for at in range(len(body))]) == whole


@given(st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=3)), max_size=5), ENDS)
def test_events_are_read_as_they_were_written(written: list[tuple[str, list[str]]], end: str) -> None:
    lines: list[str] = []
    for name, data in written:
        lines += [f"event: {name}", *[f"data: {line}" for line in data], ": keep-alive", ""]
    body = "".join(line + end for line in lines).encode()
    assert events_in(body) == [ServerEvent(name, "\n".join(data).encode()) for name, data in written]


@given(st.lists(st.sampled_from([b"data: a", b"\n", b"\r\n", b"\r", b": b", b"event: c"]), max_size=20))
def test_line_ends_may_be_mixed(pieces: list[bytes]) -> None:
    body = b"".join(pieces)
    plain = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert events_in(*pieces) == events_in(body) == events_in(plain)


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"", []),
        (b"\n\n\n", []),
        (b": comment\n\n", []),
        (b"event: ping\n\n", []),
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a\n\n", [("", b" a")]),
        (b"data\n\n", [("", b"")]),
        (b"data: a: b\n\n", [("", b"a: b")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data: a\n: comment\ndata: b\n\n", [("", b"a\nb")]),
        (b"event: ping\ndata: a\n\ndata: b\n\n", [("ping", b"a"), ("", b"b")]),
        (b"event: ping\n\ndata: a\n\n", [("", b"a")]),
        (b"id: 7\nretry: 10\nother: x\ndata: a\n\n", [("", b"a")]),
        ("data: ä€😀\n\n".encode(), [("", "ä€😀".encode())]),
    ],
)
def test_events(body: bytes, events: list[tuple[str, bytes]]) -> None:
    assert events_in(body) == [ServerEvent(*event) for event in events]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n", b"\r\n\r"])
def test_the_last_event_needs_no_blank_line(end: bytes) -> None:
    assert events_in(b"data: a\n\nevent: last\ndata: b" + end) == [
        ServerEvent("", b"a"),
        ServerEvent("last", b"b"),
    ]


def test_events_come_as_soon_as_they_are_complete() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n\ndata: b\n") == [ServerEvent("", b"a")]
    assert parser.feed(b"\n") == [ServerEvent("", b"b")]
    assert parser.close() == []


def test_a_byte_order_mark_is_passed_over() -> None:
    assert events_in(b"\xef\xbb\xbfdata: a\n\n") == [ServerEvent("", b"a")]
