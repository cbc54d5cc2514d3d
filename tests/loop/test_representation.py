"""How agents and states look at a prompt, in a notebook and in `help`."""

from __future__ import annotations

import inspect
import io
import re
from html.parser import HTMLParser

from rich.console import Console

from tests.support import scripted
from whyloop import Agent, AgentState, tool
from whyloop.errors import ToolExecutionError
from whyloop.testing import call
from whyloop.tools.toolset import Functions

HOSTILE = "<script>alert(1)</script> | **bold** &amp;"


@tool
async def search(query: str) -> str:
    """Search."""
    return query


@tool
async def fail() -> str:
    """Fail with a hostile text."""
    raise ToolExecutionError(HOSTILE)


async def test_an_agent_is_one_short_line() -> None:
    class Files(Functions):
        """Tools of another name."""

    assert (
        repr(scripted(tools=[search, fail], name="desk"))
        == "Agent('desk', ScriptedModel, tools=[search, fail])"
    )
    many = [tool(name=f"tool_{number}")(search.function) for number in range(9)]
    assert len(repr(scripted(tools=[*many, Files([])]))) < 100
    assert repr(scripted(tools=[Files([])])) == "Agent('agent', ScriptedModel, tools=[Files])"


async def test_a_state_is_one_short_line() -> None:
    assert repr(AgentState(agent_id="a")) == "AgentState('a', pending, 0 steps, 0 messages)"
    agent = scripted(call("search", {"query": "x" * 9000}), "y" * 9000, tools=[search])
    state = await agent.run("go", state=AgentState(agent_id="a"))
    assert repr(state) == "AgentState('a', completed, 2 steps, 4 messages)"
    stopped = await scripted(call("search", {"query": "x"}), tools=[search], max_steps=1).run("go")
    assert repr(stopped).endswith(", stopped (steps_limit), 1 step, 3 messages)")
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(stopped)
    assert len(console.export_text().splitlines()) < 10


class Tags(HTMLParser):
    """The tags of a page, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert attrs == []
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


async def test_a_notebook_shows_the_decision_of_each_rule_and_no_markup_of_others() -> None:
    state = await scripted(call("fail"), tools=[fail]).run("go")
    page = Tags(state._repr_html_())
    assert set(page.tags) <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    assert page.texts[1].startswith("Failed after 1 step (error).")
    for evaluation in state.outcome.evaluations:
        assert {evaluation.criterion, evaluation.decision.value} <= set(page.texts)
    assert any(HOSTILE in each for each in page.texts)
    assert state._repr_markdown_() == state.explanation.to_markdown()
    assert "<script>" not in re.sub(r"\\.", "", state._repr_markdown_())
    assert state.explanation._repr_html_() == state._repr_html_()
    assert Tags(AgentState()._repr_html_()).tags[:3] == ["div", "p", "strong"]


def test_help_explains_every_parameter_of_an_agent_and_its_default() -> None:
    text = inspect.getdoc(Agent) or ""
    entries = dict(re.findall(r"^    (\w+): ((?:.|\n {8})*)", text, re.MULTILINE))
    parameters = inspect.signature(Agent).parameters
    assert list(entries) == list(parameters)
    for name, parameter in parameters.items():
        has_default = parameter.default is not inspect.Parameter.empty
        assert ("Default: " in entries[name]) == has_default, name
