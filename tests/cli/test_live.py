"""`whyloop run`, `resume` and `watch` on a terminal: something moves, and everything is in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shop import HERE, asked, greeting, in_store, paying
from tests.cli.terminal import CTRL_C, terminal
from whyloop import Session
from whyloop.stores import Store

pytestmark = pytest.mark.usefixtures("in_the_shop")

# Says nothing until the test has seen that something moves.
SILENT = """
import asyncio, pathlib
from whyloop import Agent, ModelResponse, TextDelta

class Silent:
    async def respond(self, request):
        while not pathlib.Path("seen").exists():
            await asyncio.sleep(0.02)
        yield TextDelta("At last")
        yield TextDelta(".")
        yield ModelResponse("At last.")

agent = Agent(Silent())
"""


def test_a_run_moves_while_the_model_is_silent_and_ends_with_the_explanation(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(SILENT, encoding="utf-8")
    with terminal("run", "Hi", "--agent", "silent:agent") as shown:
        shown.read_until("⠋  the model answers")
        shown.read_until("⠴  the model answers")
        Path("seen").touch()
        end = shown.read_to_the_end()
    assert " ◆  At last." in end
    assert "stop (completed)  ToolCallPresenceCheck: The model answered and asked for no tools" in end
    assert "Completed after 1 step." in end
    assert "▶   stop       ToolCallPresenceCheck" in end
    assert shown.running.returncode == 0


def test_ctrl_c_stops_a_run_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(SILENT, encoding="utf-8")
    with terminal("run", "Hi", "--agent", "silent:agent") as shown:
        shown.read_until("the model answers")
        shown.type(CTRL_C)
        end = shown.read_to_the_end()
    assert "stopping; running tool calls may finish" in end
    assert "Stopped after 1 step (user_requested)." in end
    assert shown.running.returncode == 17
    assert shown.shown.count("\x1b[?25l") == shown.shown.count("\x1b[?25h")


def test_a_resumed_run_is_drawn_with_what_can_be_done_now() -> None:
    agent_id = asked(paying())
    with terminal("resume", agent_id, "--agent", f"{HERE}:after_paying") as shown:
        end = shown.read_to_the_end()
    assert shown.running.returncode == 18
    assert "╭─ Paused" in end
    assert f"whyloop approve {agent_id}" in end


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_quiet_and_json_draw_nothing(option: str) -> None:
    with terminal("run", "Hi", "--agent", f"{HERE}:greeting", option) as shown:
        shown.read_to_the_end()
    assert "\x1b[?25l" not in shown.shown
    assert "Hello there." in shown.text


def test_watch_draws_the_session_so_far_and_then_what_happens(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(SILENT, encoding="utf-8")
    agent_id = asked(greeting(), "Is anybody there?")
    with terminal("watch", agent_id) as watching:
        # The run starts after that: one that is quicker than the command would leave nothing to wait for.
        before = watching.read_until("waiting for events; Ctrl-C ends")
        assert "❯  Is anybody there?" in before
        assert "◆  Hello there." in before
        with terminal("run", "Speak", "--agent", "silent:agent", "--session", agent_id) as running:
            assert "❯  Speak" in watching.read_until("the model answers")
            Path("seen").touch()
            assert "◆  At last." in watching.read_until("waiting for events")
            running.read_to_the_end()
        watching.type(CTRL_C)
        watching.read_to_the_end()
    assert watching.running.returncode in (130, -2)
    assert watching.shown.count("\x1b[?25l") == watching.shown.count("\x1b[?25h")


def test_watch_draws_only_what_came_so_far_and_ends() -> None:
    agent_id = asked(paying())
    with terminal("watch", agent_id, "--so-far") as watching:
        end = watching.read_to_the_end()
    assert "?  pay(amount: 500, to: 'Bob')  waits for a person" in end
    assert watching.running.returncode == 0
    with terminal("watch", agent_id, "--so-far", "--after", "0") as watching:
        assert "search  query: 'invoices'" in watching.read_to_the_end()


def test_watch_of_a_new_session_waits_for_its_first_question() -> None:
    async def make(store: Store) -> None:
        await Session.open(store, greeting(), "new", create=True)

    in_store(make)
    with (
        terminal("watch", "new") as watching,
        terminal("run", "Hi", "--agent", f"{HERE}:greeting", "--session", "new") as running,
    ):
        running.read_to_the_end()
        assert "❯  Hi" in watching.read_until("stop (completed)")
