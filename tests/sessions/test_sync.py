"""Sessions and stores for programs without an event loop."""

from __future__ import annotations

import _thread
import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from whyloop import Agent, AgentStatus, Budget, ModelRequest, ModelResponse, Session, SyncStore, tool
from whyloop.errors import SessionNotFoundError, StoreError
from whyloop.events import AgentEvent
from whyloop.stores import MemoryStore, Store
from whyloop.testing import ScriptedModel, call, text


@tool(needs_approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


def paying() -> Agent:
    return Agent(ScriptedModel([call("pay", {"amount": 5}), text("Paid.")]), [pay])


def test_a_conversation_with_an_approval(tmp_path: Path) -> None:
    events: list[AgentEvent] = []
    with SyncStore(tmp_path / "whyloop.db") as store:
        session = store.session(paying(), "order-1", create=True, metadata={"customer": "ann"})
        state = session.send("Pay 5", on_event=events.append)
        assert (state.status, session.state.status) == (AgentStatus.PAUSED, AgentStatus.PAUSED)
        assert events
        (waiting,) = store.sessions(status="paused", metadata={"customer": "ann"}).sessions
        (question,) = store.load(waiting.agent_id).pending_calls
        session.edit(question.id, {"amount": 4}, by="ada")
        state = session.resume(grant=Budget(steps=1))
        assert (state.status, state.last_response) == (AgentStatus.COMPLETED, "Paid.")
        assert "edited by ada" in session.explain()
        assert [message.role for message in session.history()] == ["user", "assistant", "tool", "assistant"]
        assert session.summary.agent_id == session.agent_id == "order-1"


def test_decisions_forks_exports_and_deletions() -> None:
    with SyncStore(MemoryStore()) as store, SyncStore(MemoryStore()) as other:
        session = store.session(paying(), "a", create=True)
        question = session.send("Pay 5").pending_calls[0].id
        assert session.deny(question, "no money", by="ada").pending_calls == ()
        assert store.request_stop("a", "enough") is True
        assert session.request_stop("again") is False
        assert session.refresh().stop_reason == "user_requested"
        assert store.fork("a", new_agent_id="b").agent_id == "b"
        assert other.import_lines(store.export("a")) == ["a"]
        other.add(store.load("b"))
        store.delete("a")
        with pytest.raises(SessionNotFoundError):
            store.load("a")
        assert {summary.agent_id for summary in other.sessions().sessions} == {"a", "b"}


def test_an_error_of_a_store_has_no_other_error_before_it() -> None:
    store = SyncStore(MemoryStore())
    with pytest.raises(SessionNotFoundError) as missing:
        store.load("a")
    assert missing.value.__context__ is None
    store.close()
    with pytest.raises(StoreError, match="closed") as closed:
        store.load("a")
    assert closed.value.__context__ is None


def test_several_threads_share_a_store() -> None:
    together = threading.Barrier(4, timeout=10)

    @tool
    def meet() -> str:
        together.wait()
        return "met"

    with SyncStore(MemoryStore()) as store, ThreadPoolExecutor(4) as threads:

        def ask(number: int) -> str:
            agent = Agent(ScriptedModel([call("meet"), text(f"answer {number}")]), [meet])
            return store.session(agent).send("go").last_response

        assert list(threads.map(ask, range(4))) == [f"answer {number}" for number in range(4)]


def test_ctrl_c_cancels_the_run_and_its_state_is_recorded() -> None:
    class Hanging:
        async def respond(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
            _thread.interrupt_main()
            await asyncio.Event().wait()
            yield ModelResponse("never")

    with SyncStore(MemoryStore()) as store:
        session = store.session(Agent(Hanging()), "a", create=True)
        with pytest.raises(KeyboardInterrupt):
            session.send("go")
        assert store.load("a").messages[0].text == "go"
        again = store.session(Agent(ScriptedModel(["Done."])), "a")
        assert again.resume().last_response == "Done."


async def test_inside_an_event_loop_it_is_refused() -> None:
    store = SyncStore(MemoryStore())
    with pytest.raises(RuntimeError, match="inside a running event loop: use Session and Store with `await`"):
        store.load("a")
    await asyncio.to_thread(store.close)


def test_a_closed_store_says_so() -> None:
    store = SyncStore(MemoryStore())
    store.close()
    store.close()
    with pytest.raises(StoreError, match="the store is closed"):
        store.sessions()


def test_every_method_has_the_signature_of_the_asynchronous_one() -> None:
    for name in ("sessions", "load", "approve", "deny", "edit", "fork", "delete"):
        assert inspect.signature(getattr(SyncStore, name)) == inspect.signature(getattr(Store, name))


def test_a_method_of_the_store_itself_is_used() -> None:
    class Counting(MemoryStore):
        loads = 0

        async def delete(self, agent_id: str, *, expected_version: int | None = None) -> None:
            self.loads += 1

    counting = Counting()
    with SyncStore(counting) as store:
        store.delete("a")
    assert counting.loads == 1


def test_the_types_of_a_session_are_those_of_its_agent() -> None:
    with SyncStore(MemoryStore()) as store:
        session = store.session(Agent(ScriptedModel(["Done."])))
        assert isinstance(session.asynchronous, Session)
        answer: str = session.send("go").output
        assert answer == "Done."
