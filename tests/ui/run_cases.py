"""The cases of `reduce` in the life of a run: its steps, retries, ends and approvals."""

from __future__ import annotations

from tests.ui.case import ASKED, FOUND, LOOKS, THINKS, WHO, Case
from tests.ui.envelopes import (
    A_RUN,
    ASKS,
    CALLING,
    HALF,
    NEXT_QUESTION,
    PENDING,
    QUESTION,
    RESULT,
    SECOND_PENDING,
    STOPPED,
    asked,
    chunk,
    decided,
    done,
    ended,
    failed_call,
    later,
    paused,
    retry,
    started,
    status,
    step,
    stopped,
    tool,
    trace,
    verdict,
)

RUNS = [
    Case("an execution that begins is thinking", [QUESTION], A_RUN[:1], [WHO, THINKS]),
    Case("a step that begins is thinking", [], A_RUN[:2], [THINKS]),
    Case("a chunk begins an assistant message", [QUESTION], A_RUN[:3], [WHO, "assistant: Let me "]),
    Case("chunks extend it", [], A_RUN[:4], ["assistant: Let me look."]),
    Case("the last chunk ends the text", [], A_RUN[:5], ["assistant: Let me look."]),
    Case(
        "a tool that starts is a status, and a call of the assistant message",
        [],
        A_RUN[:6],
        [LOOKS, "status tool_call: Running search"],
    ),
    Case("a tool that is completed is the tool message of that call", [], A_RUN[:7], [LOOKS, FOUND]),
    Case("after a step the next one is thinking", [], A_RUN[:8], [LOOKS, FOUND, THINKS]),
    Case(
        "a run that a limit ended wraps up before it stops",
        [],
        [*A_RUN[:7], ended(4, 1, verdict("steps_limit", "StepsLimit")), step(4, 2, wrap_up="StepsLimit")],
        [LOOKS, FOUND, "status thinking: Wrapping up…"],
    ),
    Case(
        "a wrap-up ends a retry",
        [],
        [*A_RUN[:2], retry(2), step(2, 2, wrap_up="ExecutionTimeLimit")],
        ["status thinking: Wrapping up…"],
    ),
    Case(
        "a run that is resumed after a wrap-up has the step after it",
        [],
        [started(1, step_count=2, wrap_ups=1), step(1, 4), chunk(1, "More")],
        ["assistant: More"],
    ),
    Case("a whole run", [QUESTION], A_RUN, [WHO, LOOKS, FOUND, "assistant: Two."]),
    Case(
        "a tool call without text has an assistant message without text",
        [],
        [started(), tool(2)],
        ["assistant:  [search]", "status tool_call: Running search"],
    ),
    Case(
        "arguments in full are passed on, with a summary",
        [],
        [started(), tool(2, args={"query": "x", "deep": [{"a": None}]})],
        ["assistant:  [search]", "status tool_call: Running search"],
    ),
    Case(
        "arguments that are not an object are passed on as text",
        [],
        [started(), tool(2, args='{"query": ')],
        ["assistant:  [search]", "status tool_call: Running search"],
    ),
    Case(
        "a tool that failed has its error",
        [],
        [started(), tool(2), done(3, error="no network")],
        ["assistant:  [search]", "tool error: no network"],
    ),
    Case(
        "the hooks that changed a call and its result are shown",
        [],
        [started(), tool(2, args_summary="", changed_by=["Limiter"]), done(3, changed_by=["Hider"])],
        ["assistant:  [search changed by Limiter]", f"{FOUND} (changed by Hider)"],
    ),
    Case(
        "hooks that are not names are not shown",
        [],
        [started(), tool(2, changed_by=[7]), done(3, changed_by="Hider")],
        ["assistant:  [search]", FOUND],
    ),
    Case(
        "several calls end in any order",
        [],
        [started(), tool(2), tool(3, "c2", "pay"), done(4, "c2", "pay"), done(5)],
        ["assistant:  [search, pay]", FOUND, FOUND],
    ),
    Case(
        "a tool that is completed without a start is shown all the same",
        [],
        [started(), done(2)],
        ["assistant:  [search]", FOUND, THINKS],
    ),
    Case(
        "a call id that occurs again in another step is another call",
        [],
        [started(), tool(2), done(3), ended(4, 1), tool(5), done(6, error="gone")],
        ["assistant:  [search]", FOUND, "assistant:  [search]", "tool error: gone"],
    ),
    Case(
        "a call that has its result does not start again",
        [],
        [started(), tool(2), done(3), tool(4)],
        ["assistant:  [search]", FOUND],
    ),
    Case(
        "a call that starts again after a crash is there once",
        [],
        [started(), tool(2), *later(1, tool(3)), done(4)],
        ["assistant:  [search]", FOUND],
    ),
]

RETRIES = [
    Case(
        "a model call that failed takes its text back",
        [],
        [*HALF, failed_call(2, 1)],
        [THINKS],
    ),
    Case(
        "a retry shows which one it is",
        [],
        [*HALF, failed_call(2, 1), retry(3, 2)],
        ["status continuation: Retrying (2/3)"],
    ),
    Case(
        "a retry is shown until there is something of it",
        [],
        [started(), failed_call(2, 1), retry(3), step(3, 2)],
        ["status continuation: Retrying (1/3)"],
    ),
    Case(
        "a retry that answers is a retry no longer",
        [],
        [started(), failed_call(2, 1), retry(3), step(3, 2), chunk(3, "Now")],
        ["assistant: Now"],
    ),
    Case(
        "a retry that calls a tool is a retry no longer",
        [],
        [started(), failed_call(2, 1), retry(3), tool(4)],
        ["assistant:  [search]", "status tool_call: Running search"],
    ),
    Case(
        "a retry whose call is blocked is a retry no longer",
        [],
        [started(), failed_call(2, 1), retry(3), step(3, 2), done(4, error="blocked by guard")],
        ["assistant:  [search]", "tool error: blocked by guard"],
    ),
    *(
        Case(
            f"a retry whose {name} is not shown",
            [],
            [started(), failed_call(2, 1), retry(3, *given)],
            [THINKS],
        )
        for name, given in {"attempt is not a number": ("2", 3), "maximum is not a number": (2, None)}.items()
    ),
    Case(
        "text that was interrupted stays, and is incomplete",
        [],
        [*HALF, ended(2, 1, verdict("user_requested", "Rule"), has_tool_calls=False, finish_reason=None)],
        ["assistant: Half an ans (incomplete)"],
    ),
    Case(
        "an answer that was interrupted before its first word leaves nothing",
        [],
        [started(), ended(2, 1, verdict("user_requested", "Rule"), has_tool_calls=False, finish_reason=None)],
        [THINKS],
    ),
    Case(
        "a wrong answer that is corrected stays",
        [],
        [started(), chunk(1, "7", complete=True), ended(2, 1, has_tool_calls=False, errors=1)],
        ["assistant: 7", THINKS],
    ),
]

ENDS = [
    Case(
        "a stop says why",
        [],
        [started(), ended(2, 1, verdict("steps_limit", "StepsLimit")), stopped(3)],
        ["status continuation: Agent stopped: steps_limit"],
    ),
    Case(
        "a stop has its trace if envelopes carry it",
        [],
        [
            started(),
            trace(
                1, 1, verdict("steps_limit", "StepsLimit"), {"criterion": "StepsLimit", "decision": "forbid"}
            ),
            stopped(2),
        ],
        ["status continuation: Agent stopped: steps_limit"],
    ),
    Case(
        "a trace that arrives after the end is kept too",
        [],
        [
            started(),
            stopped(2),
            trace(2, 1, verdict("steps_limit", "StepsLimit"), {"criterion": "StepsLimit"}),
        ],
        ["status continuation: Agent stopped: steps_limit"],
    ),
    Case(
        "a stop between two steps names its own rule",
        [],
        [started(), ended(2, 1), stopped(3, "user_requested")],
        ["status continuation: Agent stopped: user_requested"],
    ),
    Case(
        "a failure is an error that stays",
        [],
        [
            started(),
            ended(2, 1, verdict("error", "ErrorPolicyCriterion"), errors=1),
            status(
                3, "failed", stop_reason="error", step_count=1, error_message="It broke", reason="It broke"
            ),
        ],
        ["status error: It broke"],
    ),
    Case(
        "a failure without a message shows its stop reason",
        [],
        [started(), status(2, "failed", stop_reason="retry_limit", step_count=1, error_message="")],
        ["status error: Agent stopped: retry_limit"],
    ),
    Case(
        "an execution that was stopped continues in its next step",
        [QUESTION, STOPPED],
        [status(4, "in_progress", "stopped", step_count=1), step(4, 2), chunk(4, "The rest.")],
        [WHO, "assistant: Half.", "assistant: The rest."],
    ),
    Case(
        "an execution that stops and continues in another process is numbered on",
        [],
        [
            started(),
            stopped(2),
            *later(9, status(3, "in_progress", "stopped", step_count=1), chunk(3, "Rest.")),
        ],
        ["assistant: Rest."],
    ),
    Case(
        "an unknown status changes nothing but the number", [], [started(), status(2, "dreaming")], [THINKS]
    ),
]

APPROVALS = [
    Case(
        "a question shows which call waits",
        [],
        ASKS[:3],
        ["assistant:  [search, pay]", "status tool_call: Running search", ASKED],
    ),
    Case(
        "a pause waits for a person",
        [],
        ASKS,
        [
            "assistant:  [search, pay]",
            "status tool_call: Running search",
            ASKED,
            "status info: Waiting for a person",
        ],
    ),
    Case(
        "a question with arguments in full has a summary of them",
        [],
        [started(), asked(2, args={"amount": 7, "to": "bo"})],
        ["assistant:  [pay]", ASKED],
    ),
    Case(
        "a decision replaces the question until the call completes",
        [],
        [started(), asked(2), paused(3), decided(4)],
        ["assistant:  [pay]", "status info: pay: approved by ada", "status info: Waiting for a person"],
    ),
    Case(
        "an approved call runs and completes",
        [],
        [
            *[started(), asked(2), paused(3), decided(4), status(5, "in_progress", "paused")],
            *[tool(6, "c2", "pay"), done(7, "c2", "pay")],
        ],
        ["assistant:  [pay]", FOUND],
    ),
    Case(
        "an approved call that starts is running",
        [],
        [*[started(), asked(2), paused(3), decided(4, "edited")], *[started(5), tool(6, "c2", "pay")]],
        ["assistant:  [pay]", "status tool_call: Running pay"],
    ),
    Case(
        "a denial has its reason, and the call its result",
        [],
        [
            started(),
            asked(2),
            paused(3),
            decided(4, "denied", reason="too much"),
            done(5, "c2", "pay", "denied"),
        ],
        ["assistant:  [pay]", "tool error: denied", "status info: Waiting for a person"],
    ),
    Case(
        "a denial shows its reason",
        [],
        [started(), asked(2), decided(3, "denied", reason="too much")],
        ["assistant:  [pay]", "status info: pay: denied by ada: too much"],
    ),
    Case(
        "a run that is resumed after a denial that was not sent continues at once",
        [],
        [
            *[started(), asked(2), paused(3), status(6, "in_progress", "paused")],
            *[ended(7, 1), step(7, 2), chunk(7, "Then not.")],
        ],
        ["assistant:  [pay]", "assistant: Then not."],
    ),
    Case(
        "a run that is resumed after an approval that was not sent continues at once",
        [],
        [*[started(), asked(2), paused(3)], *[status(5, "in_progress", "paused"), tool(6, "c2", "pay")]],
        ["assistant:  [pay]", "status tool_call: Running pay"],
    ),
    Case(
        "a resume of another step is held: there was a run before it",
        [],
        [started(), asked(2), paused(3), status(8, "in_progress", "paused", step_count=1)],
        ["assistant:  [pay]", ASKED, "status info: Waiting for a person"],
    ),
    Case(
        "a decision about a question in the history leaves the session paused",
        [QUESTION, CALLING, RESULT, PENDING],
        [decided(5)],
        [
            *[WHO, "assistant: I look. [search, pay]", "tool: ok"],
            *["status info: pay: approved by ada"],
        ],
    ),
    Case(
        "a denial of a question in the history has its result at once",
        [QUESTION, CALLING, RESULT, PENDING],
        [decided(5, "denied"), done(6, "c2", "pay", "denied by ada")],
        [WHO, "assistant: I look. [search, pay]", "tool: ok", "tool error: denied by ada"],
    ),
    Case(
        "a call that waited in the history runs and completes",
        [QUESTION, CALLING, RESULT, PENDING],
        [decided(5), status(6, "in_progress", "paused"), tool(7, "c2", "pay"), done(8, "c2", "pay")],
        [WHO, "assistant: I look. [search, pay]", "tool: ok", FOUND],
    ),
    Case(
        "a call that waited continues before what was sent meanwhile",
        [QUESTION, CALLING, RESULT, PENDING, NEXT_QUESTION],
        [decided(5), done(6, "c2", "pay")],
        [WHO, "assistant: I look. [search, pay]", "tool: ok", FOUND, "user: And?"],
    ),
    Case(
        "a call whose process died is asked about",
        [],
        [started(), tool(2, "c2", "pay"), *later(1, asked(3), paused(4))],
        ["assistant:  [pay]", ASKED, "status info: Waiting for a person"],
    ),
    Case(
        "of two calls with one id the one that was asked about is decided",
        [QUESTION, CALLING, PENDING, SECOND_PENDING],
        [decided(5)],
        [
            *[WHO, "assistant: I look. [search, pay]", "status info: pay: approved by ada"],
            *[ASKED],
        ],
    ),
    Case(
        "a question about the run itself has a message of its own",
        [],
        [started(), asked(2, None), paused(3)],
        ["status tool_call: The run waits for approval", "status info: Waiting for a person"],
    ),
    Case(
        "a question with an empty call id is about the run itself",
        [],
        [started(), asked(2, "")],
        ["status tool_call: pay waits for approval", THINKS],
    ),
    Case(
        "a new question about the run itself replaces the one before",
        [],
        [started(), asked(2, None), asked(3, None, "q2", question="Continue?")],
        ["status tool_call: Continue?", THINKS],
    ),
    Case(
        "a decision about the run itself replaces it",
        [],
        [started(), asked(2, None), paused(3), decided(4, call_id=None), started(5)],
        ["status info: approved by ada", THINKS],
    ),
    Case(
        "a decision without a known question is shown with its call",
        [],
        [started(), decided(2, "", by=None)],
        ["assistant:  [pay]", "status info: pay: decided", THINKS],
    ),
    Case(
        "a decision about a call that has its result changes nothing",
        [],
        [started(), done(2, "c2", "pay"), decided(3)],
        ["assistant:  [pay]", FOUND, THINKS],
    ),
]


RUN_CASES = [*RUNS, *RETRIES, *ENDS, *APPROVALS]
