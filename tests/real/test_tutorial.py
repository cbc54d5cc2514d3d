"""The program of the tutorial, deployed as its last part says: PostgreSQL, uvicorn and a worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.models.faulty_server import (
    DONE,
    FaultyServer,
    call_piece,
    chat_events,
    chunked,
    event,
    in_a_thread,
    say,
)
from tests.real.browser import open_page
from tests.real.postgres import PostgresServer
from tests.test_docs import DOCS, ROOT, blocks_of
from whyloop.stores import PostgresStore

pytestmark = pytest.mark.slow

LONG_ENOUGH = 60
USED = event({"id": "c1", "choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 10}})
WANTED = call_piece("refund", '{"order": 18, "cents": 25000}')
REFUND = chunked(chat_events(calls=[WANTED], finish="tool_calls") + USED + DONE)
ANSWER = chunked(chat_events("You get ", "250.00 back.") + USED + DONE)


def write_program(folder: Path, model_url: str) -> None:
    """Write the files of the tutorial, with a model at this address."""
    for name in ("3-screens.md", "4-production.md"):
        for block in blocks_of(DOCS / "tutorial" / name):
            if block.title is not None:
                source = block.source.replace('"ollama:qwen3"', f'"ollama:qwen3", base_url={model_url!r}')
                (folder / block.title).write_text(f"{source}\n", encoding="utf-8")


@contextmanager
def running(folder: Path, store: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the program, which is ended at the end."""
    environment = {**os.environ, "WHYLOOP_STORE": store, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}"}
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=folder, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LONG_ENOUGH)


async def open_when_ready(page: Any, url: str) -> None:
    async with asyncio.timeout(LONG_ENOUGH), aiohttp.ClientSession() as http:
        while True:
            try:
                async with http.get(url):
                    break
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
    await page.goto(url)
    await page.wait_for_function("document.forms[0].onsubmit !== null")


async def until_status(store: PostgresStore, status: str) -> str:
    """Wait until a session of Ann has a status; return its id."""
    async with asyncio.timeout(LONG_ENOUGH):
        while True:
            found = (await store.sessions(status=status, metadata={"customer": "ann"})).sessions
            if found:
                return found[0].agent_id
            await asyncio.sleep(0.05)


async def test_a_worker_continues_a_refund_after_the_web_server_was_killed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    address = postgres.address()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with in_a_thread(FaultyServer(say(REFUND), say(ANSWER))) as model:
        write_program(tmp_path, model.base_url)
        web = ("uvicorn", "--factory", "main:web", "--port", str(port), "--timeout-graceful-shutdown", "1")
        worker = ("whyloop", "worker", "--agents", "main:agent", "--deps", "web:deps")
        async with PostgresStore(address) as store, open_page() as page:
            with running(tmp_path, address, *web) as server:
                await page.context.add_cookies(
                    [{"name": "key", "value": "key-of-ann", "domain": "127.0.0.1", "path": "/"}]
                )
                await open_when_ready(page, f"http://127.0.0.1:{port}/")
                await page.fill("input", "My desk is broken, I want my money back")
                await page.press("input", "Enter")
                session = await until_status(store, "paused")
                server.kill()
            (question,) = (await store.load(session)).pending_calls
            await store.approve(session, question.id, by="ada")
            with running(tmp_path, address, *worker):
                await until_status(store, "completed")
            state = await store.load(session)
            assert state.metadata == {"customer": "ann"}
            assert [message.text for message in state.messages if not message.tool_calls] == [
                "My desk is broken, I want my money back",
                "paid 250.00 back to ann for order 18",
                "You get 250.00 back.",
            ]
            assert state.explanation.steps[0].summary == "refund ok, approved by ada"

            with running(tmp_path, address, *web):
                await open_when_ready(page, f"http://127.0.0.1:{port}/")
                await page.fill("input", "Thank you")
                await page.press("input", "Enter")
                await page.wait_for_selector("text=assistant: You get 250.00 back.")
