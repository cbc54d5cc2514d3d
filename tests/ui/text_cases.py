"""The cases of `reduce` that are about text: chunks that are lost, late, repeated or begun again."""

from __future__ import annotations

from tests.ui.case import FOUND, THINKS, WHO, Case
from tests.ui.envelopes import (
    AT_WORK,
    CALLING,
    HALF,
    QUESTION,
    RESULT,
    chunk,
    done,
    ended,
    failed_call,
    later,
    loaded,
    started,
    step,
    tool,
)

TEXT_CASES = [
    Case(
        "a chunk of another number is ignored",
        [],
        [started(), tool(2), done(3), ended(4, 1), chunk(3, "late"), chunk(5, "early")],
        ["assistant:  [search]", FOUND, THINKS],
    ),
    Case(
        "a chunk that arrives twice counts once",
        [],
        [started(), chunk(1, "a"), chunk(1, "a")],
        [
            *["assistant: a"],
        ],
    ),
    Case(
        "a chunk that arrives too late is ignored",
        [],
        [started(), chunk(1, "b", 1), chunk(1, "a")],
        [
            *["assistant: …b"],
        ],
    ),
    Case(
        "a chunk that is missing is marked once, and so is the next",
        [],
        [started(), chunk(1, "a"), chunk(1, "b", 3), chunk(1, "c", 4), chunk(1, "d", 6)],
        ["assistant: a…bc…d"],
    ),
    Case(
        "chunks without text between two gaps are one gap",
        [],
        [started(), chunk(1, "a"), chunk(1, "", 2), chunk(1, "b", 4)],
        ["assistant: a…b"],
    ),
    Case(
        "a text whose last chunk is missing is marked by the next numbered envelope",
        [],
        [started(), chunk(1, "Let me "), tool(2), done(3), ended(4, 1)],
        ["assistant: Let me … [search]", FOUND, THINKS],
    ),
    Case(
        "a text of which only the end arrives is a gap",
        [],
        [started(), chunk(1, "", 4, complete=True)],
        [
            *["assistant: …"],
        ],
    ),
    Case(
        "a first chunk without text is not a gap",
        [],
        [started(), chunk(1, ""), chunk(1, "All.", 1)],
        [
            *["assistant: All."],
        ],
    ),
    Case(
        "an end without any text is not a message",
        [],
        [started(), chunk(1, "", complete=True), tool(2)],
        [
            *["assistant:  [search]", "status tool_call: Running search"],
        ],
    ),
    Case(
        "an index that is not a number is not a gap",
        [],
        [started(), chunk(1, "a", "7"), chunk(1, "b", 1)],
        [
            *["assistant: ab"],
        ],
    ),
    Case(
        "a last chunk may have text",
        [],
        [started(), chunk(1, "All.", complete=True), ended(2, 1)],
        [
            *["assistant: All.", THINKS],
        ],
    ),
    Case(
        "a text that the history has is not changed",
        [QUESTION, CALLING, RESULT, AT_WORK, loaded(0, content="")],
        [step(3, 1), chunk(3, "look.", 2), chunk(3, "", 3, complete=True)],
        [WHO, "assistant: I look. [search, pay]", "tool: ok", "status tool_call: Running pay", THINKS],
    ),
    Case(
        "a step that begins again after a crash has its text anew",
        [],
        [*HALF, *later(1, step(1, 1), chunk(1, "All of it."))],
        ["assistant: All of it."],
    ),
    Case(
        "a text that begins again after a crash is recognised without the start of its step",
        [],
        [*HALF, chunk(1, "wer", 1), *later(1, chunk(1, "All of it."), chunk(1, "!", 1))],
        ["assistant: All of it.!"],
    ),
    Case(
        "a text that was complete before a crash begins again too",
        [],
        [started(), chunk(1, "One", complete=True), *later(1, step(1, 1), chunk(1, "Uno"))],
        ["assistant: Uno"],
    ),
    Case(
        "the start of a step that arrives twice changes nothing",
        [],
        [*HALF, step(1, 1)],
        [
            *["assistant: Half an ans"],
        ],
    ),
    Case("a run that is resumed has the text of its step anew", [], [*HALF, *later(1, started(2))], [THINKS]),
    Case(
        "reasoning is not text",
        [],
        [
            started(),
            chunk(1, "Hm, ", kind="reasoning"),
            chunk(1, "so.", 1, kind="reasoning"),
            chunk(1, "Yes.", 2),
        ],
        ["assistant: Yes. (Hm, so.)"],
    ),
    Case(
        "while there is only reasoning the status is thinking",
        [],
        [started(), chunk(1, "Hm", kind="reasoning")],
        ["assistant:  (Hm)", THINKS],
    ),
    Case(
        "a gap in reasoning is marked there",
        [],
        [started(), chunk(1, "Hm", kind="reasoning"), chunk(1, "so", 2, kind="reasoning"), tool(2)],
        ["assistant:  [search] (Hm…so…)", "status tool_call: Running search"],
    ),
    Case(
        "reasoning of a failed model call goes too",
        [],
        [
            *[started(), chunk(1, "Hm", kind="reasoning"), failed_call(2, 1)],
        ],
        [THINKS],
    ),
]
