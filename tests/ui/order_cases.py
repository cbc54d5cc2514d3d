"""The cases of `reduce` that are about connections: numbers, other runs, invalid envelopes."""

from __future__ import annotations

from tests.ui.case import FOUND, LOOKS, THINKS, WHO, Case
from tests.ui.envelopes import (
    A_RUN,
    ASKED_NEXT,
    AT_WORK,
    CALLING,
    COMPLETED,
    CONTINUES,
    HALF,
    HOSTILE,
    LOST,
    NEXT_QUESTION,
    QUESTION,
    RESULT,
    STOPPED,
    chunk,
    completed,
    done,
    ended,
    later,
    loaded,
    of_next,
    paused,
    started,
    step,
    stopped,
    tool,
    trace,
)
from tests.ui.support import envelope

NUMBERS = [
    Case(
        "a numbered envelope that arrives twice counts once",
        [],
        [started(), tool(2), done(3), tool(2)],
        [
            *["assistant:  [search]", FOUND],
        ],
    ),
    Case(
        "the start that arrives again after the end is ignored",
        [],
        [*A_RUN, started()],
        [
            *[LOOKS, FOUND, "assistant: Two."],
        ],
    ),
    Case(
        "the start that arrives again after a pause is ignored",
        [],
        [started(), paused(2), started()],
        [
            "status info: Waiting for a person",
        ],
    ),
    Case("an envelope that arrives too early is held", [], [started(), done(3)], [THINKS]),
    Case(
        "held envelopes follow in their order",
        [],
        [started(), ended(4, 1), done(3), tool(2)],
        ["assistant:  [search]", FOUND, THINKS],
    ),
    Case("a held envelope that arrives twice is held once", [], [started(), done(3), done(3)], [THINKS]),
    Case(
        "other envelopes neither fill a gap nor make one",
        [],
        [started(), step(1, 1), chunk(1, "a"), chunk(1, "b", 1, complete=True), tool(2)],
        ["assistant: ab [search]", "status tool_call: Running search"],
    ),
    Case(
        "a missing envelope is awaited no longer when too many are held",
        [],
        [started(), *(tool(seq, f"c{seq}", f"t{seq}") for seq in range(3, 12))],
        [
            "assistant:  [t3, t4, t5, t6, t7, t8, t9, t10, t11]",
            *(f"status tool_call: Running t{seq}" for seq in range(3, 12)),
        ],
    ),
    Case(
        "a missing envelope is awaited no longer at the end",
        [],
        [started(), done(3), completed(5)],
        ["assistant:  [search]", FOUND],
    ),
    Case(
        "a client that joins late begins where it joins",
        [],
        [tool(40), done(41)],
        [
            *["assistant:  [search]", FOUND],
        ],
    ),
    Case(
        "a client that joins late is strict from there on",
        [],
        [tool(40), done(42)],
        [
            *["assistant:  [search]", "status tool_call: Running search"],
        ],
    ),
    Case(
        "a client that joins within a text begins with a mark",
        [],
        [chunk(40, "rest of it", 7), chunk(40, "!", 8), tool(41)],
        ["assistant: …rest of it!… [search]", "status tool_call: Running search"],
    ),
    Case(
        "the history says which envelope is next",
        [QUESTION, loaded(4, 2)],
        [started(1), tool(2), ended(4, 1), chunk(4, "Next.")],
        [WHO, "assistant: Next."],
    ),
    Case(
        "an envelope after a gap in a loaded run is held", [QUESTION, loaded(4, 2)], [tool(6)], [WHO, THINKS]
    ),
    Case(
        "a history that does not say its number accepts the first envelope",
        [QUESTION, loaded(0)],
        [tool(30), done(31)],
        [WHO, "assistant:  [search]", FOUND],
    ),
    Case(
        "a run that was loaded while a tool runs continues with its result",
        [QUESTION, CALLING, RESULT, AT_WORK, loaded(3, content="")],
        [done(4, "c2", "pay"), ended(5, 1), step(5, 2)],
        [WHO, "assistant: I look. [search, pay]", "tool: ok", FOUND, THINKS],
    ),
    Case(
        "a run that was loaded continues in its step, though attempts before left nothing",
        [QUESTION, loaded(9, 4)],
        [chunk(9, "At last.")],
        [WHO, "assistant: At last."],
    ),
    Case(
        "a run that was loaded ends",
        [QUESTION, loaded(2)],
        [stopped(3, "user_requested")],
        [WHO, "status continuation: Agent stopped: user_requested"],
    ),
    Case(
        "messages of a run that was loaded are before those sent meanwhile",
        [QUESTION, loaded(1), NEXT_QUESTION],
        [chunk(1, "a")],
        [WHO, "assistant: a", "user: And?"],
    ),
    Case(
        "late envelopes are ignored when the end is in the history",
        [QUESTION, COMPLETED],
        A_RUN,
        [
            *[WHO, "assistant: All."],
        ],
    ),
    Case(
        "late envelopes are ignored when a stop is in the history",
        [QUESTION, STOPPED],
        [started(), step(1, 1), chunk(1, "Half."), ended(2, 1), stopped(3), trace(3, 1, CONTINUES)],
        [WHO, "assistant: Half."],
    ),
    Case(
        "late envelopes are ignored when the history has the next question",
        [QUESTION, CALLING, RESULT, AT_WORK, ASKED_NEXT],
        [done(5, "c2", "pay"), ended(6, 1), stopped(7, "user_requested"), chunk(7, "late")],
        [WHO, "assistant: I look. [search, pay]", "tool: ok", "status tool_call: Running pay", "user: And?"],
    ),
    Case(
        "a question of the client's own ends nothing",
        [QUESTION, CALLING, RESULT, AT_WORK, NEXT_QUESTION],
        [done(5, "c2", "pay")],
        [WHO, "assistant: I look. [search, pay]", "tool: ok", FOUND, "user: And?"],
    ),
    Case(
        "an execution that continues after a gap is held",
        [QUESTION, STOPPED],
        [tool(5)],
        [WHO, "assistant: Half."],
    ),
    Case(
        "a run after a history with an error of the client's own",
        [QUESTION, CALLING, RESULT, LOST, AT_WORK, loaded(3, content="")],
        [done(4, "c2", "pay")],
        [
            WHO,
            "assistant: I look. [search, pay]",
            "tool: ok",
            "status error: The connection was lost",
            FOUND,
            "status thinking: ",
        ],
    ),
]

OTHER_RUNS = [
    Case(
        "another execution has its own status",
        [QUESTION, NEXT_QUESTION],
        [started(), stopped(2), *of_next(started())],
        [WHO, "status continuation: Agent stopped: steps_limit", "user: And?", THINKS],
    ),
    Case(
        "a run whose end was missed is over when the next begins",
        [QUESTION],
        [*HALF, *of_next(started())],
        [WHO, "assistant: Half an ans", THINKS],
    ),
    Case(
        "a run that was loaded is over when the next begins",
        [QUESTION, CALLING, RESULT, AT_WORK, loaded(3, content=""), NEXT_QUESTION],
        of_next(started()),
        [
            *[WHO, "assistant: I look. [search, pay]", "tool: ok", "status tool_call: Running pay"],
            *["user: And?", THINKS],
        ],
    ),
    Case(
        "held envelopes of a run that is over are dropped",
        [],
        [*HALF, done(3), *of_next(started())],
        ["assistant: Half an ans", THINKS],
    ),
    Case(
        "envelopes of a run that is over are ignored",
        [],
        [*HALF, *of_next(started()), chunk(1, "wer", 1), *later(10, tool(2), started(3))],
        ["assistant: Half an ans", THINKS],
    ),
    Case(
        "a run whose beginning was missed leaves others as they are",
        [],
        [*HALF, *of_next(chunk(9, "Next", 3))],
        ["assistant: Half an ans", "assistant: …Next"],
    ),
    Case(
        "a beginning that arrives late leaves the next run as it is",
        [],
        [*of_next(*HALF), started()],
        ["assistant: Half an ans", THINKS],
    ),
    Case(
        "an agent within a tool leaves the run around it",
        [],
        [started(), tool(2), *({**each, "agent_id": "a2"} for each in of_next(started()))],
        ["assistant:  [search]", "status tool_call: Running search", THINKS],
    ),
    Case(
        "an agent within a tool may write between the messages of the run around it",
        [],
        [
            *[started(), tool(2), *({**each, "agent_id": "a2"} for each in of_next(started(), tool(2)))],
            *[done(3), *({**each, "agent_id": "a2"} for each in of_next(done(3)))],
        ],
        ["assistant:  [search]", FOUND, "assistant:  [search]", FOUND],
    ),
    Case(
        "runs without an agent id are of one session",
        [],
        [{**started(), "agent_id": None}, *({**each, "agent_id": 7} for each in of_next(started()))],
        [THINKS],
    ),
]

UNREADABLE = [
    Case("an unknown event is ignored", [QUESTION], [envelope("dream", 1, what="ever")], [WHO]),
    Case("an event of the debug preset is ignored", [QUESTION], [envelope("event", 1, name="Any")], [WHO]),
    Case("another version is ignored", [QUESTION], [{**started(), "v": 2}], [WHO]),
    Case(
        "a value that is not an envelope is ignored",
        [QUESTION],
        [
            {},
            {"v": 1},
            *({**started(), "seq": seq} for seq in ("1", 0, -1, 1.5, True)),
            *({**started(), "event": event} for event in (["agent.status"], "__proto__", "toString")),
            {**started(), "data": None},
            {**started(), "data": []},
            {**started(), "v": True},
            {**started(), "execution_id": 7},
            {**started(), "timestamp": None},
        ],
        [WHO],
    ),
    Case(
        "invalid data breaks nothing",
        [],
        [
            envelope("status", 1, status="in_progress", step_count="many"),
            envelope("step.started", 1, step_number=None),
            envelope("stream.chunk", 1, kind=7, chunk={"a": 1}, chunk_index=0, is_complete=False),
            envelope("continuation", 1, should_continue="perhaps"),
            envelope("tool.started", 2, tool=7, tool_call_id="c1"),
            envelope("tool.started", 3, tool="search", tool_call_id=None),
            envelope("tool.started", 4, tool="search", tool_call_id="c1", args=[1], args_summary=7),
            envelope("tool.completed", 5, tool="search"),
            envelope(
                "tool.completed", 6, tool="search", tool_call_id="c1", success="yes", duration_ms="long"
            ),
            envelope("approval.requested", 7, tool="pay", tool_call_id="c2", question="?"),
            envelope("approval.requested", 8, question_id="q1", tool="pay", tool_call_id="c2", question=7),
            envelope("approval.decided", 9, question_id=7, tool="pay", tool_call_id="c2"),
            envelope("retry", 10, attempt=1),
            envelope("step.completed", 11, continuation=[]),
            envelope("status", 12, status=["stopped"]),
        ],
        ["assistant:  [search, pay]", "tool error: "],
    ),
    Case(
        "hostile text is only text",
        [],
        [
            started(),
            chunk(1, HOSTILE, complete=True),
            tool(2, HOSTILE, HOSTILE, args={"__proto__": {"polluted": True}, HOSTILE: HOSTILE}),
            done(3, HOSTILE, HOSTILE, error=HOSTILE),
        ],
        [f"assistant: {HOSTILE} [{HOSTILE}]", f"tool error: {HOSTILE}"],
    ),
    Case(
        "halves of a character are kept until they meet",
        [],
        [started(), chunk(1, "\ud83d"), chunk(1, "\udc4b", 1)],
        ["assistant: 👋"],
    ),
    Case(
        "a lone half breaks nothing",
        [],
        [started(), chunk(1, "a\udc4bz\ud83d")],
        [
            *["assistant: a\udc4bz\ud83d"],
        ],
    ),
    Case(
        "names of properties are only text",
        [],
        [{**each, "execution_id": "__proto__"} for each in (started(), tool(2, "constructor", "toString"))],
        ["assistant:  [toString]", "status tool_call: Running toString"],
    ),
]


ORDER_CASES = [*NUMBERS, *OTHER_RUNS, *UNREADABLE]
