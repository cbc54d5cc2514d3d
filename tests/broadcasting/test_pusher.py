"""Envelopes on their way to Reverb and its like: complete, in order, small enough, and never in the way."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.broadcasting.pusher_server import APP_ID, KEY, SECRET, PusherServer
from tests.broadcasting.support import Naps, envelope, numbers, seqs, statuses, until
from tests.models.faulty_server import FaultyServer, hang, reset
from tests.support import echo, scripted
from whyloop import AgentStatus
from whyloop.broadcasting import (
    AgentEventEnvelopeAdapter,
    BroadcastConfig,
    BroadcastError,
    PusherBroadcaster,
)
from whyloop.errors import ConfigurationError
from whyloop.testing import call, text


@pytest.fixture(params=["reverb", "soketi"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[PusherServer]:
    async with PusherServer(request.param) as running:
        yield running


def broadcaster(server: PusherServer | None = None, **options: Any) -> PusherBroadcaster:
    given = {
        "app_id": APP_ID,
        "key": KEY,
        "secret": SECRET,
        "sleep": Naps(),
        "base_url": "http://127.0.0.1:1",
    }
    if server is not None:
        given["base_url"] = server.address
    return PusherBroadcaster(**{**given, **options})


def chunk(seq: int, words: str, session: str = "s1") -> dict[str, Any]:
    return envelope("chunk", seq, session, chunk=words, chunk_index=seq, is_complete=False)


async def test_a_run_arrives_complete_and_in_order(server: PusherServer) -> None:
    agent = scripted(call("echo", {"value": "x"}), text("done"), tools=[echo])
    async with broadcaster(server) as sending:
        agent.subscribe(AgentEventEnvelopeAdapter(sending, BroadcastConfig.debug()))
        state = await agent.run("go")
    assert (found := numbers(server.envelopes)) == list(range(1, len(found) + 1))
    assert {channel for channel, _, _ in server.received} == {f"private-agent.{state.agent_id}"}
    assert [name for _, name, _ in server.received] == [each["event"] for each in server.envelopes]
    assert statuses(server.envelopes)[-1] == "completed"
    assert sending.dropped == {}


async def test_requests_hold_several_events_and_stay_small(server: PusherServer) -> None:
    async with broadcaster(server) as sending:
        sending.broadcast_batch([chunk(seq, "x" * 700) for seq in range(100)])
    assert seqs(server.envelopes) == list(range(100))
    assert max(server.sizes) <= 9000
    assert server.requests <= 20


async def test_each_session_has_its_own_channel(server: PusherServer) -> None:
    async with broadcaster(server, channel="presence-run.{session_id}.all") as sending:
        sending.broadcast_batch([chunk(1, "a", "a"), chunk(1, "b", "b"), chunk(2, "a", "a")])
    channels = [channel for channel, _, _ in server.received]
    assert channels == ["presence-run.a.all", "presence-run.b.all", "presence-run.a.all"]


HOSTILE = "<script>alert(1)</script>\u202egnol\x00\x1b[2J\r\n\u2028'\"\\💥</data>{{x}}"


async def test_hostile_content_arrives_as_data(server: PusherServer) -> None:
    async with broadcaster(server) as sending:
        sending.broadcast(chunk(1, HOSTILE))
    assert server.envelopes == [chunk(1, HOSTILE)]


async def test_a_lone_surrogate_of_a_model_arrives_replaced(server: PusherServer) -> None:
    agent = scripted(text("half \ud83d a smile"))
    async with broadcaster(server) as sending:
        agent.subscribe(AgentEventEnvelopeAdapter(sending))
        await agent.run("go")
    assert server.envelopes[-1]["data"]["last_response"] == "half � a smile"
    assert sending.dropped == {}


@pytest.mark.parametrize("character", ["x", '"', "\x00", "ö", "💥", "\u202e"])
async def test_megabytes_arrive_cut_and_say_so(server: PusherServer, character: str) -> None:
    async with broadcaster(server) as sending:
        sending.broadcast_batch([chunk(1, "before"), chunk(2, character * 1_000_000), chunk(3, "after")])
    assert seqs(server.envelopes) == [1, 2, 3]
    assert max(server.sizes) <= 9000
    data = server.envelopes[1]["data"]
    assert (data["trimmed"], data["trimmed_fields"]) == (True, ["chunk"])
    assert data["chunk"].startswith(character * 100)
    assert sending.dropped == {}


async def test_a_request_that_is_too_large_is_split_and_then_cut() -> None:
    async with PusherServer(limit=1500) as server:
        async with broadcaster(server) as sending:
            sending.broadcast_batch([chunk(seq, "x" * 400) for seq in range(8)] + [chunk(8, "y" * 6000)])
        assert seqs(server.envelopes) == list(range(9))
        assert all("trimmed" not in each["data"] for each in server.envelopes[:8])
        assert server.envelopes[8]["data"]["trimmed_fields"] == ["chunk"]
        assert sending.dropped == {}


async def test_an_envelope_that_cannot_be_cut_further_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with PusherServer(limit=100) as server, broadcaster(server) as sending:
        sending.broadcast(chunk(1, "x" * 400))
        await sending.close()
        assert sending.dropped == {"agent.stream.chunk": 1}
    assert "too large" in caplog.text


async def test_a_refused_envelope_does_not_affect_others(server: PusherServer) -> None:
    async with broadcaster(server) as sending:
        sending.broadcast_batch([chunk(seq, "unwanted" if seq == 3 else "x") for seq in range(10)])
    assert seqs(server.envelopes) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert sending.dropped == {"agent.stream.chunk": 1}


async def test_a_session_id_that_is_not_a_channel_name_is_counted_once(server: PusherServer) -> None:
    server.faults = [web.Response(status=503)]
    async with broadcaster(server) as sending:
        sending.broadcast_batch([chunk(1, "x"), chunk(2, "x", session="a b/c"), chunk(3, "x")])
    assert seqs(server.envelopes) == [1, 3]
    assert sending.dropped == {"agent.stream.chunk": 1}


@pytest.mark.parametrize("odd", [object(), "\ud800"])
async def test_an_envelope_that_is_not_json_drops_no_other(server: PusherServer, odd: Any) -> None:
    async with broadcaster(server) as sending:
        sending.broadcast_batch([chunk(1, "x"), chunk(2, odd), chunk(3, "x")])
    assert seqs(server.envelopes) == [1, 3]
    assert sending.dropped == {"agent.stream.chunk": 1}


@pytest.mark.parametrize("wrong", ["secret", "key"])
async def test_a_wrong_secret_is_logged_and_not_retried(
    server: PusherServer, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    if wrong == "key":
        server.secret = "another"
    async with broadcaster(server, **{wrong: f"wrong-{wrong}"}) as sending:
        sending.broadcast(chunk(1, "x"))
    assert server.requests == 1
    assert sending.dropped == {"agent.stream.chunk": 1}
    assert "the key or the secret is wrong" in caplog.text
    assert "wrong-secret" not in caplog.text


async def test_an_unknown_app_is_logged(server: PusherServer, caplog: pytest.LogCaptureFixture) -> None:
    async with broadcaster(server, app_id="nobody") as sending:
        sending.broadcast(chunk(1, "x"))
    assert server.requests == 1
    assert "the app does not exist" in caplog.text


@pytest.mark.parametrize(
    "fault",
    [
        (503, ""),
        (500, "oops"),
        (429, "slow down"),
        (200, ""),
        (200, "<html>"),
        (200, '{"error": "A server error has occurred.", "code": 500}'),
    ],
)
async def test_a_temporary_failure_is_retried(server: PusherServer, fault: tuple[int, str]) -> None:
    server.faults = [web.Response(status=fault[0], text=fault[1]) for _ in range(3)]
    async with broadcaster(server) as sending:
        sending.broadcast_batch([chunk(1, "x"), chunk(2, "y")])
    assert seqs(server.envelopes) == [1, 2]
    assert server.requests == 4
    assert sending.dropped == {}


async def test_a_server_may_ask_for_patience(server: PusherServer) -> None:
    naps = Naps()
    server.faults = [web.Response(status=429, headers={"retry-after": "9"})]
    async with broadcaster(server, sleep=naps) as sending:
        sending.broadcast(chunk(1, "x"))
    assert naps.seconds == [9]


async def test_only_envelopes_that_did_not_arrive_are_sent_again(server: PusherServer) -> None:
    async with broadcaster(server) as sending:
        sending.broadcast(chunk(0, "first"))
        await until(lambda: server.received)
        # Ten chunks make three requests; the second one fails once.
        server.faults = [web.json_response({"ok": True}), web.Response(status=502)]
        sending.broadcast_batch([chunk(seq, "x" * 2000) for seq in range(1, 11)])
    arrived = seqs(server.envelopes)
    # The first request was answered without being kept.
    assert arrived == [0, 4, 5, 6, 7, 8, 9, 10]


async def test_parts_of_a_batch_that_arrived_before_the_close_are_not_counted(server: PusherServer) -> None:
    sending = broadcaster(server)
    # Two fit into a request, and only the first request is answered.
    server.answers = 1
    sending.broadcast_batch([envelope("status", seq, text="x" * 3000) for seq in range(4)])
    await until(lambda: server.requests == 2)
    await sending.close(timeout=0)
    server.go_on.set()
    assert seqs(server.envelopes)[:2] == [0, 1]
    assert sending.dropped == {"agent.status": 2}


@pytest.mark.parametrize("status", [401, 404])
async def test_a_status_survives_a_proxy_that_refuses_for_a_while(server: PusherServer, status: int) -> None:
    server.faults = [web.Response(status=status) for _ in range(3)]
    async with broadcaster(server) as sending:
        sending.broadcast_batch([chunk(1, "x"), envelope("status", 2)])
    assert seqs(server.envelopes) == [2]
    assert sending.dropped == {"agent.stream.chunk": 1}


async def test_a_redirect_is_not_followed(server: PusherServer) -> None:
    server.faults = [web.Response(status=307, headers={"location": server.address})]
    async with broadcaster(server) as sending:
        sending.broadcast(chunk(1, "x"))
    assert server.requests == 1
    assert sending.dropped == {"agent.stream.chunk": 1}


async def test_a_dead_server_delays_no_run_and_is_logged_without_the_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    agent = scripted(text("done"))
    sending = broadcaster(retries=1)
    agent.subscribe(AgentEventEnvelopeAdapter(sending))
    state = await agent.run("go")
    assert state.status is AgentStatus.COMPLETED
    await until(lambda: sending.dropped)
    await sending.close(timeout=0)
    assert sending.dropped["agent.status"] == 2
    assert "http://127.0.0.1:1 could not be reached" in caplog.text
    assert SECRET not in caplog.text


async def test_a_server_that_hangs_or_breaks_off_holds_up_no_run() -> None:
    for fault in (hang(), reset()):
        async with FaultyServer(fault) as faulty:
            sending = broadcaster(base_url=f"http://127.0.0.1:{faulty.port}")
            agent = scripted(text("done"))
            agent.subscribe(AgentEventEnvelopeAdapter(sending))
            assert (await agent.run("go")).status is AgentStatus.COMPLETED
            await sending.close(timeout=0.01)
            assert sending.dropped["agent.status"] == 2


async def test_a_server_that_does_not_answer_in_time_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultyServer(hang()) as faulty:
        address = f"http://127.0.0.1:{faulty.port}"
        sending = broadcaster(base_url=address, timeout=0.2, retries=1)
        sending.broadcast(chunk(1, "x"))
        await until(lambda: sending.dropped)
        await sending.close()
        assert len(faulty.requests) == 2
        assert f"{address} gave no answer within 0.2 s" in caplog.text


def test_the_connection_is_closed_with_the_event_loop() -> None:
    async def main() -> None:
        async with PusherServer() as server:
            sending = broadcaster(server)
            sending.broadcast(chunk(1, "x"))
            await until(lambda: server.received)

    asyncio.run(main())  # A session that is left open would be a warning, and that an error.


async def test_nothing_shows_the_secret() -> None:
    sending = broadcaster()
    assert SECRET not in repr(sending) + str(sending)
    assert SECRET not in repr(vars(sending))
    with pytest.raises(BroadcastError) as caught:
        sending.authorize("odd", "private-agent.s1")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_subscriber_is_let_into_the_channel_of_a_session() -> None:
    sending = broadcaster()
    (auth,) = sending.authorize("1234.1234", "private-agent.s1").values()
    assert auth.startswith(f"{KEY}:")
    assert sending.session_of("private-agent.s1") == "s1"


def test_a_presence_channel_shows_its_user() -> None:
    sending = broadcaster(channel="presence-agent.{session_id}")
    answer = sending.authorize("1.2", "presence-agent.s1", user={"user_id": "7"})
    assert json.loads(answer["channel_data"]) == {"user_id": "7"}
    with pytest.raises(BroadcastError, match="missing user"):
        sending.authorize("1.2", "presence-agent.s1")


@pytest.mark.parametrize(
    ("socket_id", "channel"),
    [
        ("1.2:presence-x", "private-agent.s1"),
        ("", "private-agent.s1"),
        ("1.2", "private-admin.s1"),
        ("1.2", "private-agent.s1:more"),
        ("1.2", "presence-agent.s1"),
        ("1.2", "private-agent." + "x" * 10_000),
        (None, "private-agent.s1"),
        ("1.2", None),
    ],
)
def test_no_other_channel_is_signed(socket_id: Any, channel: Any) -> None:
    with pytest.raises(BroadcastError) as caught:
        broadcaster().authorize(socket_id, channel)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "127.0.0.1:8080"}, "invalid base_url"),
        ({"base_url": "http://user:password@127.0.0.1"}, "invalid base_url"),
        ({"base_url": "http://["}, "invalid base_url"),
        ({"base_url": "http://127.0.0.1:99999"}, "invalid base_url"),
        ({"base_url": "http://127.0.0.1:port"}, "invalid base_url"),
        ({"base_url": "http://127.0.0.1:0"}, "invalid base_url"),
        ({"secret": ""}, "must not be empty"),
        ({"channel": "agent.{session_id}"}, "would be public"),
        ({"timeout": 0}, "timeout"),
        ({"max_request_bytes": 10}, "max_request_bytes"),
    ],
)
def test_invalid_options_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        broadcaster(**options)
    assert "password" not in str(caught.value)


def test_without_an_http_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "whyloop.broadcasting.pusher")
    with pytest.raises(ConfigurationError, match=r'pip install "\.\[pusher\]"'):
        importlib.import_module("whyloop.broadcasting.pusher")
