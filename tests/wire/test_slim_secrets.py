"""Secrets leave a slim snapshot before anything else happens to it."""

from __future__ import annotations

import json
import time
from typing import Any

from msgspec.structs import replace

from tests.support import START, session, tool_failure
from tests.wire.support import read, saying, slim
from whyloop import (
    Approval,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    FilePart,
    ImagePart,
    Message,
    ModelSource,
    Redaction,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    TextPart,
    ToolCall,
    Verdict,
)
from whyloop.values.approval import Question
from whyloop.values.encoding import UNREADABLE
from whyloop.values.log import Log
from whyloop.values.messages import CallChange
from whyloop.values.step import RequestPart

TOKEN = "sk-proj-abcdefghijklmnop1234"


def test_a_value_is_marked_by_a_key_that_says_secret() -> None:
    state = session().with_metadata(card={"secret": "4111"}, secret_note="x", name="Ann")
    assert slim(state)["metadata"] == {
        "card": {"secret": "[removed]"},
        "secret_note": "[removed]",
        "name": "Ann",
    }


def test_redaction_can_be_switched_off() -> None:
    state = saying(Message.user(TOKEN)).with_metadata(password="hunter2")
    document = slim(state, redaction=None)
    assert document["metadata"] == {"password": "hunter2"}
    assert read(document).messages[0].text == TOKEN


def test_secrets_are_removed_from_every_field_of_a_state() -> None:
    outcome = ContinuationOutcome(
        ContinuationDecision.FORBID_CONTINUATION,
        "Guard",
        None,
        (
            ContinuationEvaluation(
                "Guard",
                ContinuationDecision.FORBID_CONTINUATION,
                f"saw {TOKEN}",
                {"seen": [TOKEN]},
                feedback=f"do not use {TOKEN}",
            ),
        ),
    )
    state = session(
        steps=1, tool_calls=1, failures=[replace(tool_failure(message=TOKEN), details={"x": TOKEN})]
    )
    assert state.current_step is not None
    step = replace(
        state.current_step,
        tool_calls=(replace(state.current_step.tool_calls[0], success=False, error=TOKEN),),
        source=ModelSource(notes=(TOKEN,)),
    )
    said = [
        Message.system(TOKEN),
        Message.user(
            [TextPart(TOKEN), ImagePart(url=f"https://x/{TOKEN}"), FilePart(name=TOKEN, data="AAAA")]
        ),
        replace(
            Message.assistant(TOKEN, [ToolCall("1", "echo", {TOKEN: TOKEN}, (CallChange("Cap", TOKEN),))]),
            extras={"x": {"y": TOKEN}},
            reasoning=TOKEN,
        ),
        Message.result(json.dumps({"x": TOKEN}), tool_call_id="1", tool="echo"),
        Message.assistant("", [ToolCall("2", "echo", f"{{{TOKEN}")]),
        replace(Message.assistant("ok"), extras={"x": {TOKEN: 1}}),
        replace(Message.developer(TOKEN), source=("Guard",)),
    ]
    approval = Approval(Verdict.DENIED, "ada", START, TOKEN, TOKEN, {"x": TOKEN}, "q")
    execution = replace(
        state.execution, stop_request=TOKEN, question=Question("q", TOKEN), approvals=(approval,)
    )
    state = replace(
        state,
        messages=Log(said),
        steps=Log([step]),
        metadata={"a": {TOKEN: [TOKEN]}},
        execution=execution,
        last_continuation_outcome=outcome,
        request_parts=Log([RequestPart("1", f"Use {TOKEN}."), RequestPart("2", "Be brief.")]),
    )
    for config in (
        SlimSerializationConfig.minimal(),
        SlimSerializationConfig(),
        SlimSerializationConfig.full(),
    ):
        text = json.dumps(SlimAgentStateSerializer(config).serialize(state))
        assert "abcdefgh" not in text
        assert "[removed]" in text
    # A text goes by its hash, so it is there as it was or not at all.
    assert read(json.loads(text)).request_parts == [RequestPart("2", "Be brief.")]
    assert json.loads(text)["truncated"]["details"] == 1


def test_a_secret_is_removed_before_a_cut_could_leave_half_of_it() -> None:
    document = slim(saying(Message.user(f"12345 {TOKEN}")), max_content_length=20)
    assert document["messages"][0]["content"] == "12345 [removed]"
    assert document["truncated"]["contents"] == 0


def test_a_value_that_cannot_be_written_is_marked() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200_000):
        deep = {"a": deep}
    looped: list[Any] = []
    looped.append(looped)
    odd = {"deep": deep, "looped": looped, "fine": 1}
    assert slim(replace(session(), metadata=odd))["metadata"] == {
        "deep": UNREADABLE,
        "looped": UNREADABLE,
        "fine": 1,
    }
    steep: Any = "x"
    for _ in range(300):
        steep = [steep]
    assert UNREADABLE in json.dumps(slim(session().with_metadata(steep=steep)))


def test_no_more_of_a_long_text_is_read_than_is_shown() -> None:
    """A text that is shortened anyway takes no longer than a short one."""
    text = "say password: a1a1a1 now and then\n" * 300_000
    started = time.process_time()
    document = slim(saying(Message.user(text)), max_content_length=1000)
    assert time.process_time() - started < 0.1
    assert "a1a1" not in document["messages"][0]["content"]
    assert len(document["messages"][0]["content"]) == 1000
    assert document["truncated"]["contents"] == 1


def test_people_s_own_patterns_hold_for_a_snapshot() -> None:
    state = saying(Message.user("card 4111111111111111"))
    document = slim(state, redaction=Redaction(patterns=(r"\b\d{16}\b",)))
    assert document["messages"][0]["content"] == "card [removed]"
