"""An agent run, sent through a real Pusher-protocol server to real clients."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.broadcasting.support import envelope, seqs
from tests.real.browser import open_page
from tests.real.soketi import APP_ID, KEY, MODULES, SECRET, NoSoketiError, Soketi
from tests.support import echo, scripted
from tests.wire.test_envelope_schema import problems
from whyloop.broadcasting import (
    AgentEventEnvelopeAdapter,
    BroadcastConfig,
    BroadcastError,
    PusherBroadcaster,
)
from whyloop.testing import call, text
from whyloop.wire.envelope import NUMBERED

pytestmark = pytest.mark.slow

SESSION = "1a2b3c4d"
HOSTILE = "<script>alert(1)</script>\u202egnol\x00\x1b[2J\r\n\u2028'\"\\💥"
LONG_ENOUGH = 30  # Seconds, for a machine that does a lot at once.

SUBSCRIBE = """
const Pusher = require('pusher-js')
const [port, endpoint, channel] = process.argv.slice(2)
const say = (what) => process.stdout.write(JSON.stringify(what) + '\\n')
const pusher = new Pusher('KEY', {
  wsHost: '127.0.0.1', wsPort: Number(port), forceTLS: false, enabledTransports: ['ws'], cluster: 'none',
  channelAuthorization: { endpoint },
})
pusher.connection.bind('error', (error) => say({ failed: String(JSON.stringify(error)) }))
pusher.subscribe(channel).bind_global((name, data) => say({ name, data }))
""".replace("KEY", KEY)

PAGE = """<!doctype html><meta charset="utf-8"><body></body>
<script src="/pusher.js"></script><script src="/echo.js"></script>
<script>
  window.Pusher = Pusher
  window.heard = []
  const echo = new Echo.default({
    broadcaster: 'reverb', key: 'KEY', wsHost: '127.0.0.1', wsPort: PORT, wssPort: PORT, forceTLS: false,
    enabledTransports: ['ws'], authEndpoint: '/broadcasting/auth',
  })
  const channel = echo.private('agent.SESSION')
  channel.subscribed(() => { window.isSubscribed = true })
  for (const name of EVENTS) channel.listen('.' + name, (told) => window.heard.push(told))
</script>"""


@pytest.fixture(scope="module")
def soketi() -> Iterator[Soketi]:
    """The server, started once; without it the tests say what is missing."""
    try:
        server = Soketi()
        server.start()
    except NoSoketiError as error:
        pytest.skip(str(error))
    yield server
    server.remove()


def broadcaster(soketi: Soketi, **options: Any) -> PusherBroadcaster:
    given = {"app_id": APP_ID, "key": KEY, "secret": SECRET, "base_url": soketi.address}
    return PusherBroadcaster(**{**given, **options})


class Website:
    """The part of an application that lets subscribers in, and a page with Laravel Echo on it."""

    def __init__(self, sending: PusherBroadcaster, port: int) -> None:
        self._sending = sending
        self._port = port
        app = web.Application()
        app.router.add_post("/broadcasting/auth", self._authorize)
        app.router.add_get("/", self._page)
        app.router.add_get("/pusher.js", self._file("pusher-js/dist/web/pusher.min.js"))
        app.router.add_get("/echo.js", self._file("laravel-echo/dist/echo.iife.js"))
        self.server = TestServer(app)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = await request.post()
        try:
            channel = str(asked["channel_name"])
            if self._sending.session_of(channel) != SESSION:
                return web.Response(status=403)
            user = {"user_id": "ada"}
            return web.json_response(self._sending.authorize(str(asked["socket_id"]), channel, user=user))
        except BroadcastError as error:
            return web.Response(status=403, text=str(error))

    async def _page(self, request: web.Request) -> web.Response:
        from whyloop.wire.envelope import EVENTS

        page = PAGE.replace("EVENTS", json.dumps(EVENTS)).replace("PORT", str(self._port))
        page = page.replace("SESSION", SESSION).replace("KEY", KEY)
        return web.Response(text=page, content_type="text/html")

    @staticmethod
    def _file(name: str) -> Any:
        async def give(request: web.Request) -> web.FileResponse:
            return web.FileResponse(MODULES / name)

        return give


@asynccontextmanager
async def website(sending: PusherBroadcaster, soketi: Soketi) -> AsyncIterator[Website]:
    site = Website(sending, soketi.port)
    async with site.server:
        yield site


class Subscriber:
    """pusher-js in a process of its own, and what it hears."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def next(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(LONG_ENOUGH):
            line = await self._process.stdout.readline()
        said: dict[str, Any] = json.loads(line)
        return said

    async def envelopes(self, until: str = "completed") -> list[dict[str, Any]]:
        """Everything up to the status that ends a run."""
        heard: list[dict[str, Any]] = []
        while not heard or heard[-1]["data"].get("status") != until:
            said = await self.next()
            assert said["name"] == said["data"]["event"]
            heard.append(said["data"])
        return heard


@asynccontextmanager
async def subscriber(soketi: Soketi, endpoint: str, channel: str, folder: Path) -> AsyncIterator[Subscriber]:
    script = folder / "subscribe.js"
    script.write_text(SUBSCRIBE, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        "node",
        str(script),
        str(soketi.port),
        endpoint,
        channel,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
        env={**os.environ, "NODE_PATH": str(MODULES)},
    )
    try:
        yield Subscriber(process)
    finally:
        process.kill()
        # Read to its end, so that nothing of the pipe is left when the event loop closes.
        await process.communicate()


def an_agent(sending: PusherBroadcaster) -> Any:
    agent = scripted(
        call("echo", {"value": HOSTILE}), call("echo", {"value": "y" * 50_000}), text(HOSTILE), tools=[echo]
    )
    agent.subscribe(AgentEventEnvelopeAdapter(sending, BroadcastConfig.debug(), session_id=SESSION))
    return agent


@pytest.mark.parametrize("kind", ["private", "presence"])
async def test_a_run_reaches_pusher_js_complete_and_in_order(
    soketi: Soketi, kind: str, tmp_path: Path
) -> None:
    async with (
        broadcaster(soketi, channel=f"{kind}-agent.{{session_id}}") as sending,
        website(sending, soketi) as site,
        subscriber(
            soketi, f"{site.address}/broadcasting/auth", f"{kind}-agent.{SESSION}", tmp_path
        ) as listening,
    ):
        assert (await listening.next())["name"] == "pusher:subscription_succeeded"
        await an_agent(sending).run("go")
        heard = await listening.envelopes()
    numbered = [each for each in heard if each["event"] in NUMBERED]
    assert seqs(numbered) == list(range(1, len(numbered) + 1))
    assert seqs(heard) == sorted(seqs(heard))
    assert [problem for each in heard for problem in problems(each)] == []
    assert numbered[-1]["data"]["last_response"] == HOSTILE
    started = [each["data"] for each in heard if each["event"] == "agent.tool.started"]
    assert started[0]["args"] == {"value": HOSTILE}
    assert started[1]["trimmed_fields"] == ["args"]
    assert sending.dropped == {}


async def test_a_user_cannot_follow_the_session_of_another(soketi: Soketi, tmp_path: Path) -> None:
    async with (
        broadcaster(soketi) as sending,
        website(sending, soketi) as site,
        subscriber(soketi, f"{site.address}/broadcasting/auth", "private-agent.other", tmp_path) as listening,
    ):
        said = await listening.next()
    assert said["name"] == "pusher:subscription_error"
    assert said["data"]["status"] == 403


async def test_the_signature_of_another_user_opens_no_channel(soketi: Soketi, tmp_path: Path) -> None:
    async with (
        broadcaster(soketi, secret="another secret") as stranger,
        website(stranger, soketi) as site,
        subscriber(
            soketi, f"{site.address}/broadcasting/auth", f"private-agent.{SESSION}", tmp_path
        ) as listening,
    ):
        said = await listening.next()
    assert said["name"] == "pusher:subscription_error" or "failed" in said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"secret": "another"}, "key or the secret"), ({"app_id": "x"}, "app does not exist")],
)
async def test_a_refusal_behind_a_success_is_noticed(
    soketi: Soketi, wrong: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with broadcaster(soketi, **wrong) as sending:
        sending.broadcast(envelope("status", session=SESSION))
    assert sending.dropped == {"agent.status": 1}
    assert words in caplog.text


async def test_an_envelope_that_is_too_large_for_the_server_is_cut(soketi: Soketi) -> None:
    async with broadcaster(soketi, max_request_bytes=300_000) as sending:
        sending.broadcast(
            envelope("chunk", session=SESSION, chunk="x" * 200_000, chunk_index=0, is_complete=False)
        )
        await sending.close(LONG_ENOUGH)
    assert sending.dropped == {}


async def test_a_server_that_was_away_gets_what_it_missed(soketi: Soketi, tmp_path: Path) -> None:
    async with broadcaster(soketi) as sending, website(sending, soketi) as site:
        soketi.stop()
        running = asyncio.create_task(an_agent(sending).run("go"))
        await running
        await asyncio.to_thread(soketi.start)
        channel = f"private-agent.{SESSION}"
        async with subscriber(soketi, f"{site.address}/broadcasting/auth", channel, tmp_path) as listening:
            assert (await listening.next())["name"] == "pusher:subscription_succeeded"
            sending.broadcast(envelope("status", 99, SESSION, status="over"))
            await sending.close(LONG_ENOUGH)
            heard = await listening.envelopes(until="over")
    # What came back while nobody had subscribed yet is gone; what is heard is in order.
    assert seqs(heard) == sorted(seqs(heard))
    assert heard[-1]["seq"] == 99
    assert sending.dropped == {}


async def test_a_run_reaches_laravel_echo_in_a_browser(soketi: Soketi) -> None:
    async with (
        broadcaster(soketi) as sending,
        website(sending, soketi) as site,
        open_page() as page,
    ):
        await page.goto(site.address)
        await page.wait_for_function("window.isSubscribed")
        await an_agent(sending).run("go")
        ended = "window.heard.some((told) => told.data.status === 'completed')"
        await page.wait_for_function(ended)
        heard = await page.evaluate("window.heard")
    numbered = [each for each in heard if each["event"] in NUMBERED]
    assert seqs(numbered) == list(range(1, len(numbered) + 1))
    assert seqs(heard) == sorted(seqs(heard))
    assert [problem for each in heard for problem in problems(each)] == []
    assert numbered[-1]["data"]["last_response"] == HOSTILE


def test_it_listens_on_this_machine_only(soketi: Soketi) -> None:
    tables = [Path("/proc/net/tcp"), Path("/proc/net/udp")]
    if not all(table.exists() for table in tables):
        pytest.skip("only Linux says in /proc who listens where")
    lines = [line.split() for table in tables for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    endings = tuple(f":{port:04X}" for port in soketi.ports)
    nobody = ("00000000:0000",)
    listening = {line[1] for line in lines if line[1].endswith(endings) and line[2] in nobody}
    assert len(listening) == 3
    assert all(address.startswith("0100007F:") for address in listening)
