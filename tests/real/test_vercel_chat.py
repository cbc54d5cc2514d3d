"""The AI SDK's own chat has conversations with a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.chats import Gate, Seen, chat, counting
from tests.real.node_packages import install
from tests.server.support import agent_with
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore
from whyloop.testing import call, calls

pytestmark = pytest.mark.slow

each_version = pytest.mark.parametrize("version", ["ai-5", "ai-6", "ai-7"])


@pytest.fixture(scope="module")
def folder() -> Path:
    return install(Path(__file__).parent / "vercel")


def texts(seen: Seen, kind: str = "text") -> list[str]:
    return [part["text"] for each in seen["messages"] for part in each["parts"] if part["type"] == kind]


@each_version
async def test_a_conversation_is_remembered_and_loaded_again(folder: Path, version: str) -> None:
    seen = await chat(folder, version, counting(), ["send", "a"], ["send", "b"], ["reload"], ["send", "c"])
    assert [texts(each) for each in seen] == [
        ["a", "1"],
        ["a", "1", "b", "2"],
        ["a", "1", "b", "2"],
        ["a", "1", "b", "2", "c", "3"],
    ]
    assert [each["errors"] for each in seen] == [[]] * 4
    first, loaded = seen[1]["messages"], seen[2]["messages"]
    assert [without_ids(each) for each in loaded] == [without_ids(each) for each in first]


def without_ids(message: Seen) -> Seen:
    """A message without what the client chose, and what one version adds to parts and another does not."""
    parts = [{name: value for name, value in part.items() if name != "id"} for part in message["parts"]]
    return {"role": message["role"], "parts": parts, "metadata": message.get("metadata")}


@pytest.mark.parametrize("reloads", [False, True])
@pytest.mark.parametrize("version", ["ai-6", "ai-7"])
async def test_questions_are_answered_even_after_a_reload(folder: Path, version: str, reloads: bool) -> None:
    asked = calls(call("pay", {"amount": 5}, id="pay_1"), call("pay", {"amount": 7}, id="pay_2"))
    app = AgentServer(MemoryStore(), agent_with(asked, "Done."), public=True)
    steps: list[list[Any]] = [
        ["send", "Pay"],
        *([["reload"]] if reloads else []),
        ["decide", False, True],
        ["reload"],
    ]
    *_, decided, loaded = await chat(folder, version, app, *steps)
    for seen in (decided, loaded):
        tools = [part for part in seen["messages"][-1]["parts"] if part["type"] == "tool-pay"]
        assert [(part["state"], part["input"]["amount"]) for part in tools] == [
            ("output-denied", 5),
            ("output-available", 7),
        ]
        assert tools[1]["output"] == "paid 7"
        assert texts(seen) == ["Pay", "Done."]
        assert seen["errors"] == []


async def test_version_5_which_knows_no_approvals_gets_a_question_that_it_can_read(folder: Path) -> None:
    app = AgentServer(MemoryStore(), agent_with(call("pay", {"amount": 5}, id="pay_1"), "Done."), public=True)
    asked, loaded = await chat(folder, "ai-5", app, ["send", "Pay"], ["reload"])
    for seen in (asked, loaded):
        parts = {part["type"]: part for part in seen["messages"][-1]["parts"]}
        assert parts["tool-pay"]["state"] == "input-available"
        assert parts["data-whyloop-question"]["data"]["toolCallId"] == "pay_1"
        assert seen["errors"] == []


@each_version
async def test_a_client_that_comes_back_during_a_run_sees_all_of_it(folder: Path, version: str) -> None:
    left, returned = await chat(folder, version, Gate(), ["leave after", "Count", "One, "], ["return"])
    assert texts(left) == ["Count", "One, "]
    assert texts(returned) == ["Count", "One, two."]
    assert texts(returned, "reasoning") == ["Hm."]
    assert returned["errors"] == []
