"""The cost of a run in lists, sessions, runs and explanations."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.shop import asked, loaded, run, search
from whyloop import Agent, CostLimit, Price, Usage
from whyloop.testing import ScriptedModel, call, text

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]
HERE = "tests.cli.test_cost"
PRICE = Price(input=2, output=8)


def spending(limit: float = 1.0) -> Agent:
    """Searches, and answers; it costs 1.2 and 1.5 cents."""
    replies = [
        call("search", {"query": "tea"}, usage=PRICE.priced(Usage(2_000, 1_000))),
        text("There is tea.", usage=PRICE.priced(Usage(3_500, 1_000))),
    ]
    return Agent(ScriptedModel(replies), [search], criteria=[CostLimit(limit)])


def thrifty() -> Agent:
    return spending(0.01)


def partly_priced() -> Agent:
    replies = [
        call("search", {"query": "tea"}, usage=PRICE.priced(Usage(2_000, 1_000))),
        text("Tea.", usage=9),
    ]
    return Agent(ScriptedModel(replies), [search])


def test_a_run_shows_the_cost_of_each_step_and_of_all(capsys: Capsys) -> None:
    err = run(capsys, "run", "Tea?", "--agent", f"{HERE}:spending")[2]
    assert "  continue, ToolCallPresenceCheck: The results of 1 tool call await the model" in err
    assert "(3,000 tokens · $0.012 · " in err
    assert "\nSteps, cost $0.027\n" in err
    assert re.search(r"2  answered  \[4,500 tokens, \$0\.015, ", err)
    assert "CostLimit              $0.027 of $1.00 used" in err


def test_a_session_shows_its_cost(capsys: Capsys) -> None:
    agent_id = asked(spending(), "Tea?")
    shown = run(capsys, "show", agent_id)[1]
    assert re.search(r"^steps +2, 7,500 tokens, \$0\.027$", shown, re.MULTILINE)
    assert json.loads(run(capsys, "show", agent_id, "--json")[1])["usage"]["cost"] == "0.027"
    listed = run(capsys, "sessions")[1].splitlines()
    assert listed[0].index("COST") == listed[1].index("$0.027")
    (summary,) = json.loads(run(capsys, "sessions", "--json")[1])["sessions"]
    assert summary["cost"] == "0.027"


def test_events_show_the_cost_of_a_step(capsys: Capsys) -> None:
    agent_id = asked(spending(), "Tea?")
    shown = run(capsys, "watch", agent_id, "--so-far")[1]
    assert "4,500 tokens" in shown
    assert "$0.015" in shown
    events = [
        json.loads(line) for line in run(capsys, "watch", agent_id, "--so-far", "--json")[1].splitlines()
    ]
    steps = [event["data"]["usage"] for event in events if event["event"] == "agent.step.completed"]
    assert [usage["cost"] for usage in steps] == ["0.012", "0.015"]


def test_an_unknown_part_is_not_hidden(capsys: Capsys) -> None:
    agent_id = asked(partly_priced(), "Tea?")
    assert "Steps, cost unknown, at least $0.012" in run(capsys, "why", agent_id)[1]
    explained = json.loads(run(capsys, "why", agent_id, "--json")[1])["explanation"]
    assert (explained["cost"], explained["known_cost"]) == (None, "0.012")
    assert [step["cost"] for step in explained["steps"]] == ["0.012", None]
    assert "Steps, cost $0.012\n" in run(capsys, "why", agent_id, "--step", "1")[1]
    assert "\nSteps\n" in run(capsys, "why", agent_id, "--step", "2")[1]
    markdown = run(capsys, "why", agent_id, "--markdown")[1]
    assert r"| step | what it did | tokens | cost | time | then | decided by |" in markdown
    assert r"| 3,000 | \$0.012 |" in markdown
    assert r"Cost unknown, at least \$0.012." in markdown


def test_more_money_is_granted_from_the_shell(capsys: Capsys) -> None:
    code, _, err = run(capsys, "run", "Tea?", "--agent", f"{HERE}:thrifty", "--store", "whyloop.db")
    agent_id = err.split()[1]
    assert code != 0
    assert "CostLimit decided: Limit reached: $0.012 of $0.01 used." in err
    assert re.search(r"Grant more money: whyloop resume \S+ .*--grant-usd 1\b", err)
    more = run(capsys, "resume", agent_id, "--agent", f"{HERE}:answering", "--grant-usd", "0.5")
    assert more[:2] == (0, "There is tea.\n")
    assert str(loaded(agent_id).execution.granted) == "Budget(usd=0.5)"


def answering() -> Agent:
    reply = text("There is tea.", usage=PRICE.priced(Usage(3_500, 1_000)))
    return Agent(ScriptedModel([reply]), [search], criteria=[CostLimit(0.01)])
