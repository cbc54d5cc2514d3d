"""`whyloop run --store` and `whyloop resume`: runs that are recorded, and gone on with."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.shop import (
    HERE,
    WHYLOOP,
    asked,
    environment,
    greeting,
    in_store,
    kept,
    loaded,
    paying,
    question_of,
    refused,
    run,
    run_by,
    searching,
)
from whyloop import AgentStatus

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


def session_ids() -> list[str]:
    page = in_store(lambda store: store.sessions())
    return [summary.agent_id for summary in page.sessions]


# run


def test_without_a_store_nothing_is_written(capsys: Capsys, tmp_path: Path) -> None:
    assert run(capsys, "run", "Hi", "--agent", f"{HERE}:greeting")[:2] == (0, "Hello there.\n")
    assert list(tmp_path.iterdir()) == []


def test_with_a_store_the_run_is_a_session(capsys: Capsys) -> None:
    code, out, err = run(capsys, "run", "Hi", "--agent", f"{HERE}:greeting", "--store", "whyloop.db")
    (agent_id,) = session_ids()
    assert (code, out) == (0, "Hello there.\n")
    assert err.startswith(f"session {agent_id}\n")
    assert [message.text for message in loaded(agent_id).messages] == ["Hi", "Hello there."]


def test_the_store_may_be_in_a_variable(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYLOOP_STORE", str(tmp_path / "whyloop.db"))
    assert run(capsys, "run", "Hi", "--agent", f"{HERE}:greeting", "--quiet") == (0, "Hello there.\n", "")
    assert len(session_ids()) == 1


def test_a_conversation_continues(capsys: Capsys) -> None:
    agent_id = asked(greeting(), "Hi")
    code, out, err = run(capsys, "run", "And now?", "--session", agent_id[:8], "--agent", f"{HERE}:greeting")
    assert (code, out) == (0, "Hello there.\n")
    assert "session " not in err
    assert session_ids() == [agent_id]
    assert [message.text for message in loaded(agent_id).messages][2] == "And now?"


def test_another_question_drops_open_questions_and_says_so(capsys: Capsys) -> None:
    agent_id = asked(paying())
    code, _, err = run(capsys, "run", "Never mind", "--session", agent_id, "--agent", f"{HERE}:greeting")
    assert code == 0
    assert err.startswith("the open questions are dropped, because you asked another one\n")
    assert loaded(agent_id).pending_calls == ()


def test_a_run_that_waits_for_a_person_ends_with_18_and_says_what_to_do(capsys: Capsys) -> None:
    options = ["--agent", f"{HERE}:paying", "--store", "pay.db"]
    code, out, err = run(capsys, "run", "Pay", *options)
    agent_id = err.splitlines()[0].removeprefix("session ")
    assert (code, out) == (18, "Let me see.\n")
    question = in_store(lambda store: store.load(agent_id), "pay.db").pending_calls[0].id[:8]
    assert err.endswith(
        f"""
1 question waits for a person

  {question}  pay waits for approval
    {{"amount": 500, "to": "Bob"}}
    whyloop approve {agent_id[:8]} {question} --store pay.db
    whyloop deny {agent_id[:8]} {question} 'the reason' --store pay.db

Then resume the run: whyloop resume {agent_id[:8]} --agent {HERE}:paying --store pay.db
"""
    )


def test_quiet_still_shows_open_questions(capsys: Capsys) -> None:
    code, _, err = run(capsys, "run", "Pay", "--agent", f"{HERE}:paying", "--store", "whyloop.db", "--quiet")
    assert code == 18
    assert err.startswith("Paused in step 1. ApprovalRequired decided: ")
    assert "    whyloop approve " in err


def test_without_a_store_a_question_cannot_be_decided(capsys: Capsys) -> None:
    code, _, err = run(capsys, "run", "Pay", "--agent", f"{HERE}:paying")
    assert code == 18
    assert err.endswith(
        "\nThis run was not recorded, so its questions cannot be decided: use --store whyloop.db.\n"
    )


def test_a_pause_for_machines(capsys: Capsys) -> None:
    _, out, _ = run(capsys, "run", "Pay", "--agent", f"{HERE}:paying", "--store", "whyloop.db", "--json")
    document = json.loads(out)
    assert (document["status"], document["stop_reason"]) == ("paused", None)
    assert [call["tool_call_id"] for call in document["pending_calls"]] == ["call_2"]


def test_a_stopped_run_says_how_to_continue(capsys: Capsys) -> None:
    code, _, err = run(capsys, "run", "Go", "--agent", f"{HERE}:searching", "--store", "whyloop.db")
    assert code == 10
    assert err.endswith(f" --agent {HERE}:searching --grant-steps 10\n")


def test_a_session_that_runs_elsewhere(capsys: Capsys) -> None:
    with run_by(kept("abc"), "worker:1"):
        words = refused(capsys, "run", "Hi", "--session", "abc", "--agent", f"{HERE}:greeting")
    assert words.startswith("session 'abc' is being run by worker:1: wait until it has ended")


@pytest.mark.parametrize("command", [["run", "Hi"], ["resume", "abc"]])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"{HERE}:nobody", f"{HERE} has no 'nobody'; its agents are agent"),
        (f"{HERE}:number", "7 is not an agent: use an Agent, or a function that makes one"),
        (f"{HERE}:NOW", "is not an agent: use an Agent, or a function that makes one"),
        (f"{HERE}:broken", "broken() failed: OSError: no such model"),
        (HERE, "write package.module:name"),
        ("..x:y", "write package.module:name"),
        ("nowhere.at_all:x", "module 'nowhere' not found"),
        ("bad:agent", "bad cannot be imported: ZeroDivisionError: division by zero"),
        ("needy:agent", "needy cannot be imported: No module named 'surely_not_installed'"),
    ],
)
def test_an_agent_that_is_not_there(
    capsys: Capsys, tmp_path: Path, command: list[str], path: str, words: str
) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n", encoding="utf-8")
    (tmp_path / "needy.py").write_text("import surely_not_installed\n", encoding="utf-8")
    assert words in refused(capsys, *command, "--agent", path, code=2)


def test_an_agent_may_be_made_with_its_own_event_loop(capsys: Capsys, tmp_path: Path) -> None:
    module = (
        f"import asyncio\nfrom {HERE} import greeting\n\ndef make():\n    asyncio.run(asyncio.sleep(0))\n"
    )
    (tmp_path / "with_loop.py").write_text(f"{module}    return greeting()\n", encoding="utf-8")
    assert run(capsys, "run", "Hi", "--agent", "with_loop:make")[:2] == (0, "Hello there.\n")


def test_an_agent_may_be_there_already(capsys: Capsys) -> None:
    assert run(capsys, "run", "Hi", "--agent", f"{HERE}:agent")[:2] == (0, "Hello there.\n")


def test_an_agent_is_complete(capsys: Capsys) -> None:
    words = refused(
        capsys, "run", "Hi", "--agent", f"{HERE}:greeting", "--model", "x:y", "--max-steps", "3", code=2
    )
    assert words == "--agent names a complete agent: leave out --model, --max-steps"


@pytest.mark.parametrize("option", ["--max-steps", "--max-tokens", "--timeout"])
def test_a_limit_of_zero_is_not_ignored(capsys: Capsys, option: str) -> None:
    words = refused(capsys, "run", "Hi", "--agent", f"{HERE}:greeting", option, "0", code=2)
    assert words == f"--agent names a complete agent: leave out {option}"
    words = refused(capsys, "run", "Hi", "--agent", "x", "--temporal", "127.0.0.1:1", option, "0", code=2)
    assert words == f"the workers have the agents and their deps: leave out {option}"


# resume


def test_an_approved_call_runs_when_the_session_is_resumed(capsys: Capsys) -> None:
    agent_id = asked(paying())
    run(capsys, "approve", agent_id)
    code, out, err = run(capsys, "resume", agent_id[:8], "--agent", f"{HERE}:after_paying")
    assert (code, out) == (0, "Done.\n")
    assert err.startswith("  pay(amount: 500, to: 'Bob') ok (")
    assert "\nCompleted after 2 steps. " in err
    assert loaded(agent_id).status is AgentStatus.COMPLETED


def test_the_model_hears_of_a_denial(capsys: Capsys) -> None:
    agent_id = asked(paying())
    run(capsys, "deny", agent_id, "we are broke")
    assert run(capsys, "resume", agent_id, "--agent", f"{HERE}:after_paying", "--quiet")[0] == 0
    assert "Denied by ada: we are broke" in [message.text for message in loaded(agent_id).messages]


def test_undecided_calls_keep_waiting(capsys: Capsys) -> None:
    agent_id = asked(paying())
    code, out, err = run(capsys, "resume", agent_id, "--agent", f"{HERE}:after_paying")
    assert (code, out) == (18, "")
    assert f"    whyloop approve {agent_id} {question_of(agent_id)[:8]}\n" in err


@pytest.mark.parametrize(
    ("options", "code", "steps"),
    [([], 10, 2), (["--grant-steps", "1"], 10, 3), (["--grant-tokens", "9"], 10, 2)],
)
def test_a_grant_moves_a_limit(capsys: Capsys, options: list[str], code: int, steps: int) -> None:
    agent_id = asked(searching())
    assert run(capsys, "resume", agent_id, "--agent", f"{HERE}:searching", *options)[0] == code
    assert loaded(agent_id).step_count == steps


def test_grants_are_recorded(capsys: Capsys) -> None:
    agent_id = asked(searching())
    grants = ["--grant-steps", "1", "--grant-tokens", "5", "--grant-seconds", "2.5"]
    run(capsys, "resume", agent_id, "--agent", f"{HERE}:searching", *grants)
    granted = loaded(agent_id).execution.granted
    assert granted is not None
    assert (granted.steps, granted.tokens, granted.seconds) == (1, 5, 2.5)


def test_a_grant_is_not_negative(capsys: Capsys) -> None:
    argv = ["resume", asked(searching()), "--agent", f"{HERE}:searching", "--grant-steps", "-1"]
    assert "invalid budget steps=-1: use zero to" in refused(capsys, *argv, code=2)


def test_resume_for_machines(capsys: Capsys) -> None:
    agent_id = asked(paying())
    run(capsys, "approve", agent_id)
    code, out, err = run(capsys, "resume", agent_id, "--agent", f"{HERE}:after_paying", "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out)["last_response"] == "Done."


def test_a_completed_session_cannot_continue(capsys: Capsys) -> None:
    agent_id = asked(greeting())
    words = refused(capsys, "resume", agent_id[:8], "--agent", f"{HERE}:greeting")
    assert words == (
        "there is nothing to resume: the session is completed. "
        f"Ask a question: whyloop run '…' --session {agent_id[:8]}"
    )


def test_resume_needs_an_agent(capsys: Capsys) -> None:
    assert refused(capsys, "resume", "abc", code=2).startswith("missing model: use --model openai:gpt-5")


def test_resume_has_the_codes_of_run(capsys: Capsys) -> None:
    from whyloop.cli import main

    shown = []
    for command in ("run", "resume"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown.append(capsys.readouterr().out.split("exit codes:")[1])
    assert shown[0] == shown[1]
    assert " 18  paused " in shown[0]


def test_ctrl_c_stops_a_session_where_it_can_continue(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio, sys\n"
        "from whyloop import Agent, tool\n"
        "from whyloop.testing import ScriptedModel, call\n"
        "@tool\n"
        "async def wait() -> str:\n"
        "    sys.stderr.write('waiting\\n'); sys.stderr.flush()\n"
        "    await asyncio.sleep(0.3)\n"
        "    return 'waited'\n"
        "agent = Agent(ScriptedModel([call('wait')] * 90), [wait], max_steps=99)\n",
        encoding="utf-8",
    )
    command = [*WHYLOOP, "run", "Wait", "--agent", "slow:agent", "--store", "whyloop.db"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as running:
        assert running.stderr is not None
        while "waiting" not in running.stderr.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert running.returncode == 17, said
    assert "Resume the run: whyloop resume " in said
    (agent_id,) = session_ids()
    assert (loaded(agent_id).status, loaded(agent_id).step_count) == (AgentStatus.STOPPED, 1)
