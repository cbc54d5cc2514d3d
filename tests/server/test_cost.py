"""The cost of a session over HTTP, and more money for one that a limit stopped."""

from __future__ import annotations

import pytest

from tests.server.support import Lab
from whyloop import Agent, Budget, CostLimit, Price, Usage, tool
from whyloop.stores import Store
from whyloop.testing import ScriptedModel, call, text

PRICE = Price(input=2, output=8)


@tool
def search() -> str:
    return "found"


def lab_with_limit(store: Store) -> Lab:
    replies = [
        call("search", {}, usage=PRICE.priced(Usage(2_000, 1_000))),
        text("There is tea.", usage=PRICE.priced(Usage(3_500, 1_000))),
    ]
    return Lab(store, Agent(ScriptedModel(replies), [search], criteria=[CostLimit(0.01)]))


@pytest.mark.parametrize("usd", [0.5, 1, "0.5"])
async def test_a_client_reads_the_cost_and_grants_more(store: Store, usd: float | str) -> None:
    lab = lab_with_limit(store)
    path = await lab.asked()
    shown = (await lab.get(path)).json["session"]
    assert (shown["status"], shown["stop_reason"], shown["cost"]) == ("stopped", "guard", "0.012")
    trace = (await lab.get(f"{path}/trace")).json
    assert trace["usage"]["cost"] == "0.012"
    assert trace["steps"][0]["usage"]["cost"] == "0.012"
    assert trace["next_actions"][0]["grant"] == {"usd": "1"}
    assert (await lab.post(f"{path}/resume", {"grant": {"usd": usd}})).status == 202
    await lab.rest()
    ended = (await lab.get(path)).json["session"]
    assert (ended["status"], ended["cost"]) == ("completed", "0.027")
    assert (await store.load("a")).execution.granted == Budget(usd=float(usd))
    (event, *_) = [
        event
        for event in (await lab.get(f"{path}/events")).json["events"]
        if event["event"] == "agent.step.completed"
    ]
    assert event["data"]["usage"]["cost"] == "0.012"
