"""A session saved as one HTML file: it works from disk, requests nothing, and runs nothing that it shows."""

from __future__ import annotations

import argparse
import re
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from starlette.testclient import TestClient

from tests.inspector.runs import START, answer, long_run, look, record, turn
from tests.real.browser import SHARES_BROWSER, open_page
from whyloop import Agent, tool
from whyloop.cli.storage import export
from whyloop.cli.terminal import CommandError
from whyloop.server import AgentServer
from whyloop.server.details import saved_session
from whyloop.stores import MemoryStore, SqliteStore
from whyloop.testing import ScriptedModel, call, calls, text
from whyloop.tools.tool import Tool
from whyloop.values.redaction import Redaction
from whyloop.values.state import AgentState

pytestmark = SHARES_BROWSER

EVIL = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'><!--"
SECRET = "sk-ant-api03-" + "a" * 40


@tool
async def evil(value: str) -> str:
    """Do something."""
    return f"{EVIL} {value}"


async def hostile_run() -> AgentState:
    script = [
        calls(call("evil", {"value": EVIL, "api_key": SECRET}), text=EVIL, reasoning=EVIL),
        text(f"# {EVIL} {SECRET}"),
    ]
    agent = Agent(ScriptedModel(script), [evil], instructions=f"Be careful. {EVIL}")
    return await agent.run(f"Go {EVIL}", state=AgentState(agent_id=f"a{EVIL}"))


async def saved(state: AgentState, at: datetime | None = None) -> str:
    store = MemoryStore()
    await store.add(state)
    return "".join(await saved_session(store, state.agent_id, Redaction(), at or store.now()))


@asynccontextmanager
async def opened(page: str, tmp_path: Path) -> AsyncIterator[tuple[Any, list[str]]]:
    """The page from disk in a browser without a network, and everything that it requests or complains of."""
    file = tmp_path / "saved.html"
    file.write_text(page, encoding="utf-8")
    heard: list[str] = []
    async with open_page() as tab:
        await tab.context.set_offline(True)
        tab.on("request", lambda request: heard.append(request.url))
        tab.on("pageerror", lambda error: heard.append(str(error)))
        tab.on("console", lambda message: heard.append(message.text) if message.type == "error" else None)
        await tab.set_viewport_size({"width": 1440, "height": 900})
        await tab.goto(file.as_uri())
        yield tab, heard
        assert heard == [file.as_uri()]


@pytest.mark.slow
async def test_the_file_shows_the_run_without_a_request(tmp_path: Path) -> None:
    script = [
        turn(1, "Aurora", "Fjord", said="I look **twice**."),
        turn(2, "Polar"),
        answer("Both are known."),
    ]
    state = await record(script, agent_id="a", instructions="Be brief.")
    async with opened(await saved(state), tmp_path) as (tab, _):
        await expect(tab.get_by_role("heading", name="Completed after 3")).to_be_visible()
        await expect(tab.locator(".conversation").get_by_text("Both are known.")).to_be_visible()
        await expect(tab.locator(".ledger")).to_be_visible()
        await expect(tab.locator(".timeline")).to_be_visible()
        await tab.get_by_role("link", name="Step 2", exact=True).click()
        await tab.get_by_role("tab", name="Request").click()
        await expect(tab.get_by_text("Be brief.")).to_be_visible()
        await expect(tab.get_by_text("As sent to the model: 4 messages")).to_be_visible()
        await tab.get_by_role("tab", name="Response").click()
        await expect(tab.get_by_text("Polar is known")).to_be_visible()
        await tab.keyboard.press("Escape")
        await expect(tab.locator(".conversation").get_by_text("I look")).to_be_visible()


@pytest.mark.slow
async def test_the_file_offers_nothing_that_it_cannot_do(tmp_path: Path) -> None:
    async with opened(await saved(await long_run(4)), tmp_path) as (tab, _):
        await expect(tab.locator(".end-card")).to_be_visible()
        await expect(tab.get_by_role("slider", name="What if")).to_have_count(0)
        await expect(tab.locator(".compose")).to_have_count(0)
        for name in ("Resume", "Grant", "Fork", "Stop", "Approve", "Send"):
            await expect(tab.get_by_role("button", name=name).filter(visible=True)).to_have_count(0)
        await expect(tab.locator(".top")).not_to_contain_text("Live")
        await tab.get_by_role("link", name="Step 2", exact=True).click()
        await tab.get_by_role("tab", name="JSON").click()
        await expect(tab.locator("pre.json")).to_contain_text('"index": 2')
        for name in ("Envelopes", "Snapshot"):
            await expect(tab.get_by_role("button", name=name)).to_have_count(0)


@pytest.mark.slow
async def test_the_arguments_of_a_question_in_the_file_are_shown_as_they_are(tmp_path: Path) -> None:
    @tool(needs_approval=True)
    async def pay(text: str) -> str:
        """Pay."""
        return text

    trick = "pay \u202e05.2 RUE\u202c to p\u0430ypal"
    state = await Agent(ScriptedModel([call("pay", {"text": trick})]), [pay]).run("Pay")
    async with opened(await saved(state), tmp_path) as (tab, _):
        line = tab.locator(".call-line")
        await expect(line).to_contain_text(r"pay \u202e05.2 RUE\u202c to pаypal⟦mixes Latin and Cyrillic⟧")
        await line.click()
        await expect(tab.locator(".call-content")).to_contain_text(r"\u202e05.2")
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", await tab.locator(".conversation").inner_text())


@pytest.mark.slow
async def test_nothing_in_the_file_is_interpreted(tmp_path: Path) -> None:
    page = await saved(await hostile_run())
    async with opened(page, tmp_path) as (tab, _):
        await expect(tab.locator(".conversation .end-card")).to_be_visible()
        for line in await tab.locator(".call-line").all():
            await line.click()
        await expect(tab.locator(".conversation")).to_contain_text("onerror")
        await tab.get_by_role("link", name="Step 1", exact=True).click()
        for name in ("Request", "Response", "JSON"):
            await tab.get_by_role("tab", name=name).click()
            await expect(tab.locator(".step-body").get_by_text("onerror").first).to_be_visible()
        assert await tab.evaluate("window.hacked") is None
        await expect(tab.locator("img")).to_have_count(0)


async def test_the_file_has_no_secrets_and_no_way_out_of_its_data() -> None:
    page = await saved(await hostile_run())
    assert SECRET not in page
    assert page.count("</script>") == 2
    assert "default-src 'none'; script-src 'sha256-" in page
    assert "unsafe" not in page.partition("</head>")[0].partition("<style>")[0]
    head, _, rest = page.partition('id="whyloop-saved">')
    assert "<!--" not in rest.partition("</script>")[0]
    assert "<!--" not in head


async def test_a_secret_at_the_edge_of_a_title_is_not_in_the_file() -> None:
    agent = Agent(ScriptedModel([text("Done.")]), [])
    query = f"{'x' * 62} {SECRET}"
    page = await saved(await agent.run(query))
    assert f"{'x' * 62} [removed]" in page
    assert SECRET[:6] not in page


async def test_a_session_that_waits_in_its_first_step_can_be_saved() -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay, if a person agrees."""
        return f"paid {amount}"

    agent = Agent(ScriptedModel([call("pay", {"amount": 3})]), [pay], instructions="Be careful.")
    state = await agent.run("Go")
    assert state.open_step is not None
    assert "pay waits for approval" in await saved(state)


@pytest.mark.slow
async def test_time_stands_still_in_the_file(tmp_path: Path) -> None:
    tools = [Tool(look, needs_approval=True)]
    state = await record([call("look", {"name": "lead-2"})], agent_id="a", tools=tools)
    page = await saved(state, START + timedelta(minutes=5, seconds=30))
    async with opened(page, tmp_path) as (tab, _):
        await expect(tab.locator(".call")).to_contain_text("Waits 5 min")
        await expect(tab.locator(".crumbs")).to_contain_text("5 min ago")


async def test_the_server_sends_the_file_to_be_kept() -> None:
    store = MemoryStore()
    await store.add(await record([answer()], agent_id="a/b"))
    client = TestClient(AgentServer(store, public=True), base_url="http://localhost")
    response = client.get("/sessions/a%2Fb/saved.html")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["content-disposition"] == 'attachment; filename="whyloop-a-b.html"'
    assert client.get("/sessions/none/saved.html").status_code == 404


async def test_the_command_writes_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.db") as store:
        await store.add(await record([answer("The last answer.")], agent_id="a"))
    file = tmp_path / "a.html"
    command = [sys.executable, "-m", "whyloop", "export", "a", "--store", str(tmp_path / "sessions.db")]
    subprocess.run([*command, "--html", str(file)], check=True, timeout=60)
    assert "The last answer." in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    refused = subprocess.run(
        [*command, "b", "--html", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode != 0


async def test_the_command_names_the_extra_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStore(tmp_path / "sessions.db") as store:
        await store.add(await record([answer()], agent_id="a"))
        monkeypatch.setitem(sys.modules, "whyloop.server.details", None)
        args = argparse.Namespace(ids=["a"], html=str(tmp_path / "a.html"), output=None)
        with pytest.raises(CommandError, match=r"pip install \"\.\[server\]\""):
            await export(store, args)


async def test_a_long_session_is_saved_in_a_size_that_grows_with_its_steps() -> None:
    small, large = [len(await saved(await long_run(steps))) for steps in (50, 200)]
    empty = len(await saved(await long_run(1)))
    assert large - empty < 5 * (small - empty)
