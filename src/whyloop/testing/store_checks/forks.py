"""A session branches off another one as it was at one version."""

from __future__ import annotations

from whyloop.errors import ConflictError, SessionNotFoundError
from whyloop.stores.records import RequestKey
from whyloop.testing.store_checks.support import OpenStore, listed, refused, same, stage
from whyloop.values.state import AgentState


async def check_a_session_is_forked_at_the_expected_version_only(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.add(AgentState(agent_id="a"))
        for expected in (-1, 0, 2, 2**63):
            attempt = store.fork("a", new_agent_id="b", expected_version=expected)
            error = await refused(ConflictError, attempt, f"a fork at version {expected} of 1")
            same((error.agent_id, error.expected, error.found), ("a", expected, 1), "what the error names")
            same(await listed(store), ["a"], "the sessions after a refused fork")
        attempt = store.fork("missing", new_agent_id="b", expected_version=1)
        await refused(SessionNotFoundError, attempt, "a fork of a session that is not there")
        fork = await store.fork("a", new_agent_id="b", expected_version=1)
        same((fork.agent_id, fork == await store.load("b")), ("b", True), "the fork, and that it is stored")


async def check_a_fork_is_stored_under_its_key(open_store: OpenStore) -> None:
    async with stage(open_store) as (store, _):
        await store.add(AgentState(agent_id="a"), key=RequestKey("added", "digest 1"))
        await store.fork("a", new_agent_id="b", key=RequestKey("forked", "digest 2"))
        same(await store.key("a", "added"), ("digest 1", 1), "the key under which a session was added")
        same(await store.key("b", "forked"), ("digest 2", 2), "the key under which it was forked")
        for agent_id, key in (("a", "forked"), ("b", "added")):
            same(await store.key(agent_id, key), None, f"the key {key!r} of {agent_id}")
