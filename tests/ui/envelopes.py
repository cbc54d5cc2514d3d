"""Envelopes and messages of which the vectors are made."""

from __future__ import annotations

from typing import Any

from tests.ui.support import envelope

AT = "2026-01-16T10:00:00.000Z"

Json = dict[str, Any]


def message(id: str, role: str, content: str = "", **metadata: Any) -> Json:
    made = {"id": id, "role": role, "content": content, "timestamp": AT}
    return {**made, "metadata": metadata} if metadata else made


def calls(*names: str) -> list[Json]:
    return [{"id": f"c{number}", "name": name} for number, name in enumerate(names, 1)]


def of_step(number: int) -> Json:
    return {"execution_id": "e1", "step_number": number}


def verdict(reason: str | None, by: str) -> Json:
    return {"should_continue": reason is None, "stop_reason": reason, "resolved_by": by}


PAUSE = {"should_continue": False, "stop_reason": None, "resolved_by": "ApprovalRequired"}
CONTINUES = verdict(None, "ToolCallPresenceCheck")
COMPLETES = verdict("completed", "ToolCallPresenceCheck")


# Numbered envelopes


def status(seq: int, name: str, previous: str = "in_progress", **data: Any) -> Json:
    known = {"stop_reason": None, "resolved_by": None, "reason": None, "step_count": 0}
    known |= {"error_message": None, "last_response": None}
    return envelope("status", seq, status=name, previous_status=previous, **{**known, **data})


def started(seq: int = 1, **data: Any) -> Json:
    return status(seq, "in_progress", "pending", **data)


def stopped(seq: int, reason: str = "steps_limit", step_count: int = 1) -> Json:
    why = {"resolved_by": "StepsLimit", "reason": "Limit reached: 1 of 1 steps used"}
    return status(seq, "stopped", stop_reason=reason, step_count=step_count, **why)


def completed(seq: int, step_count: int = 1) -> Json:
    why = {"resolved_by": "ToolCallPresenceCheck", "reason": "No tool calls"}
    return status(seq, "completed", stop_reason="completed", step_count=step_count, **why)


def paused(seq: int, step_count: int = 0) -> Json:
    why = {"resolved_by": "ApprovalRequired", "reason": "1 call waits for a person"}
    return status(seq, "paused", step_count=step_count, **why)


def tool(seq: int, call_id: str = "c1", name: str = "search", **data: Any) -> Json:
    shown = data or {"args_summary": "query: 'dbplus'"}
    return envelope("tool.started", seq, tool=name, tool_call_id=call_id, **shown)


def done(seq: int, call_id: str = "c1", name: str = "search", error: str | None = None, **data: Any) -> Json:
    return envelope(
        "tool.completed",
        seq,
        tool=name,
        tool_call_id=call_id,
        success=error is None,
        error=error,
        duration_ms=12.5,
        result_summary='["a","b"]' if error is None else f"Error: {error}",
        **data,
    )


def asked(seq: int, call_id: str | None = "c2", question_id: str = "q1", **data: Any) -> Json:
    name = None if call_id is None else "pay"
    shown = {"question": f"{name or 'The run'} waits for approval"}
    shown |= data or {"args_summary": "amount: 7"}
    return envelope(
        "approval.requested", seq, question_id=question_id, tool=name, tool_call_id=call_id, **shown
    )


def decided(seq: int, verdict: str = "approved", call_id: str | None = "c2", **data: Any) -> Json:
    known = {"question_id": "q1", "tool": None if call_id is None else "pay", "tool_call_id": call_id}
    known |= {"verdict": verdict, "by": "ada", "reason": None}
    return envelope("approval.decided", seq, **{**known, **data})


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
        continuation=why or CONTINUES,
    )


def failed_call(seq: int, number: int) -> Json:
    """A step whose model call failed, and that is to be retried."""
    why = verdict(None, "ErrorPolicyCriterion")
    return ended(seq, number, why, has_tool_calls=False, errors=1, finish_reason=None)


def retry(seq: int, attempt: Any = 1, most: Any = 3) -> Json:
    return envelope("retry", seq, attempt=attempt, max=most, wait_seconds=1.5, error_type="rate_limit")


# The others: `seq` is that of the last numbered envelope.


def step(seq: int, number: int, **data: Any) -> Json:
    known = {"step_number": number, "message_count": 1, "available_tools": ["search"]}
    return envelope("step.started", seq, **known, **data)


def chunk(seq: int, text: str, index: Any = 0, *, complete: bool = False, kind: str = "text") -> Json:
    return envelope("stream.chunk", seq, kind=kind, chunk=text, chunk_index=index, is_complete=complete)


def trace(seq: int, number: int, why: Json, *evaluations: Json) -> Json:
    return envelope("continuation", seq, step_number=number, **why, evaluations=list(evaluations))


# Changes of envelopes


def later(minutes: int, *envelopes: Json) -> list[Json]:
    """Return the envelopes so many minutes later."""
    return [{**each, "timestamp": f"2026-01-16T11:{minutes:02d}:00.000Z"} for each in envelopes]


def of_next(*envelopes: Json) -> list[Json]:
    """Return the envelopes as those of the next execution."""
    return [{**each, "execution_id": "e2"} for each in later(9, *envelopes)]


# Messages


HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe \u0000 \u2028 __proto__ 👋🏽"
QUESTION = message("a1:0", "user", "Who?", execution_id="e1")
NEXT_QUESTION = message("u2", "user", "And?")
ASKED_NEXT = message("a1:3", "user", "And?", execution_id="e2")
CALLING = message("e1:1:assistant", "assistant", "I look.", **of_step(1), tool_calls=calls("search", "pay"))
RESULT = message(
    "e1:1:tool:c1", "tool", "ok", **of_step(1), tool_call_id="c1", tool_name="search", tool_result="ok"
)
_PAY = {**of_step(1), "status_type": "tool_call", "tool_call_id": "c2", "tool_name": "pay"}
_PAY["tool_calls"] = [{"id": "c2", "name": "pay"}]
PENDING = message(
    "e1:1:tool:c2",
    "status",
    "pay waits for approval",
    **_PAY,
    question_id="q1",
    question="pay waits for approval",
    args_summary="amount: 7",
    continuation=PAUSE,
    reason="1 call waits for a person",
    seq=4,
)
SECOND_PENDING = {**PENDING, "id": "e1:1:tool2:c2", "metadata": {**PENDING["metadata"], "question_id": "q2"}}
AT_WORK = message("e1:1:tool:c2", "status", "Running pay", **_PAY)
STOPPED = message(
    "e1:1:assistant",
    "assistant",
    "Half.",
    **of_step(1),
    continuation=verdict("steps_limit", "StepsLimit"),
    reason="Limit reached: 1 of 1 steps used",
    seq=3,
)
COMPLETED = message("e1:1:assistant", "assistant", "All.", **of_step(1), continuation=COMPLETES, seq=3)
THEN = message("e1:2:assistant", "assistant", "Then.", **of_step(2))
ERROR = message("e1:1:error", "status", "It broke", **of_step(1), status_type="error")
LOST = message("lost", "status", "The connection was lost", status_type="error")
RUNNING = message("e1:status", "status", "Thinking…", **of_step(1), status_type="thinking", seq=3)


def loaded(seq: int, step_number: int = 1, content: str = "Thinking…") -> Json:
    """The status of an execution in progress, from the history."""
    known = {"status_type": "thinking", "agent_id": "a1", "seq": seq}
    return message("e1:status", "status", content, **of_step(step_number), **known)


A_RUN = [
    started(1),
    step(1, 1),
    chunk(1, "Let me "),
    chunk(1, "look.", 1),
    chunk(1, "", 2, complete=True),
    tool(2),
    done(3),
    ended(4, 1),
    step(4, 2),
    chunk(4, "Two."),
    chunk(4, "", 1, complete=True),
    ended(5, 2, COMPLETES, has_tool_calls=False, finish_reason="stop"),
    completed(6, 2),
]
HALF = [started(1), step(1, 1), chunk(1, "Half an ans")]
ASKS = [started(1), tool(2), asked(3), paused(4)]
