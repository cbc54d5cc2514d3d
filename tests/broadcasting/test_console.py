"""A run on a screen: one safe line an event, and no stream breaks it."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given

from tests.broadcasting.support import envelope
from tests.support import scripted
from tests.wire.test_envelope_golden import golden
from tests.wire.test_envelope_schema import configs, events
from whyloop import ErrorPolicy
from whyloop.broadcasting import AgentConsoleLogger, AgentEventEnvelopeAdapter, BroadcastConfig
from whyloop.errors import ModelError
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
    assert lines[1:5] == [
        "10:05:01.123 [id-2]   1 status             pending → in_progress",
        "10:05:01.123 [id-2]   1 step.started       step 1 started (1 message, 1 tool)",
        "10:05:01.123 [id-2]   1 stream.chunk       'I look both up.'",
        "10:05:01.123 [id-2]   1 stream.chunk       (complete)",
    ]
    assert len(lines) == len(first)
    assert any("search (1250 ms): FAILED: " in line for line in lines)
    assert any(line.endswith("retry              Tool error, retrying (1/3)") for line in lines)
    requested = "CONTINUE (requested by ToolCallPresenceCheck): The results of 2 tool calls await the model"
    assert any(line.endswith(f"continuation       {requested}") for line in lines)


LIMITED = next(
    each["execution_id"] for each in golden()["debug"] if each["data"].get("stop_reason") == "steps_limit"
)


def test_every_line_about_the_end_of_a_run_has_the_rule_and_its_reason() -> None:
    envelopes = golden()["debug"]
    lines = [
        line.split(maxsplit=4)[-1]
        for each, line in zip(envelopes, written(*envelopes, width=400), strict=True)
        if each["execution_id"] == LIMITED
    ]
    ends = [line for line in lines if "stopped" in line or "STOP" in line]
    by = "by StepsLimit: Limit reached: 3 of 3 steps used"
    assert ends == [
        f"STOP (steps_limit) {by}",
        f"in_progress → stopped (steps_limit) {by}",
        f"execution stopped (steps_limit) {by}",
    ]


def test_a_question_and_its_answer_read_like_this() -> None:
    paying = [each for each in golden()["standard"] if each["event"].startswith("agent.approval")]
    asked, other, approved, denied = [line.split(maxsplit=3)[3] for line in written(*paying)]
    assert asked.startswith("approval.requested pay waits for approval (question ")
    assert asked.endswith(": pay(amount: 7, password: '[removed]') changed by Cap")
    assert "changed by" not in other
    assert re.fullmatch(r"approval.decided   pay approved by ada \(question [-\w]+\)", approved)
    assert "pay denied by ada: once is enough (question" in denied


def test_with_json_each_line_is_the_envelope() -> None:
    lines = written(*golden()["debug"], json=True)
    assert [json.loads(line) for line in lines] == golden()["debug"]


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_in_a_line_steers_a_terminal(as_json: bool) -> None:
    told = envelope("chunk", kind="text", chunk=HOSTILE * 50, chunk_index=0, is_complete=False)
    status = envelope("status", previous_status=HOSTILE, status="failed", stop_reason="error")
    status["data"] |= {"resolved_by": HOSTILE, "reason": HOSTILE}
    for line in written(told, status, envelope("agent.unknown", text=HOSTILE), json=as_json):
        assert not {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(events, configs)
def test_every_event_is_one_short_line(event: AgentEvent, config: BroadcastConfig) -> None:
    told = envelope_of(event, config)
    if told is not None:
        logger = AgentConsoleLogger(stream := io.StringIO(), width=80)
        logger.broadcast(told)
        assert logger.dropped == {}
        (line,) = stream.getvalue().splitlines()
        assert line.isprintable()
        assert len(line) <= 80


def test_a_long_line_is_cut() -> None:
    (line,) = written(envelope("chunk", kind="text", chunk="x" * 1_000_000, chunk_index=0, is_complete=False))
    assert len(line) == 160
    assert line.endswith("x…")


def test_a_stream_that_knows_few_letters_gets_the_others_described() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    AgentConsoleLogger(stream).broadcast(
        envelope("chunk", kind="text", chunk="ö→", chunk_index=0, is_complete=False)
    )
    stream.seek(0)
    assert "'\\xf6\\u2192'" in stream.read()


def test_it_writes_to_the_error_stream_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    AgentConsoleLogger().broadcast(envelope("step", step_number=1, message_count=2, available_tools=[]))
    assert "step 1 started (2 messages, 0 tools)" in capsys.readouterr().err


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_stream_that_is_closed_or_broken_breaks_nothing() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, Broken()):
        logger = AgentConsoleLogger(stream)
        logger.broadcast(envelope("step", step_number=1, message_count=2, available_tools=[]))
        assert logger.dropped == {"agent.step.started": 1}


async def test_a_run_is_written_as_it_happens() -> None:
    stream = io.StringIO()
    agent = scripted("done")
    agent.subscribe(AgentEventEnvelopeAdapter(AgentConsoleLogger(stream)))
    await agent.run("go")
    lines = stream.getvalue().splitlines()
    assert "pending → in_progress" in lines[0]
    by = "by ToolCallPresenceCheck: The model answered and asked for no tools"
    assert lines[-1].endswith(f"in_progress → completed (completed) {by}")


async def test_a_failed_run_ends_with_its_last_failure() -> None:
    stream = io.StringIO()
    busy = ModelError("HTTP 529: busy", status=529)
    agent = scripted(busy, busy, error_policy=ErrorPolicy.retry_all(1))
    agent.subscribe(AgentEventEnvelopeAdapter(AgentConsoleLogger(stream, width=200)))
    await agent.run("go", state=agent.new_session("customer-42"))
    line = stream.getvalue().splitlines()[-1]
    assert "[customer-42]" in line
    assert line.endswith("Rate limit error after 2 consecutive failures (max: 1): HTTP 529: busy")
