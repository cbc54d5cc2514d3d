"""What a person sees of a run: live on a terminal, plain in a pipe, and as a picture."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console

from whyloop.cli.demo import PlainView
from whyloop.cli.demo.scenarios import SCENARIOS, Query, Scenario, play
from whyloop.cli.drawing import LiveView, svg
from whyloop.errors import RateLimitError
from whyloop.testing import call, text

ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*[349][0-7](?:;\d+)*m")
HOSTILE = f"[bold red]{ESCAPE}]0;owned\x07{ESCAPE}[2J[/nope]"


def plain(scenario: Scenario) -> str:
    view = PlainView(scenario)
    return view.text(play(scenario, view))


def drawn(scenario: Scenario, *, width: int = 100, live: bool = False, colour: bool = False) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        height=40,
        force_terminal=live or colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with LiveView(console, live=live) as view:
        view.open(scenario)
        view.close(play(scenario, view))
    return file.getvalue()


@pytest.mark.parametrize("name", SCENARIOS)
def test_plain_lines_carry_no_codes_and_end_with_the_explanation(name: str) -> None:
    shown = plain(SCENARIOS[name])
    assert ESCAPE not in shown
    assert shown.endswith(play(SCENARIOS[name]).explain())


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_drawing_stays_within_the_terminal(name: str, width: int) -> None:
    lines = drawn(SCENARIOS[name], width=width).splitlines()
    assert max(cell_len(line) for line in lines) == width


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_drawing_says_all_that_the_rules_said(name: str) -> None:
    outcome = play(SCENARIOS[name]).last_continuation_outcome
    assert outcome is not None
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", drawn(SCENARIOS[name], width=400)).split())
    for said in outcome.evaluations:
        assert f"{said.decision} {said.criterion} {said.reason}" in shown


def test_each_step_shows_its_tool_its_result_its_cost_and_its_decision() -> None:
    shown = drawn(SCENARIOS["steps-limit"])
    assert re.search(r"✓  search_entities  query: 'baltic', kind: 'partner' +420 ms", shown)
    assert re.search(r"→  continue  ToolCallPresenceCheck: The results of 1 .* 440 tokens · 1\.4 s", shown)
    assert re.search(
        r"■  stop \(steps_limit\)  StepsLimit: Limit reached: 3 of 3 steps used +626 tokens · 1\.4 s", shown
    )
    assert "steps   ━━━━━━━━━━━━━━━━━━━━  3 of 3" in shown
    assert "tokens  ━━━━────────────────  1,598 of 8,000" in shown


def test_a_retry_is_shown_even_if_another_rule_decides() -> None:
    assert "retry  ErrorPolicyCriterion: Tool error, retrying (1/2)" in drawn(SCENARIOS["tool-retry"])


def test_a_failed_model_call_and_the_wait_after_it_are_shown() -> None:
    for shown in (drawn(SCENARIOS["rate-limit"]), plain(SCENARIOS["rate-limit"])):
        assert re.search(r"the model call failed:?\s+429: too many requests", shown)
        assert "waited 20 s before the next attempt" in shown


def test_an_answer_that_was_cut_off_is_shown() -> None:
    assert "  assistant: Now I enter Polar (cut off)\n" in plain(SCENARIOS["stop-request"])
    assert "Now I enter Polar  cut off" in drawn(SCENARIOS["stop-request"])


def test_a_question_a_pause_and_a_decision_are_shown() -> None:
    shown = plain(SCENARIOS["approval"])
    assert (
        "  delete_program_lead(lead_id: 'lead-2'), waits for a person\n"
        "  pause, ApprovalRequired: delete_program_lead waits for approval\n"
        "\n(2 hours later)\n"
        "  delete_program_lead, approved by Kim\n"
        "  delete_program_lead(lead_id: 'lead-2') ok (350 ms)\n"
    ) in shown


def test_the_days_between_two_queries_are_shown() -> None:
    assert "3 days later" in drawn(SCENARIOS["three-days"])


@pytest.mark.parametrize("show", [plain, drawn])
def test_text_from_a_model_or_a_tool_steers_nothing(show: object) -> None:
    assert callable(show)
    shown = show(
        replace(
            SCENARIOS["natural-end"],
            queries=(Query(f"query {HOSTILE}"),),
            script=(
                call("search_entities", {"query": HOSTILE}, text=f"said {HOSTILE}"),
                call(HOSTILE, {HOSTILE: HOSTILE}),
            ),
        )
    )
    assert ESCAPE not in shown
    assert "\x07" not in shown
    assert "said [bold red]�]0;owned" in shown


def test_a_hostile_error_of_the_provider_steers_nothing() -> None:
    scenario = replace(SCENARIOS["natural-end"], script=(RateLimitError(HOSTILE),))
    for shown in (plain(scenario), drawn(scenario)):
        assert "the model call failed" in shown
        assert ESCAPE not in shown


def test_no_color_removes_the_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert COLOUR.search(drawn(SCENARIOS["guard"], colour=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(drawn(SCENARIOS["guard"], colour=True))


def test_what_happens_now_is_shown_below_and_taken_away_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = drawn(SCENARIOS["natural-end"], live=True)
    assert "the model answers" in shown
    after_the_end = shown.rpartition("Completed after 3 steps")[2]
    assert after_the_end
    assert "the model answers" not in after_the_end
    assert shown.count(f"{ESCAPE}[?25l") == shown.count(f"{ESCAPE}[?25h") == 1


def test_the_cursor_comes_back_when_a_run_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file = io.StringIO()
    view = LiveView(Console(file=file, force_terminal=True), live=True)

    def broken(_: object) -> None:
        raise KeyboardInterrupt

    def watched() -> None:
        with view:
            view.open(SCENARIOS["guard"])
            play(SCENARIOS["guard"], broken)

    with pytest.raises(KeyboardInterrupt):
        watched()
    assert file.getvalue().rfind(f"{ESCAPE}[?25h") > file.getvalue().rfind(f"{ESCAPE}[?25l")


def test_an_empty_answer_is_shown_as_no_line() -> None:
    shown = plain(replace(SCENARIOS["natural-end"], script=(text(""),)))
    assert "assistant:" not in shown


def test_the_picture_is_well_formed_titled_and_fetches_nothing() -> None:
    picture = svg(SCENARIOS["steps-limit"])
    ElementTree.fromstring(picture)
    assert "whyloop&#160;demo&#160;steps-limit" in picture
    assert re.findall(r"https?://[^\s\"']+", picture) == ["http://www.w3.org/2000/svg"]
    assert "@font-face" not in picture
    assert re.findall(r"url\((?!#)", picture) == []


def test_the_picture_is_the_same_each_time_and_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = svg(SCENARIOS["guard"])
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    assert svg(SCENARIOS["guard"]) == picture
    assert "fill: #d0b344" in picture
