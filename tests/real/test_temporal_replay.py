"""Workflows are repeated from their histories, also those of other versions: sessions in flight continue."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("temporalio", reason='these tests need Temporal\'s SDK: pip install ".[temporal]"')

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from tests.real.temporal_scenarios import HISTORIES, SCENARIOS, VERSION, agents
from whyloop import Agent, __version__
from whyloop.stores import MemoryStore
from whyloop.temporal import WhyloopPlugin
from whyloop.testing import ScriptedModel

RECORDED = sorted(HISTORIES.glob("*/*.json"))


def test_the_histories_of_this_version_are_kept() -> None:
    assert __version__.startswith(f"{VERSION}."), "record the histories of this version too"
    assert {path.stem.rsplit("-", 1)[0] for path in RECORDED if path.parent.name == VERSION} == set(SCENARIOS)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_a_session_in_flight_continues_after_a_deployment(path: Path) -> None:
    plugin = WhyloopPlugin(MemoryStore(), agents())
    history = WorkflowHistory.from_json("recorded", path.read_text())
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)


async def test_an_agent_that_would_decide_otherwise_breaks_the_replay() -> None:
    """What the tests above would find: without its limit of time, this run sets no timer."""
    (path,) = [path for path in RECORDED if path.stem == "deadline-0"]
    other = Agent(ScriptedModel(["done"]), name="deadline", timeout=None)
    replayer = Replayer(workflows=[], plugins=[WhyloopPlugin(MemoryStore(), [other])])
    with pytest.raises(Exception, match=r"[Nn]ondeterminism"):
        await replayer.replay_workflow(WorkflowHistory.from_json("recorded", path.read_text()))
