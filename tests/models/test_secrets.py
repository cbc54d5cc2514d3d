"""Secrets are removed from recordings and from errors of providers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import echo
from tests.values.test_redaction import FORMS
from whyloop import Agent, AgentStatus, tool
from whyloop.models.recording import RecordingModel, ReplayModel
from whyloop.models.response import http_error
from whyloop.models.secrets import without_cut_secrets, without_secrets
from whyloop.testing import Reply, ScriptedModel, call

forms = pytest.mark.parametrize("name", FORMS)


@forms
async def test_a_recording_has_no_secret_and_can_be_replayed(name: str, tmp_path: Path) -> None:
    text, secret = FORMS[name]
    path = tmp_path / "recorded.jsonl"
    replies: list[Reply | str] = [call("echo", {"value": text}), f"done with {text}"]
    recorded = await Agent(RecordingModel(ScriptedModel(replies), path), [echo]).run(f"Use {text}")
    assert recorded.status is AgentStatus.COMPLETED
    assert secret not in path.read_text(encoding="utf-8")
    replay = ReplayModel(path)
    await Agent(replay, [echo]).run(f"Use {text}")
    replay.assert_finished()


@forms
@pytest.mark.parametrize("is_json", [True, False])
def test_the_error_of_a_provider_has_no_secret_in_it(name: str, is_json: bool) -> None:
    text, secret = FORMS[name]
    body = json.dumps({"error": {"message": f"refused: {text}"}}) if is_json else f"refused:\n{text}"
    assert secret not in str(http_error(401, {}, body.encode()))


@tool
async def sign_in(password: str) -> str:
    """Signs in."""
    return "welcome"


async def test_a_recording_has_no_argument_whose_name_is_secret_and_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    script = ScriptedModel([call("sign_in", {"password": "hunter2"}), "done"])
    await Agent(RecordingModel(script, path), [sign_in]).run("go")
    assert "hunter2" not in path.read_text(encoding="utf-8")
    replay = ReplayModel(path)
    assert (await Agent(replay, [sign_in]).run("go")).last_response == "done"
    replay.assert_finished()


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("k", "Incorrect API key provided: k", "Incorrect API key provided: [removed]"),
        ("k", 'Incorrect API key "k", ask', 'Incorrect API key "[removed]", ask'),
        ("test", "the latest test of testing: test", "the latest [removed] of testing: [removed]"),
        ("a+b", "a+b is not aa+bb", "[removed] is not aa+bb"),
        ("é1", 'é1 and "\\u00e91" in café1', '[removed] and "\\u00e91" in café1'),
        ("long-enough", "not-long-enough-either", "not-[removed]-either"),
    ],
)
def test_a_short_key_is_removed_as_a_whole_word_only(key: str, text: str, shown: str) -> None:
    assert without_secrets(text, [key]) == shown


def test_the_beginning_of_a_short_key_is_not_removed_from_a_word() -> None:
    assert without_cut_secrets("the latest… test… ", ["test12"]) == "the latest… [removed]… "


def test_an_error_of_a_provider_stays_readable_with_a_short_key() -> None:
    body = b'{"error": {"message": "Incorrect API key provided: k. Look up your key."}}'
    error = http_error(401, {}, body, ("k",))
    assert "Incorrect API key provided: [removed]. Look up your key." in str(error)
