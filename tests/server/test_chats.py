"""Clients of AG-UI and of the AI SDK have conversations that last: over requests, pauses and reloads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.support import Answer, Json, Lab, agent_with, pay
from tests.support import RespondingModel
from whyloop import Agent, FinishReason, ModelRequest, ModelResponse, ReasoningDelta, TextDelta, ToolCall
from whyloop.server import Access, chats
from whyloop.stores import MemoryStore, Store
from whyloop.testing import call, calls

DECLARED = {"protocolVersion": "1.0"}


def user(text: str, own_id: str = "m1") -> Json:
    return {"id": own_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def data_of(answer: Answer) -> list[Json]:
    """The parts of a stream."""
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.body.decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def types(parts: list[Json]) -> list[str]:
    return [part["type"] for part in parts]


def text_of(parts: list[Json]) -> str:
    return "".join(part["delta"] for part in parts if part["type"] in ("text-delta", "TEXT_MESSAGE_CONTENT"))


class Chatting:
    """A client of each protocol that talks about one session."""

    def __init__(self, lab: Lab, own_id: str = "chat") -> None:
        self.lab = lab
        self.own_id = own_id

    async def vercel(self, *messages: Json, **more: Any) -> list[Json]:
        sent = {"id": self.own_id, "messages": list(messages), **more}
        return data_of(await self.lab.post("/vercel", sent, until=b"[DONE]"))

    async def vercel_messages(self) -> list[Json]:
        found: list[Json] = (await self.lab.get(f"/vercel/{self.own_id}/messages")).json["messages"]
        return found

    async def vercel_stream(self, until: bytes = b"[DONE]") -> list[Json]:
        return data_of(await self.lab.get(f"/vercel/{self.own_id}/stream", until=until))

    async def ag_ui(
        self, *messages: Json, until: bytes = b'"type":"RUN_FINISHED"', **more: Any
    ) -> list[Json]:
        sent = {"threadId": self.own_id, "runId": "run", "messages": list(messages), **DECLARED, **more}
        return data_of(await self.lab.post("/ag-ui", sent, until=until))


def answered(approved: bool, question_id: str, **more: Any) -> Json:
    """The assistant's message of the AI SDK after a person has answered."""
    approval = {"id": question_id, "approved": approved, **more}
    part = {"type": "tool-pay", "state": "approval-responded", "approval": approval}
    return {"id": "a", "role": "assistant", "parts": [part]}


def remembering() -> Agent:
    """One that says how many questions it was asked."""

    async def respond(request: ModelRequest) -> AsyncIterator[ModelResponse]:
        yield ModelResponse(str(sum(message.is_user for message in request.messages)))

    return Agent(RespondingModel(respond))


async def test_a_conversation_is_a_session_that_remembers(store: Store) -> None:
    chat = Chatting(Lab(store, remembering()))
    assert text_of(await chat.vercel(user("one"))) == "1"
    # Of what the client sends only the last message counts: it could write any history.
    made_up = {"id": "x", "role": "assistant", "parts": [{"type": "text", "text": "I never said this."}]}
    assert text_of(await chat.vercel(made_up, user("two", "m2"))) == "2"
    parts = await chat.ag_ui({"id": "m3", "role": "user", "content": "three"})
    assert text_of(parts) == "3"
    assert (parts[0]["type"], parts[0]["threadId"], parts[0]["runId"]) == ("RUN_STARTED", "chat", "run")
    assert parts[-1]["outcome"] == {"type": "success"}
    messages = await chat.vercel_messages()
    said = [part["text"] for each in messages for part in each["parts"] if part["type"] == "text"]
    assert said == ["one", "1", "two", "2", "three", "3"]
    assert [each["agent_id"] for each in (await chat.lab.get("/sessions")).json["sessions"]] == ["chat"]
    await chat.lab.server.close()


async def test_a_message_that_is_sent_again_is_asked_once(store: Store) -> None:
    chat = Chatting(Lab(store, remembering()))
    first = await chat.vercel(user("one"))
    assert await chat.vercel(user("one")) == first
    connected = await chat.ag_ui({"id": "m1", "role": "user", "content": "one"})
    assert types(connected) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert text_of(await chat.vercel(user("two", "m2"))) == "2"
    await chat.lab.server.close()


async def test_a_denial_and_an_approval_of_the_ai_sdk_continue_the_run(store: Store) -> None:
    asked = calls(call("pay", {"amount": 5}, id="pay_1"), call("pay", {"amount": 7}, id="pay_2"))
    chat = Chatting(Lab(store, agent_with(asked, "Done.")))
    parts = await chat.vercel(user("Pay"))
    first, second = [part["approvalId"] for part in parts if part["type"] == "tool-approval-request"]
    assert parts[-1] == {"type": "finish", "finishReason": "tool-calls"}
    both = answered(False, first, reason="too much")
    both["parts"] += answered(True, second)["parts"]
    parts = await chat.vercel(user("Pay"), both)
    assert [part["data"]["verdict"] for part in parts[1:] if "decision" in part["type"]] == [
        "denied",
        "approved",
    ]
    assert types(parts)[:3] == ["start", "data-whyloop-decision", "tool-output-denied"]
    assert [part["output"] for part in parts if part["type"] == "tool-output-available"] == ["paid 7"]
    assert parts[-1] == {"type": "finish", "finishReason": "stop"}
    _, message = await chat.vercel_messages()
    tools = [part for part in message["parts"] if part["type"] == "tool-pay"]
    assert [(part["state"], part["input"]["amount"]) for part in tools] == [
        ("output-denied", 5),
        ("output-available", 7),
    ]
    await chat.lab.server.close()


async def test_an_interrupt_of_ag_ui_is_answered_with_other_arguments(store: Store) -> None:
    chat = Chatting(Lab(store, agent_with(call("pay", {"amount": 7}, id="pay_1"), "Done.")))
    parts = await chat.ag_ui({"id": "m1", "role": "user", "content": "Pay"})
    (interrupt,) = parts[-1]["outcome"]["interrupts"]
    # After a reload the question is still there.
    reloaded = await chat.ag_ui()
    assert reloaded[-1]["outcome"]["interrupts"] == [interrupt]
    payload = {"approved": True, "arguments": {"amount": 6}}
    entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
    parts = await chat.ag_ui(resume=[entry])
    assert [part["value"]["verdict"] for part in parts if part.get("name") == "whyloop.decision"] == [
        "edited"
    ]
    (result,) = [part for part in parts if part["type"] == "TOOL_CALL_RESULT"]
    assert result["content"].endswith("paid 6")
    assert text_of(parts) == "Done."
    await chat.lab.server.close()


async def test_an_interrupt_that_is_cancelled_is_a_denial() -> None:
    chat = Chatting(Lab(MemoryStore(), agent_with(call("pay", {"amount": 7}, id="pay_1"), "Done.")))
    parts = await chat.ag_ui({"id": "m1", "role": "user", "content": "Pay"})
    (interrupt,) = parts[-1]["outcome"]["interrupts"]
    parts = await chat.ag_ui(resume=[{"interruptId": interrupt["id"], "status": "cancelled"}])
    results = [part for part in parts if part["type"] == "TOOL_CALL_RESULT"]
    assert [part["metadata"]["whyloop"]["denied"] for part in results] == [True]


async def test_answers_to_some_of_the_questions_are_kept_and_the_others_awaited() -> None:
    asked = calls(call("pay", {"amount": 5}, id="pay_1"), call("pay", {"amount": 7}, id="pay_2"))
    chat = Chatting(Lab(MemoryStore(), agent_with(asked, "Done.")))
    parts = await chat.vercel(user("Pay"))
    first, second = [part["approvalId"] for part in parts if part["type"] == "tool-approval-request"]
    sent = {"id": "chat", "messages": [answered(True, first)]}
    refused = await chat.lab.post("/vercel", sent)
    assert (refused.status, refused.error) == (409, "not_decided")
    parts = await chat.vercel(answered(True, second))
    assert [part["output"] for part in parts if "output" in part] == ["paid 5", "paid 7"]


async def test_a_reload_shows_which_questions_were_decided_elsewhere(store: Store) -> None:
    asked = calls(call("pay", {"amount": 5}, id="pay_1"), call("pay", {"amount": 7}, id="pay_2"))
    chat = Chatting(Lab(store, agent_with(asked, "Done.")))
    parts = await chat.vercel(user("Pay"))
    first, second = [part["approvalId"] for part in parts if part["type"] == "tool-approval-request"]
    await chat.lab.post("/sessions/chat/deny", {"question_id": first, "reason": "no", "by": "ann"})
    _, message = await chat.vercel_messages()
    tools = [part for part in message["parts"] if part["type"] == "tool-pay"]
    assert [(part["state"], part["input"]["amount"]) for part in tools] == [
        ("output-denied", 5),
        ("approval-requested", 7),
    ]
    _, snapshot, end = await chat.ag_ui()
    assert [each["id"] for each in end["outcome"]["interrupts"]] == [second]
    assert [each["content"] for each in snapshot["messages"] if each["role"] == "tool"] == [
        "denied by ann: no"
    ]
    assert end["result"]["status"] == "paused"
    # The stream of the run that follows begins with both decisions.
    parts = await chat.vercel(answered(True, second))
    assert [part["data"]["by"] for part in parts if part["type"] == "data-whyloop-decision"] == [
        "ann",
        "an unnamed person",
    ]
    await chat.lab.server.close()


class Slow:
    """A model that says a few words, waits until it is let, and says some more."""

    def __init__(self) -> None:
        self.halfway, self.go_on = asyncio.Event(), asyncio.Event()

    async def respond(self, request: ModelRequest) -> AsyncIterator[Any]:
        yield ReasoningDelta("Hm.")
        yield TextDelta("One, ")
        self.halfway.set()
        await self.go_on.wait()
        yield TextDelta("two.")
        yield ModelResponse("One, two.", reasoning="Hm.")

    @property
    def agent(self) -> Agent:
        return Agent(RespondingModel(self.respond), [pay])


async def test_text_streams_while_it_is_made(store: Store) -> None:
    slow = Slow()
    chat = Chatting(Lab(store, slow.agent))
    asking = asyncio.create_task(chat.vercel(user("Count")))
    await asyncio.wait_for(slow.halfway.wait(), 5)
    slow.go_on.set()
    parts = await asking
    assert [part["delta"] for part in parts if part["type"] == "text-delta"] == ["One, ", "two."]
    assert [part["delta"] for part in parts if part["type"] == "reasoning-delta"] == ["Hm."]
    await chat.lab.server.close()


async def test_a_client_that_reloads_during_a_run_gets_all_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    chat = Chatting(Lab(store, slow.agent))
    sent = {"id": "chat", "messages": [user("Count")]}
    await chat.lab.post("/vercel", sent, until=b"One, ")  # It goes away in the middle of the answer.
    messages = await chat.vercel_messages()
    assert [(each["role"], each["parts"][-1]["text"]) for each in messages] == [("user", "Count")]

    api, streams = chat.lab.server._api, []
    respond = api._respond

    def counted(*args: Any) -> Any:
        streams.append(respond(*args))
        return streams[-1]

    monkeypatch.setattr(api, "_respond", counted)
    following, asking = asyncio.create_task(chat.ag_ui()), asyncio.create_task(chat.vercel_stream())
    while len(streams) < 2:  # Both have found the run in progress by then.
        await asyncio.sleep(0)
    slow.go_on.set()
    parts = await asking
    assert text_of(parts) == "One, two."
    assert parts[0]["type"] == "start"
    assert "".join(part["delta"] for part in parts if part["type"] == "reasoning-delta") == "Hm."
    parts = await following
    assert types(parts)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert [(each["role"], each["content"]) for each in parts[1]["messages"]] == [("user", "Count")]
    assert text_of(parts) == "One, two."
    assert (await chat.lab.get("/vercel/chat/stream")).status == 204
    await chat.lab.server.close()


async def test_a_reload_after_an_approval_gets_the_whole_message(store: Store) -> None:
    slow = Slow()

    async def respond(request: ModelRequest) -> AsyncIterator[Any]:
        if len(request.messages) > 1:
            async for item in slow.respond(request):
                yield item
        else:
            wanted = (ToolCall("pay_1", "pay", {"amount": 7}),)
            yield ModelResponse("", wanted, FinishReason.TOOL_CALLS)

    chat = Chatting(Lab(store, Agent(RespondingModel(respond), [pay])))
    parts = await chat.vercel(user("Pay"))
    (question,) = [part["approvalId"] for part in parts if part["type"] == "tool-approval-request"]
    sent = {"id": "chat", "messages": [answered(True, question)]}
    await chat.lab.post("/vercel", sent, until=b"One, ")
    assert [each["role"] for each in await chat.vercel_messages()] == ["user"]
    following = asyncio.create_task(chat.vercel_stream())
    while not chat.lab.server._api._watchers:
        await asyncio.sleep(0)
    slow.go_on.set()
    parts = await following
    assert types(parts).count("start") == 1
    assert [part["type"] for part in parts if part.get("toolCallId") == "pay_1"] == [
        *("tool-input-start", "tool-input-available", "tool-approval-request"),
        *("tool-input-available", "tool-output-available"),
    ]
    assert types(parts)[-2:] == ["message-metadata", "finish"]
    assert types(parts).count("finish") == 1
    await chat.lab.server.close()


async def test_a_fork_that_runs_is_loaded_with_the_history_before_it(store: Store) -> None:
    slow = Slow()

    async def respond(request: ModelRequest) -> AsyncIterator[Any]:
        if len(request.messages) > 1:
            async for item in slow.respond(request):
                yield item
        else:
            wanted = (ToolCall("pay_1", "pay", {"amount": 7}),)
            yield ModelResponse("", wanted, FinishReason.TOOL_CALLS)

    lab = Lab(store, Agent(RespondingModel(respond), [pay]))
    await Chatting(lab).vercel(user("Pay"))
    await lab.post("/sessions/chat/fork", {"agent_id": "fork"})
    fork = Chatting(lab, "fork")
    (question,) = (await lab.get("/sessions/fork")).json["pending_calls"]
    waiting, why = (await fork.vercel_messages())[-1]["parts"][-2:]
    assert (waiting["state"], waiting["approval"]["id"]) == ("approval-requested", question["id"])
    assert why["data"]["resolved_by"] == "ApprovalRequired"
    sent = {"id": "fork", "messages": [answered(True, question["id"])]}
    await lab.post("/vercel", sent, until=b"One, ")
    assert [each["role"] for each in await fork.vercel_messages()] == ["user", "assistant"]
    following = asyncio.create_task(fork.vercel_stream())
    while not lab.server._api._watchers:
        await asyncio.sleep(0)
    slow.go_on.set()
    assert text_of(await following) == "One, two."
    messages = await fork.vercel_messages()
    assert [each["role"] for each in messages] == ["user", "assistant", "assistant"]
    await lab.server.close()


async def test_a_run_that_failed_is_tried_again_by_regenerating() -> None:
    chat = Chatting(Lab(MemoryStore(), agent_with(RuntimeError("it broke"), "Done.")))
    parts = await chat.vercel(user("Go"))
    assert "it broke" in next(part["errorText"] for part in parts if part["type"] == "error")
    parts = await chat.vercel(user("Go"), trigger="regenerate-message")
    assert text_of(parts) == "Done."
    sent = {"id": "chat", "messages": [user("Go")], "trigger": "regenerate-message"}
    refused = await chat.lab.post("/vercel", sent)
    assert (refused.status, refused.error) == (409, "not_resumable")


async def test_a_server_follows_a_run_of_another_until_it_closes(store: Store) -> None:
    slow = Slow()
    chat, other = Chatting(Lab(store, slow.agent)), Chatting(Lab(store, slow.agent))
    asking = asyncio.create_task(chat.vercel(user("Go")))
    await asyncio.wait_for(slow.halfway.wait(), 5)
    following = asyncio.create_task(other.ag_ui(until=b"never"))
    while not other.lab.server._api._watchers:
        await asyncio.sleep(0)
    await other.lab.server.close()
    parts = await asyncio.wait_for(following, 5)
    assert (parts[-1]["type"], parts[-1]["message"]) == ("RUN_ERROR", chats.BROKEN_OFF)
    slow.go_on.set()
    assert text_of(await asking) == "One, two."
    await chat.lab.server.close()


@pytest.mark.parametrize(
    ("path", "sent", "status", "type"),
    [
        ("/vercel", {"id": "chat", "messages": []}, 400, "bad_request"),
        ("/vercel", {"id": "chat", "messages": [user("")]}, 422, "unanswerable"),
        ("/vercel", {"id": "", "messages": [user("x")]}, 400, "bad_request"),
        (
            "/vercel",
            {"id": "chat", "messages": [{"id": "m", "role": "user", "parts": [{"type": "file"}]}]},
            422,
            "unanswerable",
        ),
        (
            "/vercel",
            {"id": "chat", "messages": [{"id": "m", "role": "assistant", "parts": []}]},
            422,
            "unanswerable",
        ),
        ("/vercel", {"id": "chat", "messages": [answered(True, "no such question")]}, 409, "not_pending"),
        ("/ag-ui", {"threadId": "chat"}, 400, "bad_request"),
        (
            "/ag-ui",
            {
                "threadId": "chat",
                "runId": "r",
                "resume": [{"interruptId": "no such question", "status": "resolved"}],
            },
            409,
            "not_pending",
        ),
    ],
)
async def test_an_impossible_request_is_refused_with_a_reason(
    path: str, sent: Json, status: int, type: str
) -> None:
    lab = Lab(MemoryStore(), agent_with("Done."))
    refused = await lab.post(path, sent)
    assert (refused.status, refused.error) == (status, type)


async def test_a_stranger_is_refused_at_every_route() -> None:
    store = MemoryStore()
    await Chatting(Lab(store, remembering())).vercel(user("one"))
    lab = Lab(store, remembering(), access=lambda _: None)
    sent: list[tuple[str, str, Json | None]] = [
        ("POST", "/vercel", {"id": "chat", "messages": [user("two", "m2")]}),
        ("POST", "/ag-ui", {"threadId": "chat", "runId": "r", "messages": []}),
        ("GET", "/vercel/chat/messages", None),
        ("GET", "/vercel/chat/stream", None),
    ]
    for method, path, body in sent:
        assert (await lab.client.call(method, path, send=body)).status == 401


async def test_a_session_of_another_client_is_not_found() -> None:
    store = MemoryStore()
    chat = Chatting(Lab(store, remembering(), access=lambda _: Access("ann", {"user": "ann"})))
    await chat.vercel(user("one"))
    other = Lab(store, remembering(), access=lambda _: Access("ben", {"user": "ben"}))
    refused = await other.post("/vercel", {"id": "chat", "messages": [user("two", "m2")]})
    assert refused.status == 404
    refused = await other.post("/ag-ui", {"threadId": "chat", "runId": "r", "messages": []})
    assert refused.status == 404
    assert (await other.get("/vercel/chat/messages")).status == 404
    assert (await other.get("/vercel/chat/stream")).status == 204


async def test_a_thread_without_messages_is_empty() -> None:
    parts = await Chatting(Lab(MemoryStore(), remembering())).ag_ui()
    assert types(parts) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert parts[1]["messages"] == []


async def test_a_client_that_declares_no_protocol_gets_no_outcome_of_a_stopped_run() -> None:
    lab = Lab(MemoryStore(), agent_with(call("echo"), max_steps=1))
    sent = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Go"}]}
    parts = data_of(await lab.post("/ag-ui", sent, until=b'"type":"RUN_FINISHED"'))
    assert "outcome" not in parts[-1]
    assert parts[-1]["result"]["stop_reason"] == "steps_limit"
