"""A scenario's run for machines."""

from __future__ import annotations

from typing import Any

from whyloop.cli.demo_parts.scenario import Scenario
from whyloop.values.state import AgentState
from whyloop.wire.document import document


def trace(scenario: Scenario, state: AgentState) -> dict[str, Any]:
    """Everything that was decided and why, as plain data; the same on every run."""
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "settings": scenario.settings,
        "queries": [query.text for query in scenario.queries],
        **document(state),
    }
