"""Leave to subscribe to the private channel of a session."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import HTTPConnection

from tests.server.support import Answer, Lab, agent_with, reverb
from whyloop.server import Access
from whyloop.stores import MemoryStore

FORM = {"content-type": "application/x-www-form-urlencoded"}


def of_user(connection: HTTPConnection) -> Access:
    return Access(connection.headers["x-user"], {"user": connection.headers["x-user"]})


def signed(text: str) -> str:
    return f"key:{hmac.new(b'secret', text.encode(), hashlib.sha256).hexdigest()}"


async def lab_with(*channels: str, **options: Any) -> Lab:
    transports = [reverb(channel) for channel in channels or ("private-agent.{session_id}",)]
    lab = Lab(MemoryStore(), agent_with(), also=transports, **options)
    await lab.post("/sessions", {"agent_id": "17"}, headers={"x-user": "ann"})
    return lab


async def ask(lab: Lab, channel: str, socket: str = "1.2", **headers: str) -> Answer:
    form = urlencode({"socket_id": socket, "channel_name": channel, "also": "this"}).encode()
    return await lab.client.call("POST", "/broadcasting/auth", body=form, headers={**FORM, **headers})


async def test_a_subscriber_gets_the_signature_that_the_server_of_the_channel_checks() -> None:
    lab = await lab_with()
    answer = await ask(lab, "private-agent.17")
    assert (answer.status, answer.json) == (200, {"auth": signed("1.2:private-agent.17")})
    sent = {"socket_id": "1.2", "channel_name": "private-agent.17"}
    assert (await lab.post("/broadcasting/auth", sent)).json == answer.json


@pytest.mark.parametrize(
    "channel", ["private-agent.18", "private-orders.17", "agent.17", "", "private-agent."]
)
async def test_a_channel_without_a_session_is_refused(channel: str) -> None:
    answer = await ask(await lab_with(), channel)
    assert answer.status in (400, 403)
    assert "17" not in answer.message


async def test_a_socket_that_is_none_is_refused() -> None:
    answer = await ask(await lab_with(), "private-agent.17", socket="1.2:private-agent.18")
    assert (answer.status, answer.error) == (403, "not_authorized")


async def test_a_session_out_of_scope_is_like_one_that_is_not_there() -> None:
    lab = await lab_with(access=of_user)
    own = {"x-user": "bob"}
    there = await ask(lab, "private-agent.17", **own)
    missing = await ask(lab, "private-agent.18", **own)
    assert (there.status, there.json) == (missing.status, missing.json) == (403, missing.json)
    assert (await ask(lab, "private-agent.17", **{"x-user": "ann"})).status == 200


async def test_the_right_one_of_several_transports_answers() -> None:
    lab = await lab_with("private-a.{session_id}", "private-b.{session_id}")
    assert (await ask(lab, "private-b.17")).json == {"auth": signed("1.2:private-b.17")}


async def test_a_presence_channel_shows_the_user_that_the_server_knows() -> None:
    lab = await lab_with("presence-agent.{session_id}", access=of_user)
    answer = await ask(lab, "presence-agent.17", **{"x-user": "ann"})
    assert json.loads(answer.json["channel_data"])["user_id"] == "ann"
    nobody = await lab_with("presence-agent.{session_id}")
    assert (await ask(nobody, "presence-agent.17")).status == 403


async def test_a_page_of_another_site_gets_no_leave() -> None:
    answer = await ask(await lab_with(), "private-agent.17", origin="https://evil.example", host="here")
    assert (answer.status, answer.error) == (403, "origin")


async def test_a_server_without_channels_does_not_have_the_route() -> None:
    lab = Lab(MemoryStore(), agent_with())
    assert (await ask(lab, "private-agent.17")).status == 404
