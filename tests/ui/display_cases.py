"""The vectors of the functions that display messages and replace them by the history."""

from __future__ import annotations

from typing import Any

from tests.ui.envelopes import (
    CALLING,
    COMPLETED,
    CONTINUES,
    ERROR,
    LOST,
    PAUSE,
    PENDING,
    QUESTION,
    RESULT,
    RUNNING,
    THEN,
    calls,
    loaded,
    message,
    of_step,
    verdict,
)
from whyloop import StopReason

DISPLAY: dict[str, list[tuple[str, list[Any]]]] = {
    "reconcile": [
        (
            "the history takes the place of what was streamed",
            [
                [message("local", "user", "Who?"), {**COMPLETED, "content": "Al"}, RUNNING],
                [QUESTION, COMPLETED],
            ],
        ),
        ("a message that the history does not have is gone", [[CALLING, RESULT], [QUESTION]]),
        ("statuses are dropped", [[QUESTION, RUNNING, PENDING], [QUESTION]]),
        (
            "the status of a run in progress in the history takes the place of what was streamed",
            [[QUESTION, {**COMPLETED, "content": "Al"}, RUNNING], [QUESTION, loaded(3)]],
        ),
        (
            "an error and a question of the client's own stay after the status of a run in progress",
            [[QUESTION, RUNNING, LOST, message("local", "user", "And?")], [QUESTION, loaded(3)]],
        ),
        ("the status that was loaded goes at the end", [[QUESTION, loaded(3), LOST], [QUESTION, COMPLETED]]),
        ("a status of the history stays", [[], [QUESTION, CALLING, RESULT, PENDING]]),
        (
            "an error that the history has is there once",
            [[QUESTION, {**ERROR, "content": "streamed"}], [QUESTION, ERROR]],
        ),
        (
            "an error that was streamed is gone if the history does not have it",
            [
                [
                    QUESTION,
                    {**ERROR, "id": "e9:1:error", "metadata": {**ERROR["metadata"], "execution_id": "e9"}},
                ],
                [QUESTION, CALLING],
            ],
        ),
        (
            "an error of the client's own stays after what it came after",
            [[QUESTION, LOST, CALLING], [QUESTION, CALLING]],
        ),
        (
            "an error after a result is found by its tool_call_id",
            [[{**RESULT, "id": "other"}, LOST], [CALLING, RESULT, THEN]],
        ),
        (
            "an error after nothing that is known stays at the end",
            [[message("local", "user", "?"), LOST], [QUESTION, CALLING]],
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
        ("a question", [message("1", "user", "Hello")]),
        ("an answer", [message("1", "assistant", "Hello")]),
        ("an answer that is JSON, without tool calls, is an answer", [message("1", "assistant", '{"a": 1}')]),
        ("an empty answer has no bubble", [message("1", "assistant")]),
        ("white space has no bubble", [message("1", "assistant", " \n\t\u00a0\u0085\u2028\ufeff\u001f")]),
        ("an error", [ERROR]),
        ("a status without text", [{**RUNNING, "content": ""}]),
        ("a result is shown under its call", [RESULT]),
        *(
            (f"beside tool calls: {name}", [message("1", "assistant", text, tool_calls=calls("search"))])
            for name, text in {
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
        ("the status of a run", [RUNNING]),
        ("the status of a run, from the history", [loaded(3)]),
        ("a call that waits", [PENDING]),
        ("an error stays", [ERROR]),
        ("an answer stays", [CALLING]),
        ("a status without a type", [message("1", "status", "x")]),
    ],
    "is_running": [
        ("nothing", [[]]),
        ("a history", [[QUESTION, COMPLETED]]),
        ("a run in progress", [[QUESTION, RUNNING]]),
        ("one that is in progress in the history", [[QUESTION, loaded(3)]]),
        ("a question with the number of its history", [[message("q", "status", **of_step(1), seq=3)]]),
        ("one that waits for a person", [[QUESTION, CALLING, RESULT, PENDING]]),
        ("one that has not begun", [[QUESTION]]),
    ],
    "group": [
        ("nothing", [[]]),
        ("messages without calls are on their own", [[QUESTION, COMPLETED, RUNNING]]),
        ("results are under their calls, in call order", [[QUESTION, CALLING, PENDING, RESULT]]),
        ("a call without a result has none yet", [[CALLING]]),
        ("a result without a call is on its own", [[RESULT]]),
        (
            "a call id that comes again belongs to the latest call",
            [[CALLING, RESULT, {**CALLING, "id": "2"}, {**RESULT, "id": "3"}]],
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
            [[CALLING, {**ERROR, "metadata": {**ERROR["metadata"], "tool_call_id": "c1"}}]],
        ),
    ],
    "reveal": [
        ("plain text", ["pay EUR 2.50 to Ann\n\tnow"]),
        ("letters of other scripts", ["Привет, Ωμέγα, Բարեւ, שלום, 日本, é"]),
        ("a text that is written backwards", ["pay \u202e05.2 RUE\u202c"]),
        ("isolates and marks of direction", ["a\u2066b\u2067c\u2068d\u2069e\u200ef\u200fg\u061ch"]),
        ("characters of no width", ["p\u200ba\u200cy\u200d \u2060all\ufeff"]),
        ("a soft hyphen in a Cyrillic word", ["при\u00adвет"]),
        ("control characters", ["a\x00b\x1b[31mc\r\x7fd\u0085"]),
        ("line and paragraph separators", ["a\u2028b\u2029c"]),
        ("letters without a shape", ["a\u3164b\u115fc\u2800d\uffa0e"]),
        ("tags, which only programs read", ["ok\U000e0070\U000e0061\U000e007f"]),
        ("selectors of variants, but not that of emoji", ["a\ufe00 \u2764\ufe0f"]),
        ("an emoji of several", ["\U0001f468\u200d\U0001f469"]),
        ("Latin and Cyrillic letters", ["p\u0430ypal.com and paypal.com"]),
        ("Latin and Greek letters", ["pay to \u0391nn, \u03bfrder 7"]),
        ("Latin and Armenian letters", ["\u0570ello"]),
        ("three scripts", ["a\u0430\u03b1"]),
        ("words with a hyphen or a digit are several", ["web-сервер, A4-бумага, user_имя, 5кг"]),
        ("a word with an accent of its own", ["cafe\u0301 p\u0430\u0301y"]),
        ("wide letters", ["\uff50\u0430y"]),
        ("a word in two halves", ["p\u200b\u0430ypal"]),
        ("a text that shows all already", ["pay \\u202e05 to p\u0430ypal⟦mixes Latin and Cyrillic⟧"]),
        ("a mark that is not whole", ["p\u0430ypal⟦mixes Latin⟧"]),
        ("nothing", [""]),
    ],
    "escape_invisible": [
        ("JSON", ['{"text": "pay \u202e05.2 RUE\u202c", "to": "p\u0430ypal\U000e0041"}']),
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
        ("text that is not an object", ['{"query": "' + "y" * 40]),
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
        ("text that is not what it seems", [{"memo": "pay \u202e05.2 RUE\u202c", "to": ["p\u0430ypal"]}]),
        ("names of properties", [{"constructor": "a", "toString": [], "hasOwnProperty": {}}]),
    ],
    "status_text": [
        ("pending", [{"status": "pending", "stop_reason": None}]),
        ("in progress", [{"status": "in_progress", "stop_reason": None}]),
        ("paused", [{"status": "paused", "stop_reason": None}]),
        ("completed", [{"status": "completed", "stop_reason": "completed"}]),
        (
            "failed with a message",
            [{"status": "failed", "stop_reason": "error", "error_message": "It broke"}],
        ),
        (
            "failed without a message",
            [{"status": "failed", "stop_reason": "retry_limit", "error_message": None}],
        ),
        ("nothing", [{}]),
        ("a continuation that continues", [CONTINUES]),
        (
            "a continuation that waits",
            [PAUSE],
        ),
        *((f"stopped by {reason}", [verdict(reason.value, "Rule")]) for reason in StopReason),
    ],
}
