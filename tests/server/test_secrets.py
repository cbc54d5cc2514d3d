"""No answer contains a credential from a tool or a note, and all texts are data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.support import Answer, Lab, agent_with
from tests.support import scripted
from whyloop import Agent, ErrorPolicy, Redaction, Tool, tool
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ToolExecutionError
from whyloop.stores import MemoryStore, Store
from whyloop.testing import Reply, call, calls

KEY, PASSWORD = "sk-proj-0123456789abcdefghijklmnop", "hunter2-and-more"
READ = ("", "/messages", "/trace", "/events")


def patient(tools: list[Tool], *replies: Reply | str) -> Agent:
    """An agent that goes on whatever its tools do."""
    return scripted(*replies, tools=tools, error_policy=ErrorPolicy.retry_all())


async def every_answer(lab: Lab, path: str) -> list[Answer]:
    answers = [await lab.get(path + part) for part in READ]
    answers.append(await lab.get("/sessions"))
    answers.append(await lab.get(f"{path}/trace", query={"brief": "true"}))
    answers.append(await lab.get(f"{path}/events", headers={"accept": "text/event-stream"}, until=b"paused"))
    said = await lab.client.socket(f"{path}/events", hear=2)
    return answers + [Answer(200, {}, each["text"].encode()) for each in said if "text" in each]


def has_secret(answer: Answer) -> bool:
    return any(secret.encode() in answer.body for secret in (KEY, PASSWORD))


@tool
async def sign_in(url: str, password: str, headers: dict[str, str]) -> dict[str, Any]:
    """Gives all that it was given, and more."""
    return {"api_key": KEY, "session": {"password": PASSWORD}, "said": f"{url} password={PASSWORD} {KEY}"}


@tool
async def sign_out(token: str) -> str:
    """Fails, and says too much."""
    raise ToolExecutionError(f"cannot sign out with {KEY}: password={PASSWORD}")


@tool(needs_approval=True)
async def pay(card: str, password: str) -> str:
    return f"paid with password={PASSWORD}"


ARGUMENTS = {
    "url": f"https://ann:{PASSWORD}@example.com/?key={KEY}",
    "password": PASSWORD,
    "headers": {"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY},
}


async def test_no_answer_has_a_secret_of_a_tool_or_a_note_in_it(store: Store) -> None:
    agent = patient(
        [sign_in, sign_out, pay],
        calls(call("sign_in", ARGUMENTS), call("sign_out", {"token": KEY})),
        call("sign_in", f'{{"url": "x", "password": "{PASSWORD}", '),
        call("pay", {"card": KEY, "password": PASSWORD}),
        "paid",
    )
    lab = Lab(store, agent)
    notes = {"api_key": KEY, "note": f"it is {KEY}", "nested": {"password": PASSWORD, KEY: 1}, "user": "ann"}
    made = await lab.post("/sessions", {"agent_id": "a", "metadata": notes})
    assert made.json["session"]["metadata"]["user"] == "ann"
    sent = await lab.post("/sessions/a/messages", {"text": "Pay it."})
    await lab.rest()
    waiting = await lab.get("/sessions/a")
    [pending] = waiting.json["pending_calls"]
    answers = [made, sent, *await every_answer(lab, "/sessions/a")]
    decided = {
        "question_id": pending["id"],
        "arguments": {"card": KEY, "password": PASSWORD},
    }
    answers.append(await lab.post("/sessions/a/approve", decided))
    answers.append(await lab.post("/sessions/a/resume"))
    await lab.rest()
    answers += await every_answer(lab, "/sessions/a")
    assert [answer.body for answer in answers if has_secret(answer)] == []
    assert sum(b"[removed]" in answer.body for answer in answers) > 8
    stored = "".join((await store.read("a")).entries)
    assert KEY in stored
    assert PASSWORD in stored
    await lab.server.close()


async def test_a_title_has_no_secret_in_it_though_the_question_stays_as_it_was(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    path = await lab.asked("a", f"Use {KEY} please, password={PASSWORD}")
    for answer in (await lab.get(path), await lab.get("/sessions"), await lab.get(f"{path}/trace")):
        assert not has_secret(answer)
    assert (await lab.get(path)).json["session"]["title"].startswith("Use [removed] please")
    said = (await lab.get(f"{path}/messages")).json["messages"][0]["content"]
    assert said == f"Use {KEY} please, password={PASSWORD}"


async def test_custom_patterns_apply_to_every_answer(store: Store) -> None:
    config = BroadcastConfig(redaction=Redaction(patterns=(r"card-\d+",)))
    lab = Lab(store, agent_with(call("pay", {"amount": 7, "password": "card-17"}), "ok"), config=config)
    path = await lab.asked("a", "Use card-17", note="it is card-17")
    answers = [await lab.get(path + part) for part in ("", "/trace", "/events")]
    answers.append(await lab.get("/sessions"))
    answers.append(await lab.post(f"{path}/approve", {"question_id": "another"}))
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 409]
    assert not any(b"card-17" in answer.body for answer in answers)
    metadata = (await lab.get(path)).json["session"]["metadata"]
    assert metadata == {"note": "it is [removed]"}


async def test_reasons_of_decisions_have_no_secrets_in_the_trace(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 7}), call("pay", {"amount": 8})))
    path = await lab.asked()
    [pending] = (await lab.get(path)).json["pending_calls"]
    await lab.post(f"{path}/deny", {"question_id": pending["id"], "reason": f"{KEY} is wrong", "by": KEY})
    await lab.post(f"{path}/resume")
    await lab.rest()
    await lab.post(f"{path}/stop", {"reason": f"password={PASSWORD}"})
    for part in READ:
        assert not has_secret(await lab.get(path + part))


# Whatever it is

HOSTILE = {
    "script": "<script>alert(1)</script></textarea><img src=x onerror=alert(1)>",
    "direction": "\u202egnp.exe\u2066\u200f",
    "control": "".join(map(chr, range(32))) + "\x7f\x85\u2028\u2029",
    "surrogates": "half \ud800 and \udfff",
    "nothing": "\x00\ufffe\uffff",
    "quotes": "\"'`\\${x}{{x}}%00%s",
    "frames": "a\r\n\r\ndata: b\nid: 7\n\n",
    "long": "x" * 900_000,
    "planes": "🎈\U0010ffff" * 1000,
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_texts_of_questions_tools_and_models_come_back_as_data(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = HOSTILE[name]
    shown = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    @tool
    async def say() -> str:
        return text

    agent = patient([say], calls(call("say"), call(text[:1000], {text[:50]: text})), text)
    lab = Lab(MemoryStore(), agent)
    path = await lab.made("a", **{"note": shown[:2000], shown[:50]: 1})
    sent = await lab.post(f"{path}/messages", {"text": shown})
    assert sent.status == 202
    await lab.rest()
    messages = (await lab.get(f"{path}/messages")).json["messages"]
    assert (messages[0]["content"], messages[-1]["content"]) == (shown, shown)
    result = next(each for each in messages if each["role"] == "tool")["content"]
    assert result[:100_000] == shown[:100_000]
    session = (await lab.get(path)).json
    assert session["last_response"] == shown
    assert session["session"]["metadata"]["note"] == shown[:2000]
    for part in ("/trace", "/events"):
        answer = await lab.get(path + part)
        assert answer.status == 200
        json.dumps(answer.json, ensure_ascii=False).encode()
    assert (await lab.get("/sessions")).status == 200
    assert not caplog.records
    await lab.server.close()


async def test_a_session_of_any_name_is_named_in_a_refusal_as_data(lab: Lab) -> None:
    answer = await lab.get("/sessions/%3Cscript%3Ealert(1)%3C%2Fscript%3E%0A")
    assert (answer.status, answer.error) == (404, "session_not_found")
    assert "<script>" in answer.message
