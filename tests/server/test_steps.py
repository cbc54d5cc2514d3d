"""One step with the request that the model got, the executions of a session, and its snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.server.support import Json, Lab, agent_with
from tests.support import broken, echo, requests_of, scripted
from whyloop import AgentState, ErrorPolicy, Hook, ImagePart, Message, ModelRequest, Session, TextPart, tool
from whyloop.errors import ModelError
from whyloop.server import Access
from whyloop.stores import MemoryStore, Store
from whyloop.testing import call, calls
from whyloop.values import encoding
from whyloop.values.log import Log

KEY = "sk-proj-0123456789abcdefghijklmnop"


async def detail(lab: Lab, index: int, path: str = "/sessions/a", **query: object) -> Json:
    answer = await lab.get(f"{path}/steps/{index}", query=query)
    assert answer.status == 200, answer
    found: Json = answer.json
    return found


def as_sent(request: ModelRequest) -> Json:
    """What a request looks like that is made again from its record."""
    messages = [encoding.encode(each) for each in request.messages]
    return {
        "instructions": request.instructions,
        "tools": encoding.encode(request.tools) or None,
        "messages": [{key: each[key] for key in each if key not in ("extras", "shown")} for each in messages],
        "message_count": len(messages),
        "output": encoding.encode(request.output),
        "tool_choice": request.tool_choice,
        "max_tokens": request.max_tokens,
        "incomplete": False,
    }


class Cuts(Hook):
    """A hook that sends only the last messages, and one of its own."""

    async def around_model(self, request: ModelRequest, context: Any, call_next: Any) -> Any:
        note = Message.developer(f"{len(request.messages)} messages so far")
        return await call_next(replace(request, messages=(*request.messages[-2:], note)))


@pytest.mark.parametrize("options", [{}, {"show_limits": True}, {"hooks": [Cuts()]}, {"wrap_up": True}])
@pytest.mark.parametrize("checkpoint", [2, 32])
async def test_the_request_of_every_step_is_the_one_that_the_model_got(
    options: dict[str, Any], checkpoint: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyloop.wire.journal.STEPS_PER_CHECKPOINT", checkpoint)
    agent = scripted(
        call("echo", {"value": "x"}, "Let me see."),
        ModelError("overloaded", status=503),
        calls(call("echo", {"value": "y"}), call("broken")),
        "one",
        call("echo"),
        call("echo"),
        call("echo"),
        call("echo"),
        "two",
        "three",
        tools=[echo, broken],
        instructions="Answer briefly.",
        error_policy=ErrorPolicy.retry_all(),
        max_steps=4,
        timeout=None,
        **options,
    )
    session = await Session.open(store, agent, "a", create=True)
    await session.send("first")
    await session.send("second")
    lab = Lab(store)
    requests = requests_of(agent)
    assert len(requests) == len(session.state.steps) > 7
    for index, request in enumerate(requests, 1):
        shown = (await detail(lab, index))["request_sent"]
        assert shown.pop("changed_by") == (["Cuts"] if "hooks" in options else [])
        assert shown == as_sent(request)
    shown = (await detail(lab, 8, messages=2))["request_sent"]
    whole = as_sent(requests[7])
    assert shown["messages"] == whole["messages"][-2:]
    assert shown["message_count"] == len(whole["messages"])
    assert (await detail(lab, 8, messages=0))["request_sent"]["messages"] == []


async def test_a_step_has_what_the_model_said_and_the_rest_of_the_trace(store: Store) -> None:
    lab = Lab(store, agent_with(call("echo", {"value": "x"}, "Let me see."), call("pay", {"amount": 1})))
    path = await lab.asked()
    trace = (await lab.get(f"{path}/trace")).json
    first, second = await detail(lab, 1), await detail(lab, 2)
    assert first["text"] == "Let me see."
    extra = {"text": 0, "reasoning": 0, "request_sent": 0}
    assert first | extra == trace["steps"][0] | extra
    assert second | extra == trace["open_step"] | extra
    assert second["request_sent"]["message_count"] == 3
    await lab.server.close()


async def test_a_step_that_is_not_there_is_a_404(store: Store) -> None:
    lab = Lab(store, agent_with("one"))
    path = await lab.asked()
    for index in (0, 2, 999_999):
        answer = await lab.get(f"{path}/steps/{index}")
        assert (answer.status, answer.error) == (404, "no_such_step")
    assert "the session has 1 closed step" in answer.message
    for name in ("x", "-1", "1.0", "9" * 40):
        assert (await lab.get(f"{path}/steps/{name}")).status == 400
    await lab.server.close()


async def test_a_request_of_which_nothing_was_recorded_is_incomplete(store: Store) -> None:
    state = await agent_with("one").run("go")
    lost = replace(state, agent_id="a", steps=Log([replace(state.steps[0], request=None)]))
    await store.add(lost)
    shown = (await detail(Lab(store), 1))["request_sent"]
    assert (shown["incomplete"], shown["tools"], shown["message_count"]) == (True, None, 1)


async def test_a_snapshot_that_was_imported_keeps_the_texts_of_its_requests(store: Store) -> None:
    agent = agent_with(call("echo"), "one", instructions="Be brief.", tools=[echo])
    state = await agent.run("go")
    await store.add(state)
    shown = (await detail(Lab(store), 2, f"/sessions/{state.agent_id}"))["request_sent"]
    shown.pop("changed_by")
    assert shown == as_sent(requests_of(agent)[1])


async def test_images_are_named_without_their_bytes(store: Store) -> None:
    agent = agent_with("one")
    picture = ImagePart(data="aGVsbG8=", media_type="image/png")
    session = await Session.open(store, agent, "a", create=True)
    await session.send(Message.user([TextPart("What is it?"), picture]))
    [message] = (await detail(Lab(store), 1))["request_sent"]["messages"]
    assert message["content"][1] == {"type": "image", "url": None, "media_type": "image/png"}


async def test_the_texts_of_a_long_session_are_found_without_reading_all_of_it() -> None:
    class Counting(MemoryStore):
        entries_read = 0

        async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Any:
            found = await super().read(agent_id, after=after, limit=limit)
            self.entries_read += len(found.entries)
            return found

    store = Counting()
    lab = Lab(store, agent_with(*[call("echo")] * 600, "done", max_steps=1000))
    await lab.asked()
    store.entries_read = 0
    shown = await detail(lab, 500, messages=20)
    assert shown["request_sent"]["message_count"] == 999
    assert store.entries_read < 500
    await lab.server.close()


# Executions


async def test_executions_come_in_pages(store: Store) -> None:
    lab = Lab(store, agent_with(*"12345"))
    path = await lab.asked(text="q1")
    for number in range(2, 6):
        await lab.post(f"{path}/messages", {"text": f"q{number}"})
        await lab.rest()
    whole = (await lab.get(f"{path}/executions")).json
    assert [each["query"] for each in whole["executions"]] == ["q1", "q2", "q3", "q4", "q5"]
    assert (whole["has_more"], whole["next"]) == (False, None)
    assert whole["executions"] == (await lab.get(f"{path}/trace")).json["executions"]
    page = (await lab.get(f"{path}/executions", query={"after": 1, "limit": 2})).json
    assert (page["executions"], page["next"]) == (whole["executions"][1:3], 3)
    page = (await lab.get(f"{path}/executions", query={"after": 3, "limit": 2})).json
    assert (page["executions"], page["has_more"]) == (whole["executions"][3:], False)
    await lab.server.close()


# Snapshots


async def test_a_snapshot_is_the_state_and_can_be_read_back(store: Store) -> None:
    @tool(needs_approval=True)
    async def ask() -> str:
        return "yes"

    lab = Lab(store, agent_with(call("echo", {"value": "x"}), call("ask"), tools=[echo, ask]))
    path = await lab.asked()
    shown = (await lab.get(f"{path}/snapshot")).json
    state = await store.load("a")
    assert shown == encoding.encode(state.to_dict())
    assert AgentState.from_dict(shown).explain() == state.explain()
    await lab.server.close()


async def test_no_detail_has_a_secret_in_it(store: Store) -> None:
    agent = agent_with(
        call("echo", {"value": KEY}, f"I use {KEY}"),
        call("pay", {"amount": 1, "password": "hunter2-and-more"}),
        instructions=f"The key is {KEY}.",
    )
    lab = Lab(store, agent)
    path = await lab.asked(text=f"Use {KEY}", note=KEY)
    for part in ("/steps/1", "/steps/2", "/executions", "/snapshot"):
        answer = await lab.get(path + part)
        assert answer.status == 200
        assert KEY.encode() not in answer.body
        assert b"hunter2" not in answer.body
        assert b"[removed]" in answer.body
    await lab.server.close()


async def test_details_of_a_session_of_another_client_are_not_found(store: Store) -> None:
    owner = Lab(store, agent_with("one"))
    await owner.asked(user="ann")
    lab = Lab(store, access=lambda _: Access("bob", {"user": "bob"}, {"inspect"}))
    for part in ("/steps/1", "/executions", "/snapshot"):
        assert (await lab.get(f"/sessions/a{part}")).status == 404
