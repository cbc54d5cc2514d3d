"""A session, an engine or a store that behaves unlike the local ones fails a check of the suite."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.testing.engines import BY_NAME, Metadata, opening
from whyloop import AgentState, Budget, Session
from whyloop.errors import WhyloopError
from whyloop.loop.executions import Query
from whyloop.stores import Entry, MemoryStore
from whyloop.stores.live import live
from whyloop.testing.engine_checks import LocalSession, stage
from whyloop.testing.engine_conformance import (
    LocalEngine,
    OpenEngine,
)


class LosesAnEvaluation(LocalSession):
    async def send(self, query: Query) -> AgentState:
        state = await super().send(query)
        outcome = state.last_continuation_outcome
        assert outcome is not None
        return replace(
            state, last_continuation_outcome=replace(outcome, evaluations=outcome.evaluations[:-1])
        )


class ReturnsTheStateBefore(LocalSession):
    async def send(self, query: Query) -> AgentState:
        before = self.session.state
        await super().send(query)
        return before


class LosesTheOutput(LocalSession):
    async def send(self, query: Query) -> AgentState:
        state = await super().send(query)
        return replace(state, status="stopped")


class ContinuesAfterADecision(LocalSession):
    async def approve(self, question_id: str, *, by: str = "") -> AgentState:
        await self.session.approve(question_id, by=by)
        return await self.resume()


class ForgetsWhoDecided(LocalSession):
    async def approve(self, question_id: str, *, by: str = "") -> AgentState:
        return await self.session.approve(question_id)


class ForgetsTheReason(LocalSession):
    async def deny(self, question_id: str, reason: str = "", *, by: str = "") -> AgentState:
        return await self.session.deny(question_id, by=by)


class ApprovesInsteadOfEditing(LocalSession):
    async def edit(self, question_id: str, arguments: Mapping[str, object], *, by: str = "") -> AgentState:
        return await self.session.approve(question_id, by=by)


class ForgetsTheGrant(LocalSession):
    async def resume(self, *, grant: Budget | None = None) -> AgentState:
        return await super().resume()


class RaisesItsOwnErrors(LocalSession):
    async def resume(self, *, grant: Budget | None = None) -> AgentState:
        try:
            return await super().resume(grant=grant)
        except WhyloopError as error:
            raise RuntimeError("workflow update failed") from error


class AcceptsAnyQuestion(LocalSession):
    async def approve(self, question_id: str, *, by: str = "") -> AgentState:
        try:
            return await self.session.approve(question_id, by=by)
        except WhyloopError:
            return await self.session.refresh()


class IgnoresStops(LocalSession):
    async def request_stop(self, reason: str) -> bool:
        return True


class QueuesQueries(LocalSession):
    lock: asyncio.Lock | None = None

    async def send(self, query: Query) -> AgentState:
        self.lock = self.lock or asyncio.Lock()
        async with self.lock:
            return await super().send(query)


class AsksTheModelTwice(LocalSession):
    async def send(self, query: Query) -> AgentState:
        state = await super().send(query)
        requests = self.session.agent.model.requests  # type: ignore[attr-defined]
        requests.append(requests[-1])
        return state


class KeepsOnlyTheState(LocalSession):
    async def send(self, query: Query) -> AgentState:
        here, agent_id = self.session.store, self.session.agent_id
        elsewhere = await Session.open(MemoryStore(), self.session.agent, agent_id, create=True)
        state = await elsewhere.send(query)
        await here.delete(agent_id)
        await here.add(state)
        return state


def session_engine(kind: type[LocalSession]) -> OpenEngine:
    class BrokenEngine(LocalEngine):
        async def open(self, agent: str, agent_id: str, metadata: Metadata = None) -> LocalSession:
            session = (await super().open(agent, agent_id, metadata)).session
            return kind(session, self._deps)

    return opening(BrokenEngine)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (LosesAnEvaluation, "an_answer", r"after send \(1\): state.last_continuation_outcome.evaluations\["),
        (ReturnsTheStateBefore, "a_tool_call", r"after send \(1\): state.status should be 'completed'"),
        (LosesTheOutput, "an_output_by_a_tool_call", "should be 'completed', and it is 'stopped'"),
        (ContinuesAfterADecision, "an_approval", r"after approve \(2\): state.* should be 'paused'"),
        (ForgetsWhoDecided, "an_approval", "should be 'ann', and it is 'an unnamed person'"),
        (ForgetsTheReason, "a_denial", "too much"),
        (ApprovesInsteadOfEditing, "an_edit", "edit"),
        (ForgetsTheGrant, "a_steps_limit_and_a_grant", r"after resume \(3\): state"),
        (RaisesItsOwnErrors, "refused_decisions", "error should be 'NotResumableError', and it is 'Runtime"),
        (
            AcceptsAnyQuestion,
            "refused_decisions",
            "should be 'ApprovalError', and it is None",
        ),
        (IgnoresStops, "a_stop_while_the_model_streams", "^the engine should finish within 1 s"),
        (QueuesQueries, "a_query_while_another_runs", "^the engine should finish within 1 s"),
        (KeepsOnlyTheState, "an_answer", r"after the end \(2\): events\[0\] should be .* it is missing"),
        (AsksTheModelTwice, "an_answer", r"requests of agent\[1\] should be missing"),
    ],
)
async def test_a_session_that_behaves_otherwise_fails_a_check(
    kind: type[LocalSession], name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PATIENCE_SECONDS", 1.0)
    with pytest.raises(AssertionError, match=message):
        await BY_NAME[name](session_engine(kind))


class DropsMetadata(LocalEngine):
    async def open(self, agent: str, agent_id: str, metadata: Metadata = None) -> LocalSession:
        return await super().open(agent, agent_id)


class ForgetsDeps(LocalEngine):
    async def open(self, agent: str, agent_id: str, metadata: Metadata = None) -> LocalSession:
        self._deps = None
        return await super().open(agent, agent_id, metadata)


class RunsOneAgent(LocalEngine):
    async def open(self, agent: str, agent_id: str, metadata: Metadata = None) -> LocalSession:
        return await super().open(next(iter(self._agents)), agent_id, metadata)


class StartsAnew(LocalEngine):
    count = 0

    async def open(self, agent: str, agent_id: str, metadata: Metadata = None) -> LocalSession:
        self.count += 1
        return await super().open(agent, f"{agent_id}-{self.count}", metadata)


class StreamsNothing(LocalEngine):
    async def open(self, agent: str, agent_id: str, metadata: Metadata = None) -> LocalSession:
        live(self.store).send_chunk = lambda *_, **__: None  # type: ignore[method-assign]
        return await super().open(agent, agent_id, metadata)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (DropsMetadata, "metadata", r"state.metadata.user should be 'ann', and it is missing"),
        (
            ForgetsDeps,
            "deps_and_instructions",
            "should be None, and it is 'ConfigurationError': .*deps",
        ),
        (RunsOneAgent, "two_agents", "error should be None, and it is 'ScriptError'"),
        (StartsAnew, "metadata", "agent_id should be 'session', and it is 'session-1'"),
        (StreamsNothing, "streaming_text", "it got none"),
    ],
)
async def test_an_engine_that_behaves_otherwise_fails_a_check(
    kind: type[LocalEngine], name: str, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        await BY_NAME[name](opening(kind))


class ChangesAnExplanation(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        changed = [Entry(each.body.replace("No errors present", "Fine"), each.checkpoint) for each in entries]
        return await super().append(agent_id, changed, **rest)


class Renumbers(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        changed = [Entry(each.body.replace('"seq":2', '"seq":3'), each.checkpoint) for each in entries]
        return await super().append(agent_id, changed, **rest)


class RecordsUnderAnotherName(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        changed = [Entry(each.body.replace('"add"', '"plus"'), each.checkpoint) for each in entries]
        return await super().append(agent_id, changed, **rest)


class KeepsTheFirstSummary(MemoryStore):
    async def append(self, agent_id: str, entries: Sequence[Entry], **rest: Any) -> str | None:
        return await super().append(agent_id, entries, **{**rest, "summary": None})


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (ChangesAnExplanation, "an_answer", "should be 'No errors present', and it is 'Fine'"),
        (Renumbers, "an_answer", "SnapshotError"),
        (RecordsUnderAnotherName, "a_tool_call", "should be 'add', and it is 'plus'"),
        (KeepsTheFirstSummary, "an_answer", "summary.status should be 'completed', and it is 'pending'"),
    ],
)
async def test_other_records_fail_a_check(kind: type[MemoryStore], name: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        await BY_NAME[name](opening(store=kind))
