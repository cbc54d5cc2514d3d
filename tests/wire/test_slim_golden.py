"""The slim snapshots of a fixed run, in files.

`python -m tests.wire.test_slim_golden` writes them anew, in the commit that changes the format.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.fixed_run import AGENT_ID, FOLDER, Recording, fixed_run, snapshot, stopped_run
from tests.support import assert_complete_history, scripted
from whyloop import AgentState, AgentStatus, SlimAgentStateSerializer, SlimSerializationConfig

CONFIGS = {
    "minimal": SlimSerializationConfig.minimal(),
    "standard": SlimSerializationConfig.standard(),
    "full": SlimSerializationConfig.full(),
}
each_preset = pytest.mark.parametrize("name", CONFIGS)


def file_of(name: str) -> Path:
    return FOLDER / f"slim_{name}_v1.json"


def golden(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file_of(name).read_text(encoding="utf-8"))
    return document


@each_preset
async def test_the_same_run_gives_the_same_snapshot_today(name: str) -> None:
    serializer = SlimAgentStateSerializer(CONFIGS[name])
    assert serializer.serialize(await stopped_run(Recording())) == golden(name)
    assert serializer.serialize(await fixed_run()) == golden(f"{name}_paused")


@each_preset
async def test_a_snapshot_of_version_1_can_be_read_and_run(name: str) -> None:
    state = SlimAgentStateSerializer().deserialize(golden(name))
    assert (state.agent_id, state.status, state.stop_reason) == (
        AGENT_ID,
        AgentStatus.STOPPED,
        "user_requested",
    )
    assert state.execution_started_at is None
    assert state.execution.active_seconds == 0.25
    assert state.state_info.cumulative_execution_seconds == 0.75
    assert_complete_history(state.messages)
    assert "closed for today" in state.explain()
    assert (await scripted("Yes.").run("Still there?", state=state)).last_response == "Yes."
    assert (await scripted("Done.").resume(state)).status is AgentStatus.COMPLETED


@each_preset
async def test_a_snapshot_of_a_paused_execution_can_be_read_and_run(name: str) -> None:
    document = golden(f"{name}_paused")
    state = SlimAgentStateSerializer().deserialize(document)
    assert (state.status, state.stop_reason) == (AgentStatus.PAUSED, None)
    assert_complete_history(state.messages)
    assert "pay waits for approval" in state.explain()
    assert (await scripted("Yes.").run("Still there?", state=state)).last_response == "Yes."
    assert document["truncated"].get("open_step", 0) == (name == "minimal")
    for pending in state.pending_calls:
        state = state.deny(pending.id, "no more", by="ada")
    assert (await scripted("Done.").resume(state)).status is AgentStatus.COMPLETED


async def test_nothing_is_lost_in_a_snapshot_of_everything() -> None:
    assert SlimAgentStateSerializer().deserialize(golden("full")) == await stopped_run(Recording())
    assert SlimAgentStateSerializer().deserialize(golden("full_paused")) == await fixed_run()


def test_a_full_snapshot_can_be_written_slim() -> None:
    state = AgentState.from_dict(snapshot())
    assert SlimAgentStateSerializer().serialize(state) == golden("standard_paused")


if __name__ == "__main__":
    runs = {"": asyncio.run(stopped_run(Recording())), "_paused": asyncio.run(fixed_run())}
    for preset, config in CONFIGS.items():
        for suffix, state in runs.items():
            written = json.dumps(
                SlimAgentStateSerializer(config).serialize(state), indent=1, ensure_ascii=False
            )
            file_of(preset + suffix).write_text(written + "\n", encoding="utf-8")
