"""`whyloop metadata`: what it shows, and how it changes the metadata of a session."""

from __future__ import annotations

import json

import pytest

from tests.cli.shop import asked, greeting, in_store, loaded, refused, run, run_by
from whyloop.values.transitions import MetadataSet
from whyloop.wire.journal import decode_entries

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


def test_it_shows_the_metadata_without_secrets(capsys: Capsys) -> None:
    agent_id = asked(greeting(), user="ada", password="sesame", plan={"seats": 3})
    shown = 'user=ada\npassword=[removed]\nplan={"seats":3}\n'
    assert run(capsys, "metadata", agent_id) == (0, shown, "")
    assert json.loads(run(capsys, "metadata", agent_id, "--json")[1])["user"] == "ada"


def test_a_session_without_metadata_says_so(capsys: Capsys) -> None:
    assert run(capsys, "metadata", asked(greeting())) == (0, "No metadata.\n", "")


def test_entries_are_set_and_removed_under_a_name(capsys: Capsys) -> None:
    agent_id = asked(greeting(), user="ada", old=1)
    code, out, err = run(
        capsys, "metadata", agent_id[:8], "ticket=42", "old=null", "note=to do", "--by", "eve"
    )
    assert (code, out, err) == (0, "user=ada\nticket=42\nnote=to do\n", "")
    assert loaded(agent_id).metadata == {"user": "ada", "ticket": 42, "note": "to do"}
    (change,) = decode_entries(in_store(lambda store: store.read(agent_id)).entries)[-1].transitions
    assert isinstance(change, MetadataSet)
    assert change.by == "eve"
    found = json.loads(run(capsys, "sessions", "--metadata", "ticket=42", "--json")[1])["sessions"]
    assert [session["agent_id"] for session in found] == [agent_id]


def test_what_is_no_entry_is_refused(capsys: Capsys) -> None:
    agent_id = asked(greeting())
    assert "invalid entry 'user': use key=value" in refused(capsys, "metadata", agent_id, "user", code=2)
    assert "--by is empty" in refused(capsys, "metadata", agent_id, "a=1", "--by", " ", code=2)
    with run_by(agent_id, "worker-3:812"):
        assert "worker-3:812" in refused(capsys, "metadata", agent_id, "a=1")
    assert loaded(agent_id).metadata == {}
