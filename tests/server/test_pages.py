"""Pages of messages and steps: together they are the whole, whichever way they are read."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.server.support import Json, Lab, agent_with, path_of
from tests.support import RespondingModel, broken, echo, pay, seeds
from whyloop import (
    Agent,
    AgentState,
    ContinuationDecision,
    ContinuationEvaluation,
    ErrorPolicy,
    FinishReason,
    ModelRequest,
    ModelResponse,
    Session,
    ToolCall,
)
from whyloop.errors import ModelError
from whyloop.server.views import message_view
from whyloop.stores import MemoryStore, Store
from whyloop.testing import FakeClock, call
from whyloop.values.redaction import redacted
from whyloop.values.state import AgentStatus
from whyloop.wire.document import step_document
from whyloop.wire.ui import canonical_messages


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sessions have checkpoints too."""
    monkeypatch.setattr("whyloop.wire.journal.STEPS_PER_CHECKPOINT", 3)


def whole_history(state: AgentState) -> list[Json]:
    return [msgspec.json.decode(bytes(message_view(each))) for each in canonical_messages(state)]


async def pages(lab: Lab, path: str, way: str, limit: int, **options: Any) -> list[list[Json]]:
    """All pages of messages, oldest first."""
    found: list[list[Json]] = []
    query: dict[str, object] = {"limit": limit, **({"after": 0} if way == "after" else {})}
    while True:
        page = (await lab.get(f"{path}/messages", query=query, **options)).json
        found.append(page["messages"])
        assert page["has_more"] == (page["next"] is not None)
        if not page["has_more"]:
            return found if way == "after" else found[::-1]
        query = {"limit": limit, way: page["next"]}


# Sessions of all kinds


class Nudge:
    """A rule that has feedback for the model now and then."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        nudges = state.current_step is not None and self._chance.random() < 0.2
        feedback = "Look again." if nudges else None
        return ContinuationEvaluation(
            "Nudge", ContinuationDecision.ALLOW_CONTINUATION, "fine", feedback=feedback
        )


class AnyModel:
    """A model that answers, calls, fails and asks for people as chance has it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def respond(self, request: ModelRequest) -> Any:
        match self._chance.choices(["text", "call", "calls", "broken", "pay", "fail"], [4, 5, 2, 1, 1, 2])[0]:
            case "text":
                yield ModelResponse("an answer")
            case "call":
                yield self._calls("echo")
            case "calls":
                yield self._calls("echo", "echo", "echo")
            case "broken":
                yield self._calls("echo", "broken")
            case "pay":
                yield self._calls("echo", "pay", "pay")
            case "fail":
                raise ModelError("the provider fell over", status=500)

    def _calls(self, *names: str) -> ModelResponse:
        arguments: Json = {"echo": {"value": "x"}, "broken": {}, "pay": {"amount": 3}}
        calls = tuple(ToolCall(f"c{i}", name, arguments[name]) for i, name in enumerate(names))
        return ModelResponse("Let me see.", calls, finish_reason=FinishReason.TOOL_CALLS)


async def any_session(store: Store, seed: int) -> Session:
    chance = random.Random(seed)
    agent = Agent(
        RespondingModel(AnyModel(chance).respond),
        [echo, broken, pay],
        error_policy=ErrorPolicy.retry_all(max_retries=2),
        criteria=[Nudge(chance)],
        max_steps=6,
        clock=FakeClock(),
    )
    session = await Session.open(store, agent, "a", create=True)
    for _ in range(chance.randint(1, 8)):
        status = session.state.status
        if status is AgentStatus.PENDING or status.has_ended or chance.random() < 0.2:
            await session.send("a question")
        elif chance.random() < 0.2:
            await session.request_stop("enough")
            await session.refresh()
        else:
            for question in session.state.pending_calls:
                decide = session.approve if chance.random() < 0.6 else session.deny
                await decide(question.id, by="ann")
            await session.resume()
        if session.state.status in (AgentStatus.STOPPED, AgentStatus.FAILED) and chance.random() < 0.4:
            await session.resume()
    return session


@pytest.mark.usefixtures("checkpoints")
@seeds(40)
async def test_pages_of_messages_are_the_whole_history(seed: int) -> None:
    store = MemoryStore()
    lab, session = Lab(store), await any_session(store, seed)
    expected = whole_history(session.state)
    assert len({message["id"] for message in expected}) == len(expected)
    for limit in (1, 2, 5, 9, 1000):
        for way in ("after", "before"):
            found = await pages(lab, "/sessions/a", way, limit)
            assert [message for page in found for message in page] == expected, (way, limit)
    assert (await lab.get("/sessions/a/messages")).json["messages"] == expected


@pytest.mark.usefixtures("checkpoints")
@seeds(40)
async def test_pages_of_steps_are_the_whole_trace(seed: int) -> None:
    store = MemoryStore()
    lab, session = Lab(store), await any_session(store, seed)
    state = session.state
    steps = [redacted(step_document(state, index, debug=True)) for index in range(1, len(state.steps) + 1)]
    whole = (await lab.get("/sessions/a/trace")).json
    assert whole["steps"] == msgspec.json.decode(msgspec.json.encode(steps))
    assert whole["explanation"] == state.explain(debug=True)
    assert whole["headline"] == state.explanation.headline
    assert whole["step_count"] == len(steps)
    for limit in (1, 3, 4):
        found: list[Json] = []
        after: int | None = 0
        while after is not None:
            page = (await lab.get("/sessions/a/trace", query={"after": after, "limit": limit})).json
            assert {**page, "steps": 0, "next": 0, "has_more": 0} == {
                **whole, "steps": 0, "next": 0, "has_more": 0
            }  # fmt: skip
            found += page["steps"]
            after = page["next"]
        assert found == whole["steps"]


@pytest.mark.usefixtures("checkpoints")
@seeds(15)
async def test_pages_of_a_session_in_progress_end_with_its_status(seed: int) -> None:
    """Every version of a session has its pages, whatever was going on then."""
    store = MemoryStore()
    await any_session(store, seed)
    stored = await store.read("a")
    entries = store._shared.sessions["a"].entries
    for version in range(1, len(stored.entries) + 1):
        then = MemoryStore()
        await then.create(stored.summary, entries[:version])
        lab, state = Lab(then), await then.load("a")
        expected = whole_history(state)
        for way, limit in (("after", 2), ("before", 3)):
            found = await pages(lab, "/sessions/a", way, limit, until=b"\0")
            assert [message for page in found for message in page] == expected
        shown = (await lab.get("/sessions/a", until=b"\0")).json
        outcome = state.last_continuation_outcome
        assert shown["session"]["resolved_by"] == (outcome.resolved_by if outcome else None)
        assert shown["session"]["step_count"] == len(state.steps)
        assert len(shown["pending_calls"]) == shown["session"]["pending"] == len(state.pending_calls)


async def test_a_page_has_the_events_cursor_of_the_end(store: Store) -> None:
    lab = Lab(store, agent_with(call("echo"), "done"))
    path = await lab.asked()
    last = (await lab.get(f"{path}/events")).json["next"]
    for query in ({}, {"after": 0, "limit": 1}, {"before": 1}):
        assert (await lab.get(f"{path}/messages", query=query)).json["after"] == last


async def test_both_ends_of_a_page_can_be_named(store: Store) -> None:
    lab = Lab(store, agent_with("one", "two", "three"))
    path = await lab.asked()
    for _ in range(2):
        await lab.post(f"{path}/messages", {"text": "again"})
        await lab.rest()
    whole = (await lab.get(f"{path}/messages")).json["messages"]
    page = (await lab.get(f"{path}/messages", query={"after": 1, "before": 5, "limit": 3})).json
    assert (page["messages"], page["next"]) == (whole[1:4], 4)
    page = (await lab.get(f"{path}/messages", query={"after": 4, "before": 5})).json
    assert (page["messages"], page["next"]) == (whole[4:5], None)
    for query in ({"after": 6}, {"after": 99}, {"before": 0}, {"after": 3, "before": 2}):
        page = (await lab.get(f"{path}/messages", query=query)).json
        assert (page["messages"], page["has_more"]) == ([], False)


# Long ones


class Counting(MemoryStore):
    """A store that counts the entries that are read from it."""

    entries_read = 0

    async def read(self, agent_id: str, *, after: int = 0, limit: int | None = None) -> Any:
        found = await super().read(agent_id, after=after, limit=limit)
        self.entries_read += len(found.entries)
        return found


async def test_a_page_of_a_long_session_reads_a_part_of_it() -> None:
    store = Counting()
    agent = agent_with(*[call("echo", {"value": str(i)}) for i in range(999)], "done", max_steps=1000)
    lab = Lab(store, agent)
    path = await lab.asked()
    total = len((await store.read("a")).entries)
    assert total > 1900
    for part, query in (
        ("", {}),
        ("/messages", {"limit": 50}),
        ("/messages", {"after": 900, "limit": 50}),
        ("/trace", {"limit": 20}),
        ("/trace", {"after": 700, "limit": 20}),
        ("/events", {"after": "latest"}),
        ("/events", {"after": "1500", "limit": 100}),
    ):
        store.entries_read = 0
        assert (await lab.get(path + part, query=query)).status == 200
        assert store.entries_read < 700, (part, query)


async def test_the_explanation_of_a_long_run_is_the_same_without_its_middle(store: Store) -> None:
    agent = agent_with(*[call("echo", {"value": str(i)}) for i in range(149)], "done", max_steps=1000)
    lab = Lab(store, agent)
    path = await lab.asked()
    trace = (await lab.get(f"{path}/trace", query={"limit": 1})).json
    assert trace["explanation"] == (await store.load("a")).explain()


async def test_a_list_is_filtered_by_rule_and_agent(store: Store) -> None:
    lab = Lab(store, agent_with("hi", call("echo"), name="clerk", max_steps=1))
    await lab.asked("done")
    await lab.asked("limited")
    await Lab(store, agent_with("hi", name="other")).asked("elsewhere")

    async def found(**query: str) -> set[str]:
        page = (await lab.get("/sessions", query=query)).json
        return {each["agent_id"] for each in page["sessions"]}

    assert await found(resolved_by="StepsLimit") == {"limited"}
    assert await found(agent="clerk") == {"done", "limited"}
    assert await found(agent="clerk", resolved_by="ToolCallPresenceCheck") == {"done"}
    assert await found(agent="nobody") == set()
    [listed] = (await lab.get("/sessions", query={"resolved_by": "StepsLimit"})).json["sessions"]
    shown = (await lab.get(path_of("limited"))).json["session"]
    assert listed == shown
    assert (listed["agent"], listed["reason"]) == ("clerk", "Limit reached: 1 of 1 steps used")
