"""Stop a run for a person, store it as JSON, and resume it in a second process."""

import json
import tempfile
from pathlib import Path

from whyloop import Agent, AgentState, tool
from whyloop.testing import FakeClock, ScriptedModel, call, text

clock = FakeClock()


@tool
def draft_contract(partner: str) -> str:
    """Draft a contract for a partner."""
    clock.advance(5)
    agent.request_stop("The draft waits for Ann's approval")
    return f"draft for {partner}"


@tool
def send_contract(partner: str) -> str:
    """Send the approved contract."""
    clock.advance(3)
    return f"sent to {partner}"


def build(script: ScriptedModel) -> Agent:
    return Agent(script, tools=[draft_contract, send_contract], cumulative_timeout=60, clock=clock)


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "session.json")

    # The first process runs until the draft is ready, and stores the session.
    agent = build(ScriptedModel([call("draft_contract", {"partner": "dbplus"})]))
    state = agent.run_sync("Send dbplus a contract")
    file.write_text(json.dumps(state.to_dict()))
    print(state.explanation.headline)

    clock.advance(3600)  # Ann has lunch, then approves.

    # The second process only has the file.
    restored = AgentState.from_dict(json.loads(file.read_text()))
    agent = build(ScriptedModel([call("send_contract", {"partner": "dbplus"}), text("The contract is out.")]))
    state = agent.resume_sync(restored)

print(state.explain())
times = state.execution
print()
print(f"worked {times.active_seconds:g} s, waited for a person {times.waiting_seconds:g} s")
