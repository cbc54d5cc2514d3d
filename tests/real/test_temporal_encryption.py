"""Encrypted payloads: nothing of a conversation can be read in Temporal or in the claims of the store."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("temporalio", reason='these tests need Temporal\'s SDK: pip install ".[temporal]"')

from temporalio.api.common.v1 import Payload

from tests.real.temporal import TemporalServer, fleet
from whyloop import Agent, tool
from whyloop.errors import ApprovalError, ConfigurationError
from whyloop.stores import SqliteStore
from whyloop.temporal import EncryptionCodec, WhyloopPlugin
from whyloop.testing import ScriptedModel, call

OLD, NEW = os.urandom(32), os.urandom(32)
SECRET = "the password is swordfish"


@pytest.mark.slow
async def test_nothing_of_a_conversation_is_in_the_history_or_in_claims(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    @tool(max_result_chars=None)
    def open_safe(code: str) -> str:
        """Open the safe."""
        return f"{SECRET} " * 10_000  # More than a history takes.

    @tool
    def fail() -> str:
        """Fail."""
        raise RuntimeError(SECRET)

    model = ScriptedModel([call("open_safe", {"code": SECRET}), call("fail"), SECRET])
    path = tmp_path / "sessions.db"
    agent = Agent(model, [open_safe, fail], name="guard", instructions=SECRET)
    codec = EncryptionCodec({"new": NEW})
    async with SqliteStore(path) as store, fleet(temporal, store, [agent], codec=codec) as here:
        session = await here.session("guard", "safe")
        state = await session.send(SECRET)
        await session.request_stop(SECRET)
        histories = await here.histories("safe")
        await here.replay("safe")
        assert await session.handle.query("explain") == state.explain()
        with pytest.raises(ApprovalError, match=SECRET):
            await session.approve(SECRET)  # Its text is in the failure of an activity.
        histories += await here.histories("safe")
    assert len(state.messages[2].content) > 100_000
    for history in histories:
        raw = b"".join(event.SerializeToString() for event in history.events)
        assert b"swordfish" not in raw
        assert b"open_safe" not in raw
    with sqlite3.connect(path) as database:
        claims = [bytes(row[0]) for row in database.execute("SELECT data FROM claims")]
    database.close()
    assert claims
    assert not [claim for claim in claims if b"swordfish" in claim]


@pytest.mark.slow
async def test_a_client_without_the_codec_of_the_workers_gets_a_clear_error(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    agent, codec = Agent(ScriptedModel(["Hi"]), name="guard"), EncryptionCodec({"new": NEW})
    async with (
        SqliteStore(tmp_path / "sessions.db") as store,
        fleet(temporal, store, [agent], codec=codec) as here,
    ):
        here.client = await temporal.connect(WhyloopPlugin(store))
        session = await here.session("guard", "no-codec")
        with pytest.raises(ConfigurationError, match="encoding 'binary/encrypted' cannot be read here: give"):
            await session.send("Hello")


async def test_payloads_of_an_earlier_key_are_read_after_a_rotation() -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"4711"')
    (old,) = await EncryptionCodec({"old": OLD}).encode([payload])
    both = EncryptionCodec({"old": OLD, "new": NEW})
    (new,) = await both.encode([payload])
    assert await both.decode([old, new, payload]) == [payload] * 3
    assert b"4711" not in old.SerializeToString() + new.SerializeToString()
    with pytest.raises(ConfigurationError, match="encrypted with key 'new': the keys here are old"):
        await EncryptionCodec({"old": OLD}).decode([new])
    with pytest.raises(ConfigurationError, match="key 'old' is not the one that it was encrypted with"):
        await EncryptionCodec({"old": NEW}).decode([old])


@pytest.mark.parametrize(
    ("keys", "key_id", "text"),
    [
        ({}, None, "no keys"),
        ({"a": b"short"}, None, "invalid key 'a'"),
        ({"a": OLD}, "b", "unknown key 'b'"),
    ],
)
def test_invalid_keys_are_refused(keys: dict[str, bytes], key_id: str | None, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        EncryptionCodec(keys, key_id)
