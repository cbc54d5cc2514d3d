"""Secrets leave a slim snapshot before anything else happens to it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
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
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    TextPart,
    ToolCall,
    Verdict,
)
from whyloop.values.approval import Question
from whyloop.values.log import Log
from whyloop.values.messages import CallChange
from whyloop.values.secrets import SECRET_KEYS
from whyloop.values.step import RequestPart
from whyloop.wire.redact import UNREADABLE, Redactor

TOKEN = "sk-proj-abcdefghijklmnop1234"
redacted = Redactor(SlimSerializationConfig()).data


KEYS = """
password PASSWD db_password userPassword secret client_secret ClientSecret token accessToken refresh-token
api_key apikey X-Api-Key API.KEY authorization Authorization Cookie Set-Cookie private_key privateKey
credential credentials aws_secret_access_key passphrase jwt
"""


@pytest.mark.parametrize("key", KEYS.split())
@pytest.mark.parametrize("value", ["hunter2", ["hunter2"], {"user": "hunter2"}])
def test_a_value_whose_name_looks_like_a_credential_is_removed(key: str, value: object) -> None:
    assert redacted({key: value, "other": [{key: value}]}) == {
        key: "[removed]",
        "other": [{key: "[removed]"}],
    }


def test_a_number_can_be_a_password_but_not_a_token() -> None:
    numbers = {"password": 1234, "max_tokens": 1234, "tokens": 7.5}
    assert redacted(numbers) == {**numbers, "password": "[removed]"}


def test_nothing_at_all_is_no_secret() -> None:
    nothing: dict[str, object] = {
        "password": None,
        "has_password": True,
        "token": "",
        "cookies": [],
        "secret": {},
    }
    assert redacted(nothing) == nothing


@pytest.mark.parametrize(
    "text",
    [
        TOKEN,
        f"use {TOKEN}, please",
        "AKIAABCDEFGHIJKLMNOP",
        "AIza" + "x" * 35,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghij",
        "Authorization: Bearer abcdefghijklmnop",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIEow",
        "postgres://ann:hunter2@db/x",
        "API_KEY=hunter2",
        "export DB_PASSWORD='hunter2 and more'",
        "https://example.com/?token=hunter2&page=2",
        "password: hunter2",
        "X-Api-Key: hunter2",
        "{'password': 'hunter2'}",
        '{"password": "hunter2", "cut off',
        '{"a": {"b": [{"password": "hunter2"}]}}',
        '{"a": "{\\"password\\": \\"hunter2\\"}"}',
        '[cut] {"a": "{\\"password\\": \\"hunter2\\"}',
        '{"password": "hunter2", "password": null}',
        '"credentials": {"user": "hunter2"}, "tokens": ["hunter2"]',
    ],
)
def test_a_secret_in_a_text_is_removed_and_stays_removed(text: str) -> None:
    once = redacted(text)
    assert "[removed]" in once
    assert not any(secret in once for secret in ("hunter2", "MIIE", "abcdefghij", "KLMNOP", "xxxx"))
    assert redacted(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The password is not known to me.",
        "Unexpected token: <",
        "max_tokens=400",
        "if token == expected:",
        "token => value",
        '{"total_tokens":12,"secret":null}',
        '{ "spaced" : "as it came" }',
        "https://example.com:8080/a@b",
        "{not json",
    ],
)
def test_an_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


def test_json_stays_json() -> None:
    text = json.dumps({"password": "x", "n": [1, {"note": f'say "{TOKEN}"'}], "e": "é"})
    assert json.loads(redacted(text)) == {
        "password": "[removed]",
        "n": [1, {"note": 'say "[removed]"'}],
        "e": "é",
    }


def test_people_s_own_patterns_and_keys() -> None:
    config = SlimSerializationConfig(secret_patterns=(r"\b\d{16}\b",), secret_keys=(*SECRET_KEYS, "iban"))
    shown = Redactor(config).data(
        {"card": "pay 4111111111111111", "n": 4111111111111111, "IBAN": "DE1", "x": 1}
    )
    assert shown == {"card": "pay [removed]", "n": "[removed]", "IBAN": "[removed]", "x": 1}


def test_a_value_is_marked_by_a_key_that_says_secret() -> None:
    state = session().with_metadata(card={"secret": "4111"}, secret_note="x", name="Ann")
    assert slim(state)["metadata"] == {
        "card": {"secret": "[removed]"},
        "secret_note": "[removed]",
        "name": "Ann",
    }


def test_it_can_be_switched_off() -> None:
    state = saying(Message.user(TOKEN)).with_metadata(password="hunter2")
    document = slim(state, redact=False)
    assert document["metadata"] == {"password": "hunter2"}
    assert read(document).messages[0].text == TOKEN


def test_no_place_in_a_state_is_forgotten() -> None:
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
        Message.tool(json.dumps({"x": TOKEN}), tool_call_id="1", tool_name="echo"),
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


def test_what_cannot_be_written_is_named_so() -> None:
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


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "A",
            " ",
            "- ",
            "a.",
            "sk-a.",
            "://a",
            '"\\',
            "password",
            "password=\n",
            "password=[",
            'password":"',
            "-" * 100 + "\n",
            "-" * 60 + "password\n",
        ),
        *("-eyJaaaaaaaaaaa", "-----BEGIN PRIVATE KEY-----", "Bearer aaaaaaa "),
    ],
)
def test_a_long_text_takes_no_longer_than_its_length(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    started = time.process_time()
    redacted(text)
    assert time.process_time() - started < 1
