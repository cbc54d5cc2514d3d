"""Every example runs as it is, offline, and prints what it is there to show."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.real.browser import open_page
from tests.server.streams_support import serving

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

KEY_LINES = {
    "approval.py": [
        "Paused in step 1. ApprovalRequired decided: 2 tool calls wait for a person: refund, refund.",
        "  refund waits for approval: {'order': 18, 'amount': 900}",
        "  40 refunded for order 17\n  Denied by Ada: order 18 was never paid",
        "  230 refunded for order 19",
        "Completed after 2 steps.",
        "refund denied by Ada: order 18 was never paid; refund ok, edited by Ada",
    ],
    "chat_server.py": [
        "agent.tool.completed closed",
        "agent.stream.chunk We \nagent.stream.chunk are \nagent.stream.chunk closed ",
        "agent.status The model answered and asked for no tools",
    ],
    "crash_and_resume.py": [
        "worker 1 ended with SIGKILL",
        "left behind: in_progress",
        "It is unknown whether pay ran: it was interrupted before its result was recorded.",
        "the model reads: Outcome unknown: it was interrupted before its result was recorded, and Ada did "
        "not let it run again: the bank says: paid 50 to Bob",
        "1  pay outcome unknown: it was interrupted before its result was recorded",
        "Completed after 2 steps.",
    ],
    "quickstart.py": [
        "It is -3.5 °C in Oslo.",
        "Completed after 2 steps.",
        "stop    ToolCallPresenceCheck  The model answered and asked for no tools",
    ],
    "custom_guard.py": [
        "Stopped after 2 steps (guard). RefundBudget decided: 110.00 of 100.00 refunded.",
        "stop reason: guard, numbers: {'used': 110.0, 'limit': 100, 'remaining': 0.0}",
    ],
    "error_policy.py": [
        "stop on any error: failed (error)",
        "retry once: failed (retry_limit)",
        "  step 2: Tool error after 2 consecutive failures (max: 1)",
        "retry three times: completed (completed)",
        "busy provider: completed, waited [1.0, 7.0] seconds",
    ],
    "money_limit.py": [
        "Paused in step 1. ApprovalRequired decided: book waits for approval.",
        "Stopped after 2 steps (guard). CostLimit decided: Limit reached: $0.0165 of $0.015 used.",
        "next: grant more money: resume(state, grant=Budget(usd=1))",
        "Steps, cost $0.0197",
        "1  book ok, approved by Ada  [4,150 tokens, $0.0115, ",
        "allow   CostLimit              $0.0197 of $0.015 used, $0.01 more was granted",
        "cost of the session: 0.01975 US dollars",
    ],
    "typed_extractor.py": [
        "Invoice(number='A-17', day=datetime.date(2026, 1, 16), currency='EUR', "
        "lines=[Line(article='rope', cents=250)])",
        "the answer does not fit the output type: the validator known_articles rejected it",
        "Completed after 2 steps.",
    ],
    "pause_and_resume.py": [
        "Stopped after 1 step (user_requested).",
        "The draft waits for Ann's approval",
        "Completed after 3 steps.",
        "8.0 of 60 s of work used",
        "worked 8 s, waited for a person 3600 s",
    ],
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example(name: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "utf8", "-W", "error", EXAMPLES / name],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    for line in KEY_LINES[name]:
        assert line in run.stdout
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 60


def chat_app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The app of the chat server, with a new scripted model."""
    monkeypatch.setattr(sys, "argv", ["chat_server.py"])
    return runpy.run_path(str(EXAMPLES / "chat_server.py"))["app"]


async def test_the_chat_server_streams_an_answer_to_an_http_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(chat_app(monkeypatch)) as server, aiohttp.ClientSession(server.address) as http:
        created = await (await http.post("/chat/sessions", json={})).json()
        session = f"/chat/sessions/{created['session']['agent_id']}"
        async with http.get(f"{session}/events", headers={"accept": "text/event-stream"}) as stream:
            asked = await http.post(f"{session}/messages", json={"text": "Are you open on Sunday?"})
            assert asked.status == 202
            pieces = []
            async for line in stream.content:
                if line.startswith(b"data:"):
                    data = json.loads(line.removeprefix(b"data:"))["data"]
                    pieces += [data["chunk"]] if data.get("chunk") else []
                    if data.get("stop_reason"):
                        break
        trace = await (await http.get(f"{session}/trace")).json()
    assert pieces == ["We ", "are ", "closed ", "on ", "Sundays."]
    assert trace["headline"].startswith("Completed after 2 steps.")


@pytest.mark.slow
async def test_the_page_of_the_chat_server_shows_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(chat_app(monkeypatch)) as server, open_page() as page:
        await page.goto(server.address)
        await page.get_by_label("Next question").fill("Are you open on Sunday?")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("Completed by").wait_for()
        texts = await page.locator(".user-message .markdown, .answer").all_inner_texts()
        assert texts == ["Are you open on Sunday?", "We are closed on Sundays."]
