"""The views of a run: live on a terminal, plain in a pipe, and as a picture."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st
from msgspec import structs
from rich.cells import cell_len
from rich.console import Console

from tests.support import echo
from whyloop import Agent, ModelRequest, ModelResponse, TextDelta
from whyloop.cli.demo import PlainView, draw_run, svg
from whyloop.cli.demo.scenarios import SCENARIOS, Query, Scenario, play
from whyloop.cli.drawing import LiveView, full_rows
from whyloop.cli.narration import Narrator
from whyloop.cli.renderer import Kind
from whyloop.errors import RateLimitError
from whyloop.events import AgentEvent
from whyloop.testing import FakeClock, ScriptedModel, call, text

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
    draw_run(console, scenario, lambda view: play(scenario, view), live=live)
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


async def test_slow_events_are_not_shown_as_a_wait_for_another_attempt() -> None:
    """Events of a session on another machine are some time apart, without any retry."""
    events: list[AgentEvent] = []
    agent = Agent(ScriptedModel([call("echo", {"value": "a"}), "done"]), [echo])
    await agent.run("Go", on_event=events.append)
    narrator, start = Narrator(), events[0].time
    late = [structs.replace(event, time=start + timedelta(seconds=n)) for n, event in enumerate(events)]
    kinds = [line.kind for event in late for line in narrator.lines(event)]
    assert Kind.STEP in kinds
    assert Kind.WAITED not in kinds


def test_a_wrong_answer_is_not_shown_as_a_failed_model_call() -> None:
    wrong = text('{"name": "search_entities", "arguments": {"query": "baltic"}}')
    scenario = replace(SCENARIOS["natural-end"], script=(wrong,))
    for shown in (drawn(scenario), plain(scenario)):
        assert re.search(r"wrong answer:?\s+the answer ", shown)
        assert "the model call failed" not in shown


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


def test_the_current_activity_is_shown_below_and_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
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
    view = LiveView(Console(file=file, force_terminal=True))

    def broken(_: object) -> None:
        raise KeyboardInterrupt

    def watched() -> None:
        with view:
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


# Answers that stream in


def streamed(pieces: Sequence[str], *, width: int = 40, height: int = 10) -> str:
    """Return what a live view has printed of an answer, without what it showed in between."""
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=None)

    class Talker:
        async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
            for piece in pieces:
                yield TextDelta(piece)
            yield ModelResponse("".join(pieces))

    with LiveView(console, hidden=(Kind.STEP, Kind.QUERY)) as view:
        Agent(Talker(), event_handler=view, clock=FakeClock()).run_sync("Hi")
    return file.getvalue()


def test_an_answer_that_is_longer_than_the_screen_is_printed_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = streamed([f"word{number} " for number in range(400)])
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown))
    printed = [line for line in lines if line.startswith(("    word", " ◆  word"))]
    assert " ".join(line.strip(" ◆") for line in printed).split() == [f"word{n}" for n in range(400)]
    assert sum(line.startswith(" ◆") for line in printed) == 1


def test_an_answer_that_streams_steers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = streamed(["so ", HOSTILE, "\r\x1b[H so on " * 30])
    assert "\x1b]0;" not in shown
    assert "\x1b[H" not in shown
    assert "\x07" not in shown


@given(st.text(st.sampled_from("ab 漢\n\u0301")), st.integers(10, 14), st.data())
def test_rows_do_not_depend_on_how_a_text_arrives(text: str, width: int, data: st.DataObject) -> None:
    whole, used = full_rows(text, width)
    assert all(cell_len(row) <= width for row in whole)
    assert "".join(whole).replace(" ", "") == re.sub(r"[ \n]", "", text[:used])
    assert cell_len(text[used:]) <= width
    cut = data.draw(st.integers(0, len(text)))
    first, start = full_rows(text[:cut], width)
    assert first + full_rows(text[start:], width)[0] == whole


def test_a_model_that_is_silent_is_seen_to_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    clock = FakeClock()
    start, file = clock.monotonic(), io.StringIO()
    console = Console(
        file=file,
        width=80,
        force_terminal=True,
        color_system=None,
        get_time=lambda: clock.monotonic() - start,
    )
    frames = []
    with LiveView(console, live=False) as view:
        for seconds in (0.0, 0.1, 2.8, 39.8):
            clock.advance(seconds)
            console.print(view._current())
            frames.append(file.getvalue().strip())
            file.truncate(file.seek(0))
    assert frames[0] != frames[1]
    assert [frame[3:] for frame in frames] == ["starting"] * 3 + ["starting  42 s"]
