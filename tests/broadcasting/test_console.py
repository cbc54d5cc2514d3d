"""A run on a screen: one safe line an event, and no stream breaks it."""

from __future__ import annotations

import io
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given

from tests.broadcasting.support import envelope
from tests.support import scripted
from tests.wire.test_envelope_golden import golden
from tests.wire.test_envelope_schema import configs, events
from whyloop.broadcasting import AgentConsoleLogger, AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.events import AgentEvent
from whyloop.wire.envelope import envelope as envelope_of

HOSTILE = "\x1b[2J\x07\u202egnol\u2066 \x9b31m\r\n\u2028\ud800<script>\x00"


def written(*envelopes: dict[str, Any], **options: Any) -> list[str]:
    stream = io.StringIO()
    AgentConsoleLogger(stream, **options).broadcast_batch(envelopes)
    return stream.getvalue().removesuffix("\n").split("\n")


def test_a_run_reads_like_this() -> None:
    first = [each for each in golden()["debug"] if each["execution_id"] == "id-1"]
    lines = written(*first)
    assert lines[:4] == [
        "10:05:01.123 [id-2]   1 status         pending → in_progress",
        "10:05:01.123 [id-2]   2 step.started   step 1, 1 messages",
        "10:05:01.123 [id-2]   3 stream.chunk   'I look both up.'",
        "10:05:01.123 [id-2]   4 stream.chunk   (complete)",
    ]
    assert lines[-1].endswith("status         in_progress → completed (completed): There are “four”.")
    assert any("search, 1250 ms: FAILED: " in line for line in lines)
    assert any(line.endswith("continuation   CONTINUE by ToolCallPresenceCheck") for line in lines)
    assert len(lines) == len(first)


def test_with_json_each_line_is_the_envelope() -> None:
    lines = written(*golden()["debug"], json=True)
    assert [json.loads(line) for line in lines] == golden()["debug"]


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_in_a_line_steers_a_terminal(as_json: bool) -> None:
    told = envelope("chunk", chunk=HOSTILE * 50, chunk_index=0, is_complete=False)
    status = envelope("status", previous_status=HOSTILE, status="failed", stop_reason="error")
    status["data"] |= {"error_message": HOSTILE, "last_response": None}
    for line in written(told, status, envelope("agent.unknown", text=HOSTILE), json=as_json):
        assert not {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(events, configs)
def test_whatever_happens_is_one_short_line(event: AgentEvent, config: BroadcastConfig) -> None:
    told = envelope_of(event, 1, config)
    if told is not None:
        logger = AgentConsoleLogger(stream := io.StringIO(), width=80)
        logger.broadcast(told)
        assert logger.dropped == {}
        (line,) = stream.getvalue().splitlines()
        assert line.isprintable()
        assert len(line) <= 80


def test_a_long_line_is_cut() -> None:
    (line,) = written(envelope("chunk", chunk="x" * 1_000_000, chunk_index=0, is_complete=False))
    assert len(line) == 160
    assert line.endswith("x…")


def test_a_stream_that_knows_few_letters_gets_the_others_described() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    AgentConsoleLogger(stream).broadcast(envelope("chunk", chunk="ö→", chunk_index=0, is_complete=False))
    stream.seek(0)
    assert "'\\xf6\\u2192'" in stream.read()


def test_it_writes_to_the_error_stream_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    AgentConsoleLogger().broadcast(envelope("step", step_number=1, message_count=2))
    assert "step 1, 2 messages" in capsys.readouterr().err


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_stream_that_is_closed_or_broken_breaks_nothing() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, Broken()):
        logger = AgentConsoleLogger(stream)
        logger.broadcast(envelope("step", step_number=1, message_count=2))
        assert logger.dropped == {"agent.step.started": 1}


async def test_a_run_is_written_as_it_happens() -> None:
    stream = io.StringIO()
    agent = scripted("done")
    agent.subscribe(AgentEventEnvelopeAdapter(AgentConsoleLogger(stream)))
    await agent.run("go")
    lines = stream.getvalue().splitlines()
    assert "pending → in_progress" in lines[0]
    assert lines[-1].endswith("in_progress → completed (completed): done")
