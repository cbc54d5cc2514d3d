"""What the vectors are made of; `python -m tests.ui.cases` writes them anew.

Read the difference before you keep it: what a vector expects is a promise to every client.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.ui.support import envelope
from whyloop import StopReason
from whyloop.wire import ui

FOLDER = Path(__file__).parent / "vectors"
AT = "2026-01-16T10:00:00.000Z"

Json = dict[str, Any]


def message(id: str, role: str, content: str = "", **metadata: Any) -> Json:
    made = {"id": id, "role": role, "content": content, "timestamp": AT}
    return {**made, "metadata": metadata} if metadata else made


def calls(*names: str) -> list[Json]:
    return [{"id": f"c{number}", "name": name} for number, name in enumerate(names, 1)]


def of_step(number: int) -> Json:
    return {"execution_id": "e1", "step_number": number}


def status(seq: int, name: str, previous: str = "in_progress", **data: Any) -> Json:
    known = {"stop_reason": None, "step_count": 0, "error_message": None, "last_response": None}
    return envelope("status", seq, status=name, previous_status=previous, **{**known, **data})


def started(seq: int) -> Json:
    return status(seq, "in_progress", "pending")


def step(seq: int, number: int) -> Json:
    return envelope("step.started", seq, step_number=number, message_count=1, available_tools=["search"])


def chunk(seq: int, words: str, index: int = 0, *, complete: bool = False) -> Json:
    return envelope("stream.chunk", seq, chunk=words, chunk_index=index, is_complete=complete)


def tool(seq: int, call_id: str = "c1", name: str = "search", **data: Any) -> Json:
    shown = data or {"args_summary": "query: 'dbplus'"}
    return envelope("tool.started", seq, tool=name, tool_call_id=call_id, **shown)


def done(seq: int, call_id: str = "c1", name: str = "search", error: str | None = None) -> Json:
    return envelope(
        "tool.completed",
        seq,
        tool=name,
        tool_call_id=call_id,
        success=error is None,
        error=error,
        duration_ms=12.5,
        result_summary='["a","b"]' if error is None else f"Error: {error}",
    )


def verdict(reason: str | None, by: str) -> Json:
    return {"should_continue": reason is None, "stop_reason": reason, "resolved_by": by}


GOES_ON = verdict(None, "ToolCallPresenceCheck")


def ended(seq: int, number: int, why: Json | None = None, **data: Any) -> Json:
    known = {"has_tool_calls": True, "errors": 0, "finish_reason": "tool_calls"}
    usage = {"input": 10, "output": 1, "total": 11}
    return envelope(
        "step.completed",
        seq,
        step_number=number,
        **{**known, **data},
        usage=usage,
        duration_ms=20.0,
        continuation=why or GOES_ON,
    )


def policy(handling: str, failures: Any = 2, most: Any = 3) -> Json:
    context = {"handling": handling, "consecutive_failures": failures, "max_retries": most}
    reason = f"Tool error, retrying ({failures}/{most})"
    return {"criterion": "ErrorPolicyCriterion", "decision": "allow", "reason": reason, "context": context}


def trace(seq: int, number: int, why: Json, *evaluations: Json) -> Json:
    return envelope("continuation", seq, step_number=number, **why, evaluations=list(evaluations))


HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe \u0000 \u2028 __proto__ 👋🏽"
SAID = message("e1:1:assistant", "assistant", "I look.", **of_step(1), tool_calls=calls("search", "pay"))
RESULT = message(
    "e1:1:tool:c1", "tool", "ok", **of_step(1), tool_call_id="c1", tool_name="search", tool_result="ok"
)
WAITING = message(
    "e1:1:tool:c2",
    "status",
    "pay() waits for approval",
    **of_step(1),
    status_type="tool_call",
    tool_call_id="c2",
    tool_name="pay",
    tool_calls=[{"id": "c2", "name": "pay"}],
    waiting=True,
    continuation=verdict(None, "ApprovalRequired") | {"should_continue": False},
)
STOPPED = message(
    "e1:1:assistant", "assistant", "Half.", **of_step(1), continuation=verdict("steps_limit", "StepsLimit")
)
COMPLETED = message(
    "e1:1:assistant",
    "assistant",
    "All.",
    **of_step(1),
    continuation=verdict("completed", "ToolCallPresenceCheck"),
)
THEN = message("e1:2:assistant", "assistant", "Then.", **of_step(2))
QUESTION = message("a1:0", "user", "Who?", execution_id="e1")
ERROR = message("e1:1:error", "status", "It broke", **of_step(1), status_type="error")
INNER = {"execution_id": "e9", "step_number": 1, "status_type": "error"}
LOST = message("lost", "status", "The connection was lost", status_type="error")
RUNNING = message("e1:status", "status", "Thinking…", **of_step(1), status_type="thinking", seq=3)
UNDER_WAY = {"status_type": "thinking", "agent_id": "a1", "seq": 0}
LOADED = message("e1:status", "status", "Thinking…", **of_step(1), **UNDER_WAY)
LOADED_LATER = message("e1:status", "status", "Thinking…", **of_step(4), **UNDER_WAY)
LOADED_AT_WORK = message("e1:status", "status", "", **of_step(1), **UNDER_WAY)
AT_WORK = message(
    "e1:1:tool:c2",
    "status",
    "Running pay",
    **of_step(1),
    status_type="tool_call",
    tool_call_id="c2",
    tool_name="pay",
    tool_calls=[{"id": "c2", "name": "pay"}],
)
OVER = message("e1:status", "status", **of_step(1), status_type="info", agent_id="a1")

A_RUN = [
    started(1),
    step(2, 1),
    chunk(3, "Let me "),
    chunk(4, "look.", 1),
    chunk(5, "", 2, complete=True),
    tool(6),
    done(7),
    ended(8, 1),
    step(9, 2),
    chunk(10, "Two."),
    chunk(11, "", 1, complete=True),
    ended(12, 2, verdict("completed", "ToolCallPresenceCheck"), has_tool_calls=False, finish_reason="stop"),
    status(13, "completed", stop_reason="completed", step_count=2, last_response="Two."),
]

PAUSED = [started(1), step(2, 1), tool(3), status(4, "paused", step_count=0)]


def later(minutes: int, *envelopes: Json) -> list[Json]:
    """The same, but so many minutes later."""
    return [{**told, "timestamp": f"2026-01-16T11:{minutes:02d}:00.000Z"} for told in envelopes]


def of_next(*envelopes: Json) -> list[Json]:
    """The same, but of the next execution."""
    return [{**told, "execution_id": "e2"} for told in later(9, *envelopes)]


HALF = [started(1), step(2, 1), chunk(3, "Half an ans")]
AND = message("u2", "user", "And?")

REDUCE: list[tuple[str, list[Json], list[Json]]] = [
    ("an execution that begins shows that it thinks", [QUESTION], [started(1)]),
    ("a step that begins shows that it thinks", [], [started(1), step(2, 1)]),
    ("a chunk begins an assistant's message that streams", [QUESTION], A_RUN[:3]),
    ("chunks make it grow", [], A_RUN[:4]),
    ("the last chunk ends the stream", [], A_RUN[:5]),
    ("a tool that starts is a short-lived status, and a call of the assistant's message", [], A_RUN[:6]),
    ("a tool that is completed is the tool message of that call", [], A_RUN[:7]),
    ("a whole run", [QUESTION], A_RUN),
    (
        "a tool call without any text has an assistant's message without text",
        [],
        [started(1), step(2, 1), tool(3)],
    ),
    (
        "arguments in full are passed on",
        [],
        [started(1), tool(2, args={"query": "x", "deep": [{"a": None}]})],
    ),
    ("arguments that are no JSON object are passed on as text", [], [started(1), tool(2, args='{"query": ')]),
    ("a tool that failed has its error", [], [started(1), step(2, 1), tool(3), done(4, error="no network")]),
    (
        "several calls end in any order",
        [],
        [started(1), step(2, 1), tool(3, "c1"), tool(4, "c2", "pay"), done(5, "c2", "pay"), done(6, "c1")],
    ),
    ("a tool that is completed without a start is shown all the same", [], [started(1), step(2, 1), done(3)]),
    (
        "a call id that comes again in another step is another call",
        [],
        [started(1), step(2, 1), tool(3), done(4), ended(5, 1), step(6, 2), tool(7), done(8, error="gone")],
    ),
    (
        "a model call that failed takes its text back, and is tried again",
        [],
        [
            started(1),
            step(2, 1),
            chunk(3, "Half an ans"),
            ended(
                4,
                1,
                verdict(None, "ErrorPolicyCriterion"),
                has_tool_calls=False,
                errors=1,
                finish_reason=None,
                retry={"attempt": 1, "max": 3},
            ),
        ],
    ),
    (
        "a retry shows how many",
        [],
        [
            started(1),
            step(2, 1),
            tool(3),
            done(4, error="no"),
            trace(5, 1, GOES_ON, policy("retry")),
            ended(6, 1, errors=1, retry={"attempt": 2, "max": 3}),
        ],
    ),
    (
        "a retry is shown until something is heard of it",
        [],
        [started(1), ended(2, 1, errors=1, retry={"attempt": 2, "max": 3}), step(3, 2)],
    ),
    (
        "a retry that answers is a retry no longer",
        [],
        [
            started(1),
            ended(2, 1, errors=1, retry={"attempt": 1, "max": 3}),
            step(3, 2),
            chunk(4, "Now"),
        ],
    ),
    (
        "an error that is ignored is no retry",
        [],
        [started(1), trace(2, 1, GOES_ON, policy("ignore")), ended(3, 1, errors=1)],
    ),
    *(
        (
            f"a retry of which {name} is none that can be shown",
            [],
            [started(1), ended(2, 1, errors=1, retry=retry)],
        )
        for name, retry in {
            "nothing is known": None,
            "the attempt is no number": {"attempt": "2", "max": 3},
            "the most is no number": {"attempt": 2, "max": None},
        }.items()
    ),
    (
        "a stop is no retry",
        [],
        [started(1), ended(2, 1, verdict("retry_limit", "P"), errors=1, retry={"attempt": 3, "max": 3})],
    ),
    (
        "a stop says why",
        [],
        [
            started(1),
            step(2, 1),
            ended(3, 1, verdict("steps_limit", "StepsLimit")),
            status(4, "stopped", stop_reason="steps_limit", step_count=1),
        ],
    ),
    (
        "a stop has its trace where it is told",
        [],
        [
            started(1),
            trace(
                2, 1, verdict("steps_limit", "StepsLimit"), {"criterion": "StepsLimit", "decision": "forbid"}
            ),
            status(3, "stopped", stop_reason="steps_limit", step_count=1),
        ],
    ),
    (
        "a stop between two steps does not name the rule that let the step before go on",
        [],
        [started(1), ended(2, 1), status(3, "stopped", stop_reason="user_requested", step_count=1)],
    ),
    (
        "a failure is an error that stays",
        [],
        [
            started(1),
            ended(2, 1, verdict("error", "ErrorPolicyCriterion"), errors=1),
            status(
                3, "failed", stop_reason="error", step_count=1, error_message="Tool error, stopped by policy"
            ),
        ],
    ),
    (
        "a failure without words is named by its reason",
        [],
        [started(1), status(2, "failed", stop_reason="retry_limit", step_count=1, error_message="")],
    ),
    ("a pause waits for a person", [], [started(1), step(2, 1), status(3, "paused", step_count=0)]),
    (
        "a call that waited runs and becomes its message",
        [QUESTION, SAID, RESULT, WAITING],
        [status(9, "in_progress", "paused"), tool(10, "c2", "pay"), done(11, "c2", "pay")],
    ),
    (
        "an execution that was stopped goes on in its next step",
        [QUESTION, STOPPED],
        [status(9, "in_progress", "stopped", step_count=1), step(10, 2), chunk(11, "The rest.")],
    ),
    (
        "a resumed run that is counted from one again is heard",
        [],
        [*PAUSED, *later(9, status(1, "in_progress", "paused"), tool(2, "c1", "search"), done(3))],
    ),
    (
        "a run that was stopped and is counted anew goes on in its next step",
        [],
        [
            started(1),
            ended(2, 1, verdict("steps_limit", "StepsLimit")),
            status(3, "stopped", stop_reason="steps_limit", step_count=1),
            *later(9, status(1, "in_progress", "stopped", step_count=1), step(2, 2), chunk(3, "Rest.")),
        ],
    ),
    ("an old start that comes again after the end is ignored", [], [*A_RUN, started(1)]),
    ("an old start that comes again after a pause is ignored", [], [*PAUSED, started(1), tool(2)]),
    (
        "an old start that comes again after the last step is ignored",
        [],
        [*A_RUN[:-1], started(1), A_RUN[-1]],
    ),
    ("what runs is not counted anew", [], [*A_RUN[:4], *later(9, started(1))]),
    ("a status that nobody knows changes nothing but the count", [], [started(1), status(2, "dreaming")]),
    ("an envelope that comes twice counts once", [], [started(1), step(2, 1), chunk(3, "a"), chunk(3, "a")]),
    ("an old envelope is ignored", [], [started(5), step(6, 1), chunk(7, "a"), chunk(4, "z")]),
    ("what comes too early is held", [], [started(1), step(2, 1), chunk(4, "b", 1)]),
    (
        "what is held follows in its order",
        [],
        [started(1), step(2, 1), chunk(5, "c", 2), chunk(4, "b", 1), chunk(3, "a")],
    ),
    ("what is held and comes twice is held once", [], [started(1), chunk(3, "b", 1), chunk(3, "b", 1)]),
    (
        "what is missing is waited for no longer when too much waits",
        [],
        [started(1), step(2, 1), *(chunk(seq, f"{seq} ", seq - 3) for seq in range(4, 14))],
    ),
    (
        "what is missing is waited for no longer at the end",
        [],
        [started(1), chunk(3, "b", 1), status(5, "completed", stop_reason="completed", step_count=1)],
    ),
    ("a client that joins late begins where it joins", [], [chunk(40, "rest of it", 7), chunk(41, "!", 8)]),
    (
        "a client that has the history joins after it",
        [QUESTION, SAID, RESULT],
        [chunk(40, "Next."), tool(41, "c9")],
    ),
    ("what comes late is ignored when the end is in the history", [QUESTION, COMPLETED], A_RUN),
    (
        "a step that comes late is ignored too",
        [QUESTION, STOPPED],
        [step(2, 1), chunk(3, "Half."), ended(4, 1)],
    ),
    (
        "a step that is new is heard though its start was lost",
        [QUESTION, STOPPED],
        [step(20, 2), chunk(21, "Rest.")],
    ),
    (
        "another execution has its own status",
        [QUESTION, AND],
        [started(1), {**started(1), "execution_id": "e2"}],
    ),
    ("a run that was loaded before it was told of is told", [QUESTION, LOADED], A_RUN),
    ("a run that was loaded while it thinks goes on with a step", [QUESTION, LOADED], [step(30, 1)]),
    (
        "a run that was loaded while it speaks goes on with whatever is heard first",
        [QUESTION, LOADED],
        [chunk(40, "rest of it", 7), chunk(41, "!", 8)],
    ),
    (
        "a run that was loaded while a tool runs goes on with its result",
        [QUESTION, SAID, RESULT, AT_WORK, LOADED_AT_WORK],
        [done(20, "c2", "pay"), ended(21, 1), step(22, 2)],
    ),
    (
        "a run that was loaded goes on in the step that it is in, though attempts before left nothing",
        [QUESTION, LOADED_LATER],
        [chunk(50, "At last.")],
    ),
    (
        "a run that was loaded ends with the end that is heard first",
        [QUESTION, LOADED],
        [status(60, "stopped", stop_reason="user_requested", step_count=1)],
    ),
    (
        "what is missing after the first that is heard of a run that was loaded is waited for",
        [QUESTION, LOADED],
        [chunk(40, "a"), chunk(42, "c", 2)],
    ),
    (
        "what is told of a run that was loaded stands before what was sent meanwhile",
        [QUESTION, LOADED, AND],
        [chunk(40, "a")],
    ),
    ("a run that was cut off is over when the next begins", [QUESTION], [*HALF, *of_next(started(1))]),
    (
        "a run that was loaded and had been cut off is over when the next begins",
        [QUESTION, SAID, RESULT, AT_WORK, LOADED_AT_WORK, AND],
        of_next(started(1)),
    ),
    (
        "what was held of a run that was cut off is waited for no longer when the next begins",
        [],
        [*HALF, chunk(5, "wer", 2), *of_next(started(1))],
    ),
    (
        "what is told of a run after the next has begun is ignored",
        [],
        [*HALF, *of_next(started(1)), chunk(4, "wer", 1), *later(10, step(5, 1), ended(6, 1), started(7))],
    ),
    (
        "a run that has ended says so when the next has begun",
        [],
        [
            started(1),
            status(2, "stopped", stop_reason="steps_limit", step_count=1),
            *of_next(started(1)),
        ],
    ),
    (
        "a run of which the beginning is not heard leaves others as they are",
        [],
        [*HALF, *of_next(chunk(9, "Next", 3))],
    ),
    ("a beginning that comes late leaves what is heard by then", [], [*of_next(*HALF), started(1)]),
    (
        "an agent within a tool leaves the run around it",
        [],
        [started(1), step(2, 1), tool(3), *({**told, "agent_id": "a2"} for told in of_next(started(1)))],
    ),
    (
        "a run of nobody is over when the next of nobody begins",
        [],
        [{**started(1), "agent_id": None}, *({**told, "agent_id": 7} for told in of_next(started(1)))],
    ),
    ("an unknown event is ignored", [QUESTION], [envelope("dream", 1, what="ever")]),
    ("another version is ignored", [QUESTION], [{**started(1), "v": 2}]),
    (
        "what is no envelope is ignored",
        [QUESTION],
        [
            {},
            {"v": 1},
            {**started(1), "seq": "1"},
            {**started(1), "seq": 0},
            {**started(1), "seq": -1},
            {**started(1), "seq": 1.5},
            {**started(1), "seq": True},
            {**started(1), "v": True},
            {**started(1), "event": ["agent.status"]},
            {**started(1), "event": "__proto__"},
            {**started(1), "event": "toString"},
            {**started(1), "data": None},
            {**started(1), "data": []},
            {**started(1), "execution_id": 7},
            {**started(1), "timestamp": None},
        ],
    ),
    (
        "data that is not as it should be breaks nothing",
        [],
        [
            envelope("status", 1, status="in_progress", step_count="many"),
            envelope("step.started", 2, step_number=None),
            envelope("stream.chunk", 3, chunk={"a": 1}, chunk_index=0, is_complete=False),
            envelope("tool.started", 4, tool=7, tool_call_id="c1"),
            envelope("tool.started", 5, tool="search", tool_call_id=None),
            envelope("tool.started", 6, tool="search", tool_call_id="c1", args=[1], args_summary=7),
            envelope("tool.completed", 7, tool="search"),
            envelope(
                "tool.completed", 8, tool="search", tool_call_id="c1", success="yes", duration_ms="long"
            ),
            envelope("step.completed", 9, continuation=[]),
            envelope("continuation", 10, should_continue="perhaps"),
            envelope("status", 11, status=["stopped"]),
        ],
    ),
    (
        "hostile text is only text",
        [],
        [
            started(1),
            step(2, 1),
            chunk(3, HOSTILE),
            tool(4, HOSTILE, HOSTILE, args={"__proto__": {"polluted": True}, HOSTILE: HOSTILE}),
            done(5, HOSTILE, HOSTILE, error=HOSTILE),
        ],
    ),
    (
        "halves of a character are kept until they meet",
        [],
        [started(1), step(2, 1), chunk(3, "\ud83d"), chunk(4, "\udc4b", 1)],
    ),
    ("a lone half breaks nothing", [], [started(1), step(2, 1), chunk(3, "a\udc4bz\ud83d")]),
    (
        "names of properties are only text",
        [],
        [
            {**started(1), "execution_id": "__proto__"},
            {**tool(2, "constructor", "toString"), "execution_id": "__proto__"},
        ],
    ),
]

# Of these the last list is told in order: what is missing before it never comes.
IN_ORDER: list[tuple[str, list[Json], list[Json], list[Json]]] = [
    (
        "a run of which the chunks are not kept is replayed without waiting for them",
        [QUESTION],
        [],
        [told for told in A_RUN if told["event"] != "agent.stream.chunk"],
    ),
    ("a run of which nothing is missing is the same in order", [QUESTION], [], A_RUN),
    (
        "what is held is released by what is replayed after it",
        [],
        [started(1), step(2, 1), done(6), tool(4)],
        [ended(8, 1)],
    ),
    (
        "what is held goes on waiting for what is replayed before it",
        [],
        [started(1), step(2, 1), done(6)],
        [tool(4)],
    ),
    (
        "what was held follows what is replayed just before it",
        [],
        [started(1), step(2, 1), done(6)],
        [tool(4), tool(5, "c2")],
    ),
    (
        "what is held is released by itself when it is replayed",
        [],
        [started(1), tool(4), done(5), ended(9, 1)],
        [tool(4)],
    ),
    ("an envelope that is replayed twice counts once", [], [], [started(1), tool(5), tool(5), started(1)]),
    ("an old envelope is ignored in order too", [], [], [started(1), chunk(9, "a"), tool(4)]),
    (
        "a run that is taken over goes on at a distance, and says anew what was cut off",
        [],
        [],
        [started(1), step(2, 1), chunk(3, "Half of"), step(10_003, 1), chunk(10_004, "All of it.")],
    ),
    (
        "a run that is taken over while its tools run goes on at a distance",
        [],
        [],
        [started(1), step(2, 1), tool(5), done(10_005), ended(10_006, 1)],
    ),
    (
        "a resumed run that is counted from one again is heard in order too",
        [],
        [],
        [*PAUSED, *later(9, status(1, "in_progress", "paused"), tool(5, "c1"), done(7))],
    ),
    (
        "text that is heard from its second chunk on begins with a gap",
        [],
        [],
        [started(1), step(2, 1), chunk(4, "the rest", 1), chunk(5, ".", 2)],
    ),
    (
        "a gap between chunks is marked once, and so is the next",
        [],
        [],
        [started(1), chunk(2, "a"), chunk(5, "b", 3), chunk(6, "c", 4), chunk(8, "d", 6)],
    ),
    (
        "an end of a text that is missing is marked when the next thing is heard",
        [],
        [],
        [started(1), step(2, 1), chunk(3, "Let me "), tool(6), done(8), ended(9, 1)],
    ),
    (
        "a text of which only the end is heard is a gap",
        [],
        [],
        [started(1), step(2, 1), chunk(7, "", 4, complete=True)],
    ),
    (
        "a gap before a text is none in it",
        [],
        [],
        [started(1), chunk(7, "All."), chunk(8, "", 1, complete=True), ended(12, 1)],
    ),
    (
        "a first chunk without any text is no gap",
        [],
        [],
        [started(1), step(2, 1), chunk(3, ""), chunk(4, "All.", 1)],
    ),
    (
        "a chunk without text after a gap is where the gap is",
        [],
        [],
        [started(1), chunk(2, "a"), chunk(4, "", 2), chunk(5, "b", 3)],
    ),
    (
        "a place that is no number is no gap",
        [],
        [],
        [started(1), envelope("stream.chunk", 3, chunk="a", chunk_index="7", is_complete=False)],
    ),
    (
        "an answer that broke off is taken back with its gap",
        [],
        [],
        [started(1), chunk(2, "a"), ended(5, 1, has_tool_calls=False, finish_reason=None)],
    ),
    ("a last chunk that has text is the end of it", [], [], [started(1), chunk(2, "All.", complete=True)]),
    (
        "a run that was loaded goes on in order with whatever is heard first",
        [QUESTION, LOADED],
        [],
        [chunk(40, "rest of it", 7), tool(50)],
    ),
    (
        "a run that was cut off is over when the next begins in order",
        [QUESTION, LOADED, AND],
        [],
        of_next(*A_RUN),
    ),
    (
        "a text that the history has gets no gap",
        [QUESTION, SAID, RESULT],
        [],
        [tool(20, "c2", "pay"), step(21, 1), chunk(25, "look.", 2), chunk(26, "", 3, complete=True)],
    ),
]

OTHERS: dict[str, list[tuple[str, list[Any]]]] = {
    "reconcile": [
        (
            "the history takes the place of what was streamed",
            [
                [message("local", "user", "Who?"), {**COMPLETED, "content": "Al"}, RUNNING],
                [QUESTION, COMPLETED],
            ],
        ),
        ("a message that the history does not have is gone", [[SAID, RESULT], [QUESTION]]),
        ("statuses are dropped", [[QUESTION, RUNNING, WAITING], [QUESTION]]),
        (
            "the status of a run that the history knows to be under way takes the place of what was heard",
            [[QUESTION, {**COMPLETED, "content": "Al"}, RUNNING], [QUESTION, LOADED]],
        ),
        (
            "an error and a question of the client's own stay after the status of a run under way",
            [[QUESTION, RUNNING, LOST, message("local", "user", "And?")], [QUESTION, LOADED]],
        ),
        ("the status that was loaded goes at the end", [[QUESTION, LOADED, LOST], [QUESTION, COMPLETED]]),
        ("a status of the history stays", [[], [QUESTION, SAID, RESULT, WAITING]]),
        (
            "an error that the history has is there once",
            [[QUESTION, {**ERROR, "content": "streamed"}], [QUESTION, ERROR]],
        ),
        (
            "an error that was told is gone if the history does not have it",
            [[QUESTION, {**ERROR, "id": "e9:1:error", "metadata": INNER}], [QUESTION, SAID]],
        ),
        (
            "an error of the client's own stays after what it came after",
            [[QUESTION, LOST, SAID], [QUESTION, SAID]],
        ),
        (
            "an error after a result is found by its tool_call_id",
            [[{**RESULT, "id": "other"}, LOST], [SAID, RESULT, THEN]],
        ),
        (
            "an error after nothing that is known stays at the end",
            [[message("local", "user", "?"), LOST], [QUESTION, SAID]],
        ),
        ("an error stays when there is no history", [[LOST], []]),
        (
            "a question that is not stored yet stays at the end",
            [[QUESTION, COMPLETED, RUNNING, message("local", "user", "And?")], [QUESTION, COMPLETED]],
        ),
        (
            "a question that is stored under its own id is there once",
            [[message("local", "user", "Who?")], [QUESTION]],
        ),
        ("nothing and nothing is nothing", [[], []]),
    ],
    "should_render_content": [
        ("a user's words", [message("1", "user", "Hello")]),
        ("an answer", [message("1", "assistant", "Hello")]),
        ("an answer that is JSON, without tool calls, is an answer", [message("1", "assistant", '{"a": 1}')]),
        ("an empty answer has no bubble", [message("1", "assistant")]),
        ("white space has no bubble", [message("1", "assistant", " \n\t\u00a0\u0085\u2028\ufeff\u001f")]),
        ("an error", [ERROR]),
        ("a status without words", [{**RUNNING, "content": ""}]),
        ("a result is shown under its call", [RESULT]),
        *(
            (f"beside tool calls: {name}", [message("1", "assistant", words, tool_calls=calls("search"))])
            for name, words in {
                "language": "I look that up.",
                "language with an object in it": 'I ask for {"query": 1}.',
                "a quotation": "“{” is a brace",
                "a footnote": "[1] says so",
                "a link": "[here](https://example.com)",
                "a placeholder": "{name} is next",
                "nothing": "",
                "an object": '{"query": "x"}',
                "an empty object": " {} ",
                "an object with a key in single quotes": "{'query': 1}",
                "an object with a bare key": "{query: 1}",
                "the beginning of an object": '{"que',
                "a lone brace": "{",
                "a list of objects": '[{"query": 1}]',
                "a list of texts": '["a"]',
                "an empty list": "[]",
                "an object in a fence": '```json\n{"a": 1}\n```',
                "an object after a tag": '<tool_call>\n{"a": 1}',
                "an object after strange spaces": '\ufeff\u0085{"a": 1}',
            }.items()
        ),
    ],
    "is_ephemeral": [
        ("what it does now", [RUNNING]),
        ("what it does as the history knows", [LOADED]),
        ("a call that waits", [WAITING]),
        ("an error stays", [ERROR]),
        ("an answer stays", [SAID]),
        ("a status without a type", [message("1", "status", "x")]),
    ],
    "is_running": [
        ("nothing", [[]]),
        ("a history", [[QUESTION, COMPLETED]]),
        ("an execution under way", [[QUESTION, RUNNING]]),
        ("one that a history knows to be under way", [[QUESTION, LOADED]]),
        ("one that is over since another has begun", [[QUESTION, OVER]]),
        (
            "one that has ended",
            [[{**RUNNING, "metadata": {**RUNNING["metadata"], "continuation": verdict("guard", "Mine")}}]],
        ),
        (
            "one that has more steps to go",
            [[{**RUNNING, "metadata": {**RUNNING["metadata"], "continuation": GOES_ON}}]],
        ),
    ],
    "missing": [
        ("nothing", [[QUESTION, RUNNING]]),
        (
            "some",
            [[{**RUNNING, "metadata": {**RUNNING["metadata"], "held": [chunk(7, "x"), chunk(9, "y")]}}]],
        ),
    ],
    "group": [
        ("nothing", [[]]),
        ("messages stand for themselves", [[QUESTION, COMPLETED, RUNNING]]),
        ("results are under their calls, in call order", [[QUESTION, SAID, WAITING, RESULT]]),
        ("a call without a result has none yet", [[SAID]]),
        ("a result without a call stands for itself", [[RESULT]]),
        (
            "a call id that comes again belongs to the latest call",
            [[SAID, RESULT, {**SAID, "id": "2"}, {**RESULT, "id": "3"}]],
        ),
        (
            "two calls with one id get a result each",
            [
                [
                    message("1", "assistant", tool_calls=[*calls("a"), *calls("b")]),
                    RESULT,
                    {**RESULT, "id": "2"},
                    {**RESULT, "id": "3"},
                ]
            ],
        ),
        (
            "an error with a call's id is its result",
            [[SAID, {**ERROR, "metadata": {**ERROR["metadata"], "tool_call_id": "c1"}}]],
        ),
    ],
    "args_summary": [
        ("none", [{}]),
        ("text and a list", [{"query": "dbplus", "types": ["program"]}]),
        ("three are shown", [{"a": 1, "b": True, "c": None, "d": "hidden"}]),
        (
            "each is cut at 30 characters",
            [{"text": "x" * 31, "list": list(range(40)), "nested": {"a": {"b": "c" * 40}}}],
        ),
        ("characters are not cut in half", [{"text": "👋" * 31, "more": ["👋" * 31]}]),
        ("another length", [{"text": "abcdef", "list": [1, 2, 3]}, 4]),
        ("text that is no object", ['{"query": "' + "y" * 40]),
        (
            "quotes and control characters",
            [{"a": 'it\'s "x"\n\u0000', "b": ['"\n\u0001\u007f\u2028\\/<'], "c": -1.5}],
        ),
        ("lone halves of characters", [{"a\ud83d": "b\udc4bc\ud83d", "d": "\ud83d\ud83d\udc4b"}]),
        (
            "lone halves of characters in lists and in their names",
            [{"a": ["\ud800x\\ud800"], "b": {"c\udc4b": "\ud83d\udc4b"}, "c": ["\ud83d" * 40]}],
        ),
        ("names are cut too", [{"k" * 40: "v", "👋" * 31: [1]}]),
        (
            "numbers",
            [{"large": 1e21, "in a list": [1e-7, 1.5e300, -2.5, 10**15], "text": ["1e+21", "\\e+"]}],
        ),
        ("control characters in lists", [{"a": ["\u0000\u001f\b\f\u007f"], "b": {"/<>&": "\u2028"}}]),
        ("names of properties", [{"constructor": "a", "toString": [], "hasOwnProperty": {}}]),
    ],
    "status_text": [
        ("pending", [{"status": "pending", "stop_reason": None}]),
        ("in progress", [{"status": "in_progress", "stop_reason": None}]),
        ("paused", [{"status": "paused", "stop_reason": None}]),
        ("completed", [{"status": "completed", "stop_reason": "completed"}]),
        ("failed with words", [{"status": "failed", "stop_reason": "error", "error_message": "It broke"}]),
        ("failed without words", [{"status": "failed", "stop_reason": "retry_limit", "error_message": None}]),
        ("nothing", [{}]),
        ("a continuation that goes on", [GOES_ON]),
        (
            "a continuation that waits",
            [{"should_continue": False, "stop_reason": None, "resolved_by": "ApprovalRequired"}],
        ),
        *((f"stopped by {reason}", [verdict(reason.value, "Rule")]) for reason in StopReason),
    ],
}


def in_python(function: str, arguments: list[Any]) -> Any:
    return getattr(ui, function)(*arguments)


def reduced(messages: list[Json], envelopes: list[Json], in_order: list[Json]) -> Any:
    for told in envelopes:
        messages = ui.reduce(messages, told)
    for told in in_order:
        messages = ui.reduce(messages, told, in_order=True)
    return messages


def written(vectors: list[Json]) -> str:
    return json.dumps(vectors, indent=1) + "\n"


def main() -> None:
    reducing = [
        {"name": name, "messages": messages, "envelopes": told, "expected": reduced(messages, told, [])}
        for name, messages, told in REDUCE
    ]
    reducing += [
        {
            "name": name,
            "messages": messages,
            "envelopes": told,
            "in_order": in_order,
            "expected": reduced(messages, told, in_order),
        }
        for name, messages, told, in_order in IN_ORDER
    ]
    (FOLDER / "reduce.json").write_text(written(reducing), encoding="utf-8")
    for function, cases in OTHERS.items():
        vectors = [
            {"name": name, "arguments": arguments, "expected": in_python(function, arguments)}
            for name, arguments in cases
        ]
        (FOLDER / f"{function}.json").write_text(written(vectors), encoding="utf-8")


if __name__ == "__main__":
    main()
