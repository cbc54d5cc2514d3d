"""The clients of AG-UI have conversations with a real server, the oldest and the newest alike."""

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

each_version = pytest.mark.parametrize("package", ["ag-ui-0", "ag-ui-1"])


@pytest.fixture(scope="module")
def folder() -> Path:
    return install(Path(__file__).parent / "ag_ui")


def contents(seen: Seen, *roles: str) -> list[str]:
    return [each["content"] for each in seen["messages"] if each["role"] in roles and each.get("content")]


@each_version
async def test_a_conversation_is_remembered_and_loaded_again(folder: Path, package: str) -> None:
    steps = (["send", "a"], ["send", "b"], ["reload"], ["send", "c"])
    seen = await chat(folder, package, counting(), *steps)
    assert [each["errors"] for each in seen] == [[]] * 4
    assert [contents(each, "user", "assistant") for each in seen] == [
        ["a", "1"],
        ["a", "1", "b", "2"],
        ["a", "1", "b", "2"],
        ["a", "1", "b", "2", "c", "3"],
    ]


@each_version
async def test_a_stopped_run_is_not_an_error(folder: Path, package: str) -> None:
    app = AgentServer(MemoryStore(), agent_with(call("echo", {"value": "x"}), max_steps=1), public=True)
    (seen,) = await chat(folder, package, app, ["send", "Go"])
    assert (seen["errors"], contents(seen, "tool")) == ([], ["x"])


@pytest.mark.parametrize("reloads", [False, True])
@each_version
async def test_questions_are_answered_even_after_a_reload(folder: Path, package: str, reloads: bool) -> None:
    asked = calls(call("pay", {"amount": 5}, id="pay_1"), call("pay", {"amount": 7}, id="pay_2"))
    app = AgentServer(MemoryStore(), agent_with(asked, "Done."), public=True)
    steps: list[list[Any]] = [
        ["send", "Pay"],
        *([["reload"]] if reloads else []),
        ["decide", False, True],
        ["reload"],
    ]
    *before, decided, loaded = await chat(folder, package, app, *steps)
    assert [each["questions"] for each in (*before, decided)] == [*([2] * len(before)), 0]
    for seen in (decided, loaded):
        assert contents(seen, "tool") == ["denied by an unnamed person: because", "paid 7"]
        assert contents(seen, "assistant") == ["Done."]
        (asking,) = [each for each in seen["messages"] if each.get("toolCalls")]
        assert [each["function"]["arguments"] for each in asking["toolCalls"]] == [
            '{"amount":5}',
            '{"amount":7}',
        ]
        assert seen["errors"] == []


@each_version
async def test_a_client_that_comes_back_during_a_run_sees_all_of_it(folder: Path, package: str) -> None:
    _, seen = await chat(folder, package, Gate(), ["leave after", "Count", "One, "], ["return"])
    assert contents(seen, "user", "assistant") == ["Count", "One, two."]
    assert contents(seen, "reasoning") == ["Hm."]
    assert seen["errors"] == []
