"""A run in plain lines, for pipes, files and simple terminals."""

from __future__ import annotations

from whyloop.cli.demo_parts.narration import Kind, Line, Narrator
from whyloop.cli.demo_parts.scenario import Scenario
from whyloop.cli.demo_parts.words import safe
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
        self._lines += [_plain(line) for line in self._narrator.lines(event)]
        if isinstance(event, AgentStepCompleted) and self._narrator.headroom:
            used = ", ".join(f"{room.label} {room}" for room in self._narrator.headroom)
            self._lines.append(f"  used: {used}")

    def text(self, state: AgentState) -> str:
        """The whole run, ending with its explanation."""
        return "\n".join([*self._lines, "", safe(state.explain())])


def in_short(scenario: Scenario, state: AgentState) -> str:
    """The scenario in two lines: what it shows, and the verdict."""
    return f"{scenario.name}: {scenario.title}\n  {verdict(state)}\n"


def verdict(state: AgentState) -> str:
    """The first line of the explanation."""
    return safe(state.explain()).split("\n", 1)[0]


def _plain(line: Line) -> str:
    measure = f" ({line.measure})" if line.measure else ""
    match line.kind:
        case Kind.QUERY:
            return f"\nuser: {line.text}"
        case Kind.STEP:
            return f"\n{line.text}"
        case Kind.WAITED:
            return f"\n({line.text})"
        case Kind.SAID:
            return f"  assistant: {line.text}"
        case Kind.DONE:
            return f"  {line.head}({line.text}) ok{measure}"
        case Kind.FAILED:
            return f"  {line.head}({line.text}) failed{measure}" if measure else _words(line)
        case Kind.RESULT | Kind.ERROR:
            return f"    {line.text}"
        case Kind.POLICY | Kind.GO_ON | Kind.COMPLETE | Kind.STOP:
            return f"  {line.head}, {line.text}{measure}"


def _words(line: Line) -> str:
    return f"  {line.head}: {line.text}" if line.text else f"  {line.head}"
