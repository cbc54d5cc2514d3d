"""The summary of a session for lists, at the same cost for a session of any length."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import broken, echo, scripted, two_stores
from whyloop import Agent, AgentState, ErrorPolicy, Session, Usage, tool
from whyloop.errors import ModelError, StoreUnavailableError
from whyloop.stores import MemoryStore, Summary
from whyloop.stores.listing import MOST_MARKS, can_find, summary_of, summary_of_end
from whyloop.stores.reading import read_end
from whyloop.testing import FakeClock, call, calls, text
from whyloop.values.redaction import Redaction


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def marks(*replies: object, **options: object) -> str:
    agent = scripted(*replies, **{"tools": [echo, pay, broken], **options})  # type: ignore[arg-type]
    return summary_of(await agent.run("go")).step_marks


async def test_steps_are_marked_by_what_became_of_them() -> None:
    ignoring, retrying = ErrorPolicy.ignore_tool_errors(), ErrorPolicy.retry_all()
    assert await marks("done") == "s"
    assert await marks(call("echo"), call("echo"), "done") == "..s"
    assert await marks(call("echo"), call("broken"), "done", error_policy=ignoring) == ".es"
    assert await marks(ModelError("busy", status=529), "done", error_policy=retrying) == "rs"
    assert await marks(call("echo"), call("echo"), call("echo"), max_steps=2) == ".f"
    assert await marks(ModelError("no", status=401)) == "f"


async def test_a_step_that_waits_for_a_person_is_marked_before_and_after() -> None:
    store, agent = (
        MemoryStore(),
        scripted(call("echo"), call("pay", {"amount": 1}), "done", tools=[echo, pay]),
    )
    session = await Session.open(store, agent, "a", create=True)
    await session.send("go")
    assert (await store.read("a")).summary.step_marks == ".p"
    await session.approve(session.state.pending_calls[0].id)
    await session.resume()
    assert (await store.read("a")).summary.step_marks == ".ps"


async def test_a_denied_call_counts_as_waiting_and_not_as_an_error() -> None:
    agent = scripted(calls(call("pay", {"amount": 1})), "done", tools=[pay])
    session = await Session.open(MemoryStore(), agent)
    await session.send("go")
    await session.deny(session.state.pending_calls[0].id)
    assert summary_of(await session.resume()).step_marks == "ps"


async def test_the_wrap_up_after_a_limit_is_an_ordinary_step() -> None:
    assert await marks(call("echo"), call("echo"), "this far", max_steps=2, wrap_up=True) == ".f."


async def test_only_the_last_steps_are_marked() -> None:
    found = await marks(*[call("echo")] * 40, "done", max_steps=100)
    assert found == "." * (MOST_MARKS - 1) + "s"


async def test_a_summary_has_the_last_query_the_limit_and_what_was_used() -> None:
    replies = [call("echo", usage=100), text("done", usage=20), text("again", usage=3)]
    agent = scripted(*replies, tools=[echo], max_steps=7)
    session = await Session.open(MemoryStore(), agent)
    await session.send("the first question")
    await session.send("the second " + "very " * 40)
    found = summary_of(session.state)
    assert (found.tokens, found.tokens_known, found.step_limit) == (123, True, 7)
    assert found.title == "the first question"
    assert (found.last_query[:15], len(found.last_query)) == ("the second very", 80)
    assert found.active_seconds == session.state.state_info.cumulative_execution_seconds


async def test_the_reason_after_the_last_retry_has_the_last_failure() -> None:
    busy = [ModelError(f"HTTP 529: busy {n}", status=529) for n in (1, 2)]
    found = summary_of(await scripted(*busy, error_policy=ErrorPolicy.retry_all(1)).run("go"))
    assert found.reason == "Rate limit error after 2 consecutive failures (max: 1): HTTP 529: busy 2"


async def test_unknown_amounts_are_listed_as_unknown() -> None:
    found = summary_of(await scripted(text("hi", usage=Usage(reported=False)), max_steps=None).run("go"))
    assert (found.tokens, found.tokens_known, found.step_limit) == (0, False, None)
    empty = summary_of(AgentState())
    assert (empty.step_marks, empty.last_query, empty.step_limit, empty.tokens_known) == ("", "", None, True)


async def test_the_last_query_of_a_long_run_is_found_without_reading_the_run() -> None:
    agent = scripted(*[call("echo")] * 200, "done", tools=[echo], max_steps=1000)
    state = await agent.run("the question")
    assert summary_of(state).last_query == "the question"


async def test_a_history_without_its_beginning_is_listed_like_the_whole() -> None:
    store, agent = MemoryStore(), scripted("one", *[call("echo")] * 3, "two", tools=[echo], max_steps=5)
    session = await Session.open(store, agent, "a", create=True)
    await session.send("the first question")
    await session.send("the second question")
    reading = await read_end(store, "a")
    assert reading.state.messages.start > 0
    listed = (await store.read("a")).summary
    found = summary_of_end(reading.state, listed)
    assert replace(found, version=listed.version, search=listed.search) == listed


# While a run lasts

COUNTS = ("step_count", "tokens", "tokens_known", "cost", "active_seconds", "step_marks")


def counts_of(summary: Summary) -> dict[str, object]:
    return {name: getattr(summary, name) for name in COUNTS}


def counting(steps: int) -> Agent:
    """An agent whose steps take tokens, money and time; some of its calls fail."""
    used = Usage(60, 40, cost=Decimal("0.0125"))
    replies = [call("echo" if number % 3 else "broken", usage=used) for number in range(steps)]
    policy, clock = ErrorPolicy.ignore_tool_errors(), FakeClock()

    @tool(name="echo")
    async def slow() -> str:
        clock.advance(1.25)
        return "done"

    return scripted(
        *replies,
        text("done", usage=used),
        tools=[slow, broken],
        error_policy=policy,
        max_steps=99,
        clock=clock,
    )


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_lists_have_the_counts_of_every_step_as_soon_as_it_is_stored(kind: str, tmp_path: Path) -> None:
    store, other = two_stores(kind, tmp_path)
    append, seen = store.append, list[bool]()

    async def append_and_list(agent_id: str, *rest: Any, **options: Any) -> str | None:
        stop = await append(agent_id, *rest, **options)
        recorded = counts_of(summary_of(await other.load(agent_id)))
        (listed,) = (await other.sessions()).sessions
        seen.append(counts_of(listed) == recorded)
        return stop

    store.append = append_and_list  # type: ignore[method-assign]
    session = await Session.open(store, counting(MOST_MARKS + 6))
    state = await session.send("go")
    assert (state.step_count, state.usage.cost) == (MOST_MARKS + 7, Decimal("0.3875"))
    assert len(seen) > 2 * MOST_MARKS
    assert all(seen)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_session_whose_runner_was_killed_is_listed_with_what_it_had_used(
    kind: str, tmp_path: Path
) -> None:
    store, other = two_stores(kind, tmp_path)
    append, left = store.append, 20

    async def append_until_killed(*given: Any, **options: Any) -> str | None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailableError("the process died")
        return await append(*given, **options)

    store.append = append_until_killed  # type: ignore[method-assign]
    session = await Session.open(store, counting(30), "a", create=True)
    with pytest.raises(StoreUnavailableError):
        await session.send("go")
    await store.close()
    (listed,) = (await other.sessions()).sessions
    assert (listed.status, listed.step_count, listed.tokens, listed.cost) == (
        "in_progress",
        9,
        1000,
        "0.1250",
    )
    assert counts_of(listed) == counts_of(summary_of(await other.load("a")))
    assert (await other.unattended())[0].step_count == 9


# Searching


async def test_a_session_is_found_by_each_of_its_texts() -> None:
    store = MemoryStore()
    agent = scripted("A first answer.", "The ANSWER is forty-two, straße.", tools=[echo])
    metadata = {"user": "Ann Lee", "tags": ["vip", {"deep": "value"}], "number": 4711}
    session = await Session.open(store, agent, "Order-17", create=True, metadata=metadata)
    await session.send("the first question")
    await session.send("the second question")
    for words in (
        "order-17",
        "first question",
        "second",
        "answer forty-two STRASSE",
        "asked for no tools",
        "user ann",
        "vip deep value 4711",
        "17 second forty lee no",
    ):
        assert (await store.sessions(search=words)).sessions, words
    for words in ("A first answer.", "third", "order-17 third"):
        assert not (await store.sessions(search=words)).sessions, words


async def test_a_search_does_not_find_secrets_that_views_remove() -> None:
    store = MemoryStore()
    agent = scripted(ModelError("refused: password=hunter2", status=401))
    metadata = {"api_key": "k-12345", "note": "token=abcdef", "password": {"inner": "nested-secret"}}
    session = await Session.open(store, agent, metadata=metadata)
    await session.send("Why?")
    assert (await store.sessions(search="why refused note api_key")).sessions
    for words in ("hunter2", "k-12345", "abcdef", "nested-secret"):
        assert not (await store.sessions(search=words)).sessions, words


async def test_the_text_for_searches_is_bounded() -> None:
    agent = scripted("answer " * 10_000)
    session = await Session.open(MemoryStore(), agent, "i" * 500, create=True, metadata={"a": "b" * 10**6})
    found = summary_of(await session.send("question " * 10_000))
    assert len(found.search) < 2_500
    assert len(found.search.split("\n")) == 6


async def test_words_that_a_server_hides_are_not_found_there() -> None:
    agent = scripted("CUST-1 is in the answer")
    session = await Session.open(MemoryStore(), agent, metadata={"customer": "CUST-2", "plan": "gold"})
    found, own = summary_of(await session.send("hi")), Redaction(patterns=(r"CUST-\d+",))
    for redaction, words, expected in (
        (own, ["cust-2"], False),
        (own, ["cust-1"], True),
        (own, ["gold", "customer"], True),
        (own, ["gold", "cust-2"], False),
        (Redaction(), ["cust-2"], True),
        (None, ["cust-2"], True),
    ):
        assert can_find(found, words, redaction) is expected, (redaction, words)
