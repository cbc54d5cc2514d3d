"""No secret of a tool, a rule or a provider's error reaches AG-UI or Vercel."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import scripted
from whyloop import ErrorPolicy, Redaction, tool
from whyloop.errors import ModelError, ToolExecutionError
from whyloop.events import AgentEvent
from whyloop.testing import call, calls
from whyloop.wire.ag_ui import AgUiStream
from whyloop.wire.protocol_stream import ProtocolStream
from whyloop.wire.vercel import VercelStream

KEY, PASSWORD, CARD = "sk-proj-0123456789abcdefghijklmnop", "hunter2-and-more", "4111111111111111"

Make = Callable[..., ProtocolStream[Any]]
streams = pytest.mark.parametrize("make", [AgUiStream, VercelStream])


@tool
async def sign_in(url: str, password: str) -> dict[str, Any]:
    """Gives all that it was given, and more."""
    return {"api_key": KEY, "session": {"password": PASSWORD}, "card": CARD}


@tool
async def sign_out(token: str) -> str:
    """Fails, and says too much."""
    raise ToolExecutionError(f"cannot sign out with {KEY}: redis://:{PASSWORD}@host")


async def events_of_a_run() -> list[AgentEvent]:
    seen: list[AgentEvent] = []
    agent = scripted(
        calls(
            call("sign_in", {"url": f"https://ann:{PASSWORD}@x", "password": PASSWORD}),
            call("sign_out", {"token": KEY}),
        ),
        ModelError(f"HTTP 401: incorrect API key {KEY}, Authorization: Basic dXNlcjpodW50ZXIy", status=401),
        tools=[sign_in, sign_out],
        error_policy=ErrorPolicy.ignore_tool_errors(),
        event_handler=seen.append,
    )
    await agent.run("go")
    return seen


def written(stream: ProtocolStream[Any], events: list[AgentEvent]) -> str:
    parts = [part for event in events for part in stream.parts(event)]
    return json.dumps([part if isinstance(part, dict) else part.model_dump_json() for part in parts])


@streams
async def test_no_part_of_a_run_has_a_secret_in_it(make: Make) -> None:
    text = written(make(), await events_of_a_run())
    assert [secret for secret in (KEY, PASSWORD, "dXNlcjpodW50ZXIy") if secret in text] == []
    assert "incorrect API key [removed]" in text
    assert "cannot sign out with [removed]" in text
    assert CARD in text


@streams
async def test_people_s_own_patterns_hold_for_a_stream(make: Make) -> None:
    text = written(make(redaction=Redaction(patterns=(r"\d{16}",))), await events_of_a_run())
    assert CARD not in text


@streams
async def test_redaction_can_be_switched_off(make: Make) -> None:
    assert KEY in written(make(redaction=None), await events_of_a_run())


@streams
async def test_the_error_of_a_run_that_breaks_off_has_no_secret(make: Make) -> None:
    stream = make()
    first, *_ = await events_of_a_run()
    stream.parts(first)
    [*_, last] = [str(part) for part in stream.break_off(f"cannot reach postgres://a:{PASSWORD}@db")]
    assert PASSWORD not in last
