"""Arguments, durations and limits in short, as the views of a run show them."""

from __future__ import annotations

import pytest

from tests.support import scripted
from whyloop import ContinuationDecision, ContinuationEvaluation, Verdict, tool
from whyloop.cli.formats import arguments_summary, long_span_text, span_text
from whyloop.cli.narration import Narrator, headroom_of
from whyloop.cli.renderer import Kind, Line
from whyloop.testing import call
from whyloop.values.decisions import decide
from whyloop.wire.view import read_back


def test_a_summary_has_the_first_three_arguments_and_says_that_there_are_more() -> None:
    shown = arguments_summary({"query": "dbplus", "types": ["program"]})
    assert shown == "query: 'dbplus', types: [\"program\"]"
    assert arguments_summary({"a": 1, "b": None, "c": True, "d": 4}) == "a: 1, b: null, c: true, …"


def test_a_long_argument_is_cut() -> None:
    assert arguments_summary({"query": "x" * 99}) == f"query: '{'x' * 29}…'"


def test_arguments_that_are_not_an_object_are_shown_as_they_came() -> None:
    assert arguments_summary('{"query": ') == '{"query":'


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (0.42, "420 ms"),
        (1.5, "1.5 s"),
        (119.0, "119 s"),
        (150.0, "2 min"),
        (7_300.0, "2 h"),
        (90_000.0, "25 h"),
        (3 * 86_400.0, "3 d"),
    ],
)
def test_a_span_of_time_comes_in_the_unit_that_suits_it(seconds: float, words: str) -> None:
    assert span_text(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (12.0, "12 s"),
        (150.0, "2.5 minutes"),
        (3_600.0, "1 hour"),
        (7_300.0, "2 hours"),
        (36 * 3_600.0, "1.5 days"),
        (90 * 86_400.0, "90 days"),
    ],
)
def test_in_a_sentence_the_unit_is_written_out(seconds: float, words: str) -> None:
    assert long_span_text(seconds) == words


def test_headroom_is_what_the_rules_report_and_nothing_else() -> None:
    evaluations = _evaluations(
        ("StepsLimit", {"used": 3, "limit": 20}),
        ("TokenUsageLimit", {"used": 1_598, "limit": 8_000}),
        ("ExecutionTimeLimit", {"used": 19.0, "limit": 30}),
        ("MyBudget", {"used": 5, "limit": 2}),
        ("Odd", {"used": "all", "limit": 2}),
        ("Silent", {}),
    )
    rooms = headroom_of(evaluations)
    assert [f"{room.label} {room}" for room in rooms] == [
        "steps 3 of 20",
        "tokens 1,598 of 8,000",
        "time 19.0 of 30 s",
        "MyBudget 5 of 2",
    ]
    assert [room.share for room in rooms] == [0.15, pytest.approx(0.19975), pytest.approx(19 / 30), 1.0]


def _evaluations(*reports: tuple[str, dict[str, object]]) -> list[ContinuationEvaluation]:
    allow = ContinuationDecision.ALLOW_CONTINUATION
    return [ContinuationEvaluation(name, allow, "", context) for name, context in reports]


async def test_a_denied_call_is_not_shown_as_a_failure() -> None:
    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        return "paid"

    agent = scripted(call("pay", {"amount": 5}), "Sorry.", tools=[pay])
    paused = await agent.run("Pay 5")
    (asked,) = paused.pending_calls
    denial = decide(paused, asked.id, Verdict.DENIED, "grace", paused.state_info.updated_at, "we are broke")
    narrator = Narrator()
    lines = [line for event in read_back(paused, denial) for line in narrator.lines(event)]
    (line,) = lines
    assert (line.kind, line.head, line.text) == (Kind.DECIDED, "pay", "denied by grace: we are broke")


async def test_empty_lines_before_an_answer_are_not_shown() -> None:
    narrator, agent = Narrator(), scripted("\n\n  Hello.\n\nBye.")
    lines: list[Line] = []
    agent.subscribe(lambda event: lines.extend(narrator.lines(event)))
    await agent.run("Hi")
    assert [line.text for line in lines if line.kind is Kind.ANSWER] == ["  Hello.\n\nBye."]
