"""The name of an agent that the command line builds or finds: it never continues the sessions of another."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from whyloop.cli.agents import agent_of, find_agent, find_agents

MODULE = """
from whyloop import Agent
from whyloop.testing import ScriptedModel

unnamed, named = Agent(ScriptedModel([])), Agent(ScriptedModel([]), name="desk")
team = {"sales": Agent(ScriptedModel([])), "desk": named}
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"agents_{request.node.name}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_without_a_name_it_is_named_after_its_path(module: str) -> None:
    assert find_agent(f"{module}:unnamed").name == f"{module}:unnamed"
    assert list(find_agents(f"{module}:unnamed")) == [f"{module}:unnamed"]


def test_its_sessions_are_recorded_under_that_name(module: str) -> None:
    assert find_agent(f"{module}:unnamed").start("Hi").agent == f"{module}:unnamed"


def test_its_own_name_stays(module: str) -> None:
    assert find_agent(f"{module}:named").name == "desk"
    assert list(find_agents(f"{module}:named")) == ["desk"]


def test_in_a_dict_it_is_named_after_its_key(module: str) -> None:
    agents = find_agents(f"{module}:team")
    assert {key: agent.name for key, agent in agents.items()} == {"sales": "sales", "desk": "desk"}


def test_a_model_of_the_command_line_is_not_the_agent_of_a_program(module: str) -> None:
    options = {"agent": None, "model": "ollama:qwen3", "base_url": None, "timeout": None, "max_steps": None}
    given: dict[str, object] = {
        **options,
        "tools": [],
        "instructions": None,
        "max_tokens": None,
        "error_policy": None,
    }
    assert agent_of(argparse.Namespace(**given)).name == "cli"
