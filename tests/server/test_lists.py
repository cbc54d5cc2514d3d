"""The list in numbers, the questions of all sessions, and the facts about a server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from starlette.requests import HTTPConnection
from starlette.types import Message

import whyloop
from tests.server.support import Beside, Lab, agent_with
from tests.support import START
from whyloop.broadcasting import BroadcastConfig
from whyloop.errors import ModelError, SessionNotFoundError
from whyloop.server import Access
from whyloop.server.inspection import questions_of
from whyloop.stores import Entry, MemoryStore, SqliteStore, Store, Summary
from whyloop.stores.records import Page, SessionFilter
from whyloop.testing import FakeClock, call, calls
from whyloop.values.approval import Question
from whyloop.values.continuation import StopReason
from whyloop.values.redaction import Redaction
from whyloop.values.state import AgentStatus

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def as_ann(_: object) -> Access:
    return Access("ann", {"user": "ann"}, {"inspect"})


def ended(agent_id: str, reason: StopReason, rule: str, days: float = 0, **fields: Any) -> Summary:
    status = AgentStatus.COMPLETED if reason is StopReason.COMPLETED else AgentStatus.STOPPED
    if reason in (StopReason.ERROR_FORBADE, StopReason.RETRY_LIMIT_REACHED):
        status = AgentStatus.FAILED
    moment = NOON - timedelta(days=days)
    return Summary(agent_id, status, moment, moment, reason, resolved_by=rule, **fields)


async def counted(*summaries: Summary, **query: Any) -> Any:
    store = MemoryStore(FakeClock(NOON))
    for summary in summaries:
        await store.create(summary, [Entry("{}")])
    answer = await Lab(store).get("/stats", query=query)
    assert answer.status == 200, answer
    return answer.json


# Numbers


async def test_stop_reasons_are_counted_in_four_groups() -> None:
    rules = dict.fromkeys(StopReason, "SomeRule")
    made = [ended(reason.value, reason, rule) for reason, rule in rules.items()]
    made.append(ended("cost", StopReason.GUARD_FORBADE, "CostLimit"))
    found = await counted(*made, days=1)
    assert found["days"] == [
        {"day": "2026-11-16", "counts": {"completed": 1, "limit": 4, "error": 2, "person": 3}}
    ]
    assert found["rules"] == [{"rule": "SomeRule", "count": 9}, {"rule": "CostLimit", "count": 1}]
    assert found["statuses"] == {"completed": 1, "stopped": 7, "failed": 2}
    assert (found["total"], found["waiting"]) == (10, 0)


async def test_days_are_those_of_the_client() -> None:
    late = replace(
        ended("late", StopReason.COMPLETED, "x"), updated_at=datetime(2026, 11, 15, 23, 30, tzinfo=UTC)
    )
    old = ended("old", StopReason.COMPLETED, "x", days=2.2)
    for offset, expected in ((0, [1, 1, 0]), (-60, [1, 0, 1]), (60, [1, 1, 0]), (840, [1, 0, 1])):
        found = await counted(late, old, days=3, offset_minutes=offset)
        assert [day["counts"]["completed"] for day in found["days"]] == expected, offset
        assert found["total"] == 2
    east = await counted(late, days=2, offset_minutes=-840)
    assert [day["day"] for day in east["days"]] == ["2026-11-16", "2026-11-17"]


async def test_sessions_without_a_decision_have_no_rule_and_no_day() -> None:
    moment = NOON - timedelta(hours=1)
    running = Summary("a", AgentStatus.IN_PROGRESS, moment, moment, resolved_by="ToolCallPresenceCheck")
    paused = Summary("b", AgentStatus.PAUSED, moment, moment, resolved_by="ApprovalRequired", pending=2)
    found = await counted(running, paused, days=1)
    assert found["rules"] == [{"rule": "ApprovalRequired", "count": 1}]
    assert found["statuses"] == {"in_progress": 1, "paused": 1}
    assert found["waiting"] == 1
    assert sum(found["days"][0]["counts"].values()) == 0


async def test_numbers_are_those_of_the_filtered_list(store: Store) -> None:
    for number in range(6):
        user = "ann" if number % 2 else "bob"
        made = ended(
            f"s{number}", StopReason.COMPLETED, "Rule", metadata={"user": user}, search=f"text {number}"
        )
        await store.create(made, [])
    lab = Lab(store)
    for query, expected in (
        ({}, 6),
        ({"metadata": '{"user": "ann"}'}, 3),
        ({"search": "TEXT 3"}, 1),
        ({"status": "failed"}, 0),
        ({"waiting": "true"}, 0),
    ):
        listed = (await lab.get("/sessions", query=query)).json["sessions"]
        assert len(listed) == (await lab.get("/stats", query=query)).json["total"] == expected, query


async def test_a_client_counts_its_own_sessions_only(store: Store) -> None:
    for number, user in enumerate(("ann", "ann", "bob")):
        paused = Summary(f"{number}", AgentStatus.PAUSED, NOON, NOON, pending=1, metadata={"user": user})
        await store.create(paused, [])
    lab = Lab(store, access=as_ann)
    stats = (await lab.get("/stats")).json
    assert (stats["total"], stats["waiting"]) == (2, 2)
    assert (await lab.get("/stats", query={"metadata": '{"user": "bob"}'})).json["total"] == 0
    assert 'whyloop_sessions{status="paused"} 2\n' in (await lab.get("/metrics")).body.decode()
    assert "whyloop_questions_waiting 2\n" in (await lab.get("/metrics")).body.decode()


@pytest.mark.parametrize(
    "query", [{"days": "0"}, {"days": "91"}, {"offset_minutes": "x"}, {"days": "-"}], ids=str
)
async def test_bad_numbers_are_refused(query: dict[str, str]) -> None:
    assert (await Lab(MemoryStore()).get("/stats", query=query)).status == 400


# Searching


async def test_sessions_are_found_by_words(store: Store) -> None:
    lab = Lab(store, agent_with("The refund is made.", "No."))
    await lab.asked("order-17", "Refund order 17")
    await lab.asked("other", "Cancel it", customer="Fjord Systems")

    async def found(words: str) -> list[str]:
        page = (await lab.get("/sessions", query={"search": words})).json
        return [session["agent_id"] for session in page["sessions"]]

    assert await found("REFUND made") == ["order-17"]
    assert await found("fjord cancel") == ["other"]
    assert await found("no tools") == ["other", "order-17"]
    assert await found("order fjord") == []
    assert len(await found("   ")) == 2
    assert (await lab.get("/sessions", query={"search": "x" * 201})).status == 400


async def test_words_that_a_server_hides_find_nothing_there(store: Store) -> None:
    config = BroadcastConfig(redaction=Redaction(patterns=(r"CUST-\d+",)))
    lab = Lab(store, agent_with(*["Done."] * 5), config=config)
    for number in range(5):
        await lab.asked(
            f"s{number}", "Do it", customer=f"CUST-{number}", plan="gold" if number % 2 else "free"
        )
    for search, expected in (("cust-3", 0), ("gold cust-", 0), ("gold", 2), ("done", 5)):
        query = {"search": search, "limit": 2}
        seen: list[str] = []
        while True:
            page = (await lab.get("/sessions", query=query)).json
            seen += [session["agent_id"] for session in page["sessions"]]
            if page["next"] is None:
                break
            query = {**query, "after": page["next"]}
        assert len(seen) == len(set(seen)) == expected, search
        assert (await lab.get("/stats", query={"search": search})).json["total"] == expected, search
    plain = Lab(store)
    assert len((await plain.get("/sessions", query={"search": "cust-3"})).json["sessions"]) == 1


# Questions


async def test_the_questions_of_all_sessions_come_oldest_first(store: Store) -> None:
    two = calls(call("pay", {"amount": 2, "password": "hunter2"}), call("pay", {"amount": 3}))
    lab = Lab(store, agent_with(call("pay", {"amount": 1}), two, "done"))
    for agent_id in ("first", "second", "third"):
        await lab.asked(agent_id, f"The query of {agent_id}")
    found = (await lab.get("/questions")).json
    assert found["total"] == 3
    assert [(each["agent_id"], each["args_summary"]) for each in found["questions"]] == [
        ("first", "amount: 1"),
        ("second", "amount: 2, password: '[removed]'"),
        ("second", "amount: 3"),
    ]
    first = found["questions"][0]
    state = (await lab.get("/sessions/first")).json
    asked = state["pending_calls"][0]
    assert {name: first[name] for name in asked} == asked
    assert (first["title"], first["can_edit"]) == ("The query of first", True)
    assert "hunter2" not in (await lab.get("/questions")).body.decode()
    limited = (await lab.get("/questions", query={"limit": 1})).json
    assert ([each["agent_id"] for each in limited["questions"]], limited["total"]) == (["first"], 3)
    await lab.post("/sessions/first/approve", {"question_id": first["id"]})
    assert [each["agent_id"] for each in (await lab.get("/questions")).json["questions"]] == ["second"] * 2


async def test_a_client_sees_the_questions_of_its_sessions_only(store: Store) -> None:
    lab = Lab(store, agent_with(*[call("pay", {"amount": 1})] * 2))
    await lab.asked("hers", user="ann")
    await lab.asked("his", user="bob")
    found = (await Lab(store, access=as_ann).get("/questions")).json
    assert ([each["agent_id"] for each in found["questions"]], found["total"]) == (["hers"], 1)


async def test_a_run_that_asks_itself_has_no_tool(store: Store) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 1})))
    await lab.asked("a")
    state = await store.load("a")
    asking = replace(
        state, execution=replace(state.execution, question=Question("q", "Go on?")), open_step=None
    )
    (found,) = questions_of(asking, (await store.read("a")).summary, Redaction())
    assert (found.tool, found.tool_call_id, found.arguments, found.can_edit) == (None, None, None, False)
    assert (found.id, found.question) == ("q", "Go on?")


async def test_a_session_that_is_deleted_meanwhile_has_no_questions() -> None:
    class Deleting(MemoryStore):
        async def checkpoint(self, agent_id: str, **wanted: Any) -> Any:
            raise SessionNotFoundError(agent_id)

    store = Deleting()
    await store.create(Summary("a", AgentStatus.PAUSED, START, START, pending=1), [])
    assert (await Lab(store).get("/questions")).json == {"questions": [], "total": 1}


# The server itself


async def test_a_server_says_what_it_is_and_what_a_client_may_do(tmp_path: Any) -> None:
    async with SqliteStore(tmp_path / "shop.db") as store:
        assert (await Lab(store).get("/info")).json == {
            "version": whyloop.__version__,
            "store": "shop.db",
            "can_run": False,
            "may": ["send", "decide", "inspect", "manage"],
            "user": None,
        }
    lab = Lab(MemoryStore(), agent_with("hi"), access=lambda _: Access("ann", may={"inspect", "decide"}))
    found = (await lab.get("/info")).json
    assert (found["user"], found["may"]) == ("ann", ["decide", "inspect"])
    assert (found["store"], found["can_run"]) == ("memory", True)


async def test_everybody_may_ask_for_health_and_nothing_else() -> None:
    lab = Lab(MemoryStore(), access=lambda _: None)
    answer = await lab.get("/health", headers={"host": "10.1.2.3:8000"})
    assert (answer.status, answer.body) == (200, b"ok")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    for path in ("/metrics", "/info", "/stats", "/questions", "/sessions", "/health/x"):
        assert (await lab.get(path)).status == 401, path
    assert (await lab.post("/health")).status == 401


async def test_metrics_count_the_runs_of_this_process(store: Store) -> None:
    replies: list[Any] = ["hi", "hi", ModelError("no", status=401), call("pay", {"amount": 1})]
    beside = Beside()
    lab = Lab(store, agent_with(*replies), also=[beside])
    for number in range(4):
        await lab.asked(f"s{number}")
    await lab.post("/sessions/s3/stop", {"reason": "enough"})
    text = (await lab.get("/metrics")).body.decode()
    lines = text.splitlines()
    for line in (
        "# TYPE whyloop_runs_total counter",
        'whyloop_runs_total{stop_reason="completed",rule="ToolCallPresenceCheck",error_type=""} 2',
        'whyloop_runs_total{stop_reason="error",rule="ErrorPolicyCriterion",error_type="model"} 1',
        'whyloop_runs_total{stop_reason="user_requested",rule="StopRequestedCheck",error_type=""} 1',
        'whyloop_sessions{status="completed"} 2',
        'whyloop_sessions{status="paused"} 0',
        "whyloop_questions_waiting 0",
        "whyloop_streams 0",
    ):
        assert line in lines, (line, text)


async def test_metrics_count_nothing_of_sessions_that_a_client_may_not_see(store: Store) -> None:
    def access(connection: HTTPConnection) -> Access:
        tenant = connection.headers.get("x-tenant")
        return Access("", {"tenant": tenant} if tenant else {}, {"send", "inspect"})

    lab = Lab(store, agent_with("hi"), access=access)
    await lab.asked("a", tenant="one")
    other = (await lab.get("/metrics", headers={"x-tenant": "two"})).body.decode()
    assert 'whyloop_sessions{status="completed"} 0\n' in other
    assert "whyloop_questions_waiting 0\n" in other
    assert "whyloop_runs_total" not in other
    assert "whyloop_streams" not in other
    assert "whyloop_runs_total{" in (await lab.get("/metrics")).body.decode()


async def test_metrics_name_what_transports_dropped() -> None:
    class Lossy(Beside):
        dropped: ClassVar = {'a "quoted"\nname\\': 3}

    text = (await Lab(MemoryStore(), also=[Lossy()]).get("/metrics")).body.decode()
    assert r'whyloop_envelopes_dropped_total{transport="Lossy",event="a \"quoted\"\nname\\"} 3' in text


async def test_a_read_only_client_can_read(store: Store) -> None:
    lab = Lab(store, access=lambda _: Access("ann", may={"inspect"}))
    for path in ("/sessions", "/stats", "/questions", "/info", "/metrics"):
        assert (await lab.get(path)).status == 200, path


# Secrets

CARD = "WVR4929123412341"  # No id has these letters.
CARDS = BroadcastConfig(redaction=Redaction(patterns=(r"\bWVR\d{13}\b",)))


@pytest.mark.parametrize("before", [0, *range(58, 84)])
async def test_a_secret_at_the_edge_of_a_title_is_not_in_lists(store: Store, before: int) -> None:
    lab = Lab(store, agent_with("hi", call("pay", {"amount": 1})), config=CARDS)
    words = ("x" * 9 + " ") * 9
    await lab.asked("a", f"{words[:before]} {CARD} {words}")
    await lab.post("/sessions/a/messages", {"text": f"{words[:before]} {CARD} {words}"})
    await lab.rest()
    for path in ("/sessions", "/sessions/a", "/questions", "/sessions/a/executions", "/sessions/a/trace"):
        found = await lab.get(path)
        assert CARD[:3].encode() not in found.body, (path, found)


@pytest.mark.parametrize("before", [0, *range(280, 304)])
async def test_a_secret_at_the_edge_of_a_reason_is_neither_shown_nor_found(store: Store, before: int) -> None:
    lab = Lab(store, agent_with(call("pay", {"amount": 1})), config=CARDS)
    path, words = await lab.asked("a"), ("x" * 9 + " ") * 40
    await lab.post(f"{path}/stop", {"reason": f"{words[:before]} {CARD} {words}"})
    assert CARD[:3] not in (await lab.get("/sessions")).json["sessions"][0]["reason"]
    for length in range(1, len(CARD) + 1):
        assert (await lab.get("/sessions", query={"search": CARD[:length]})).json["sessions"] == []
    assert (await lab.get("/stats", query={"search": CARD[:4]})).json["total"] == 0


async def test_titles_without_spaces_between_their_words_are_shown(store: Store) -> None:
    lab = Lab(store, agent_with("hi"))
    await lab.asked("a", "请告诉我今天的天气" * 20)
    assert (await lab.get("/sessions")).json["sessions"][0]["title"] == ("请告诉我今天的天气" * 20)[:79] + "…"


@pytest.mark.parametrize(
    "guess",
    ['{"password": "1234"}', '{"password": "0000"}', '{"password": 1234}', f'{{"card": "{CARD}"}}'],
)
@pytest.mark.parametrize("path", ["/sessions", "/stats", "/what-if"])
async def test_removed_metadata_cannot_be_guessed_by_a_filter(store: Store, guess: str, path: str) -> None:
    lab = Lab(store, agent_with("hi"), config=CARDS)
    await lab.asked("a", password="1234", card=CARD, team="red")
    refused = await lab.get(path, query={"metadata": guess})
    assert (refused.status, refused.error) == (400, "bad_request")
    assert "removed as a secret" in refused.message
    shown = '{"team": "red", "none": null}' if path == "/sessions" else '{"team": "red"}'
    assert (await lab.get(path, query={"metadata": shown})).status == 200


async def test_the_metadata_that_a_client_is_kept_within_may_be_named_in_a_filter(store: Store) -> None:
    lab = Lab(store, agent_with("hi"), access=lambda _: Access("", within={"api_key": "of ann"}))
    await lab.asked("a")
    found = await lab.get("/sessions", query={"metadata": '{"api_key": "of ann"}'})
    assert len(found.json["sessions"]) == 1


async def test_a_survey_ends_when_its_client_leaves() -> None:
    reading, ended = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def find(self, wanted: SessionFilter, *, limit: int, after: str | None) -> Page:
            try:
                reading.set()
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

    async def receive() -> Message:
        await reading.wait()
        return {"type": "http.disconnect"}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    lab = Lab(Slow())
    async with asyncio.timeout(10):
        await lab.server(
            {**lab.client.scope("/what-if", "", {}), "type": "http", "method": "GET"}, receive, send
        )
    assert ended.is_set()
    assert sent[0]["status"] == 499
