"""The messages that a slim snapshot keeps, and how it cuts long texts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support import assert_complete_history, session, tool_failure
from tests.wire.support import read, saying, slim
from whyloop import AgentState, FilePart, ImagePart, Message, TextPart, ToolCall
from whyloop.wire.slim_document import kept_indices


def history(shape: str) -> list[Message]:
    """Messages by their initials; a number is that many calls with their results."""
    messages: list[Message] = []
    for position, initial in enumerate(shape):
        match initial:
            case "s":
                messages.append(Message.system("rules"))
            case "d":
                messages.append(Message.developer("rules"))
            case "u":
                messages.append(Message.user("?"))
            case "a":
                messages.append(Message.assistant("!"))
            case number:
                calls = [ToolCall(f"{position}-{i}", "echo", {}) for i in range(int(number))]
                messages.append(Message.assistant("", calls))
                messages += [Message.result("ok", tool_call_id=c.id, tool=c.name) for c in calls]
    return messages


@pytest.mark.parametrize(
    ("shape", "most", "kept"),
    [
        ("", 3, []),
        ("uaua", None, [0, 1, 2, 3]),
        ("uaua", 4, [0, 1, 2, 3]),
        ("uaua", 3, [2, 3]),  # An answer without its question is no beginning.
        ("uaua", 2, [2, 3]),
        ("uaua", 1, [2]),  # The last question is kept before its answer.
        ("suaua", 4, [0, 3, 4]),  # Instructions stay.
        ("sduaua", 4, [0, 1, 4, 5]),
        ("sduaua", 2, [0, 4]),
        ("sduaua", 1, [4]),
        ("u1111", 9, list(range(9))),
        ("u1111", 8, [0, 3, 4, 5, 6, 7, 8]),  # A question, and the latest of what was done about it.
        ("u1111", 4, [0, 7, 8]),
        ("u1111", 2, [0]),  # A call does not go without its result.
        ("u1a", 3, [0, 3]),
        ("u3", 3, [0]),
        ("u2u2", 4, [4, 5, 6, 7]),
        ("u2u2", 3, [4]),
        ("aaaa", 2, [2, 3]),
        ("11", 3, [2, 3]),
        ("ss", 1, []),
    ],
)
def test_the_oldest_go_first_in_whole_groups(shape: str, most: int | None, kept: list[int]) -> None:
    messages = history(shape)
    assert kept_indices(messages, most) == kept
    assert_complete_history([messages[index] for index in kept])


def test_dropped_messages_are_counted() -> None:
    document = slim(session(steps=60, tool_calls=1), max_messages=9)
    assert document["truncated"] == {"messages": 112, "contents": 0}
    assert len(document["messages"]) == 9


def test_a_step_points_at_its_own_messages_also_after_trimming() -> None:
    state = session(steps=5, tool_calls=2)
    restored = read(slim(state, max_messages=7, include_all_steps=True))
    assert len(restored.messages) == 7
    assert [len(restored.messages_of(step)) for step in restored.steps] == [0, 0, 0, 3, 3]
    assert restored.messages_of(restored.steps[-1]) == state.messages_of(state.steps[-1])


def content_of(state: AgentState, most: int) -> object:
    document = slim(state, max_content_length=most)
    assert document["truncated"]["contents"] == 1
    return read(document).messages[0].content


@pytest.mark.parametrize(("most", "text"), [(9, "elephants"), (8, "elephan…"), (2, "e…"), (1, "…")])
def test_a_text_that_is_too_long_ends_in_an_ellipsis(most: int, text: str) -> None:
    document = slim(saying(Message.user("elephants"), Message.assistant("ok")), max_content_length=most)
    assert document["messages"][0]["content"] == text
    assert document["truncated"]["contents"] == (most < 9) + (most < 2)


def test_an_image_or_a_file_is_left_out_as_a_whole() -> None:
    parts: list[TextPart | ImagePart | FilePart] = [
        TextPart("x" * 50),
        ImagePart(data="A" * 50),
        FilePart(url="data:," + "b" * 50),
        FilePart(url="gs://a"),
    ]
    assert content_of(saying(Message.user(parts)), 30) == (
        TextPart("x" * 29 + "…"),
        TextPart("image: [left out]…"),
        TextPart("file: [left out]…"),
        FilePart(url="gs://a"),
    )


def test_arguments_are_cut_text_by_text() -> None:
    wanted = ToolCall("1", "write", {"text": "x" * 50, "lines": ["y" * 50, 5], "mode": {"append": True}})
    document = slim(saying(Message.user("go"), Message.assistant("", [wanted])), max_content_length=5)
    assert document["messages"][1]["metadata"]["tool_calls"][0]["args"] == {
        "text": "xxxx…",
        "lines": ["yyyy…", 5],
        "mode": {"append": True},
    }
    assert document["truncated"] == {"messages": 0, "contents": 1}


def test_arguments_that_are_not_an_object_are_cut_too() -> None:
    wanted = ToolCall("1", "write", "{" * 50)
    document = slim(saying(Message.assistant("", [wanted])), max_content_length=5)
    assert document["messages"][0]["metadata"]["tool_calls"][0]["args"] == "{{{{…"


def test_long_errors_are_cut_and_counted_apart() -> None:
    state = session(steps=1, failures=[tool_failure(message="x" * 5000)])
    state = replace(state, execution=replace(state.execution, stop_request="y" * 5000))
    document = slim(state)
    assert len(document["current_step"]["failures"][0]["message"]) == 1000
    assert document["execution"]["stop_request"].endswith("…")
    assert document["truncated"] == {"messages": 0, "contents": 0, "details": 2}
