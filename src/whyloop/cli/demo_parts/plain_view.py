"""A run in plain lines, for pipes, files and simple terminals."""

from __future__ import annotations

from whyloop.cli.demo_parts.narration import Narrator
from whyloop.cli.demo_parts.scenario import Scenario
from whyloop.events import AgentEvent, AgentStepCompleted
from whyloop.values.state import AgentState


class PlainView:
    """Collects the lines of a run. An event handler writes to no pipe: it could not say that it broke."""

    def __init__(self, scenario: Scenario, hint: str = "") -> None:
        self._narrator = Narrator()
        self._lines = [f"whyloop demo {scenario.name}: {scenario.title}", scenario.shows]
        if scenario.settings:
            self._lines.append(f"Settings: {scenario.settings}")
        if hint:
            self._lines.append(hint)

    def __call__(self, event: AgentEvent) -> None:
        self._lines += [line.plain() for line in self._narrator.lines(event)]
        if isinstance(event, AgentStepCompleted) and self._narrator.headroom:
            used = ", ".join(f"{room.label} {room}" for room in self._narrator.headroom)
            self._lines.append(f"  used: {used}")

    def text(self, state: AgentState) -> str:
        """The whole run, ending with its explanation."""
        return "\n".join([*self._lines, "", state.explain()])


def in_short(scenario: Scenario, state: AgentState) -> str:
    """The scenario in two lines: what it shows, and how it ended."""
    return f"{scenario.name}: {scenario.title}\n  {state.explanation.headline}\n"
