"""`whyloop approve`, `deny` and `stop`: what people decide from the shell."""

from __future__ import annotations

import pytest

from tests.cli.shop import asked, greeting, in_store, kept, loaded, paying, paying_twice, refused, run, run_by
from whyloop import AgentStatus, Approval, Verdict

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


def decision(agent_id: str, index: int = 1) -> Approval:
    """What was decided about a call that waits."""
    step = loaded(agent_id).open_step
    assert step is not None
    (approval,) = step.calls[index].approvals
    return approval


def test_the_only_call_that_waits_needs_no_name(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert run(capsys, "approve", agent_id[:8]) == (
        0,
        "ada approved pay(amount: 500, to: 'Bob').\n"
        f"Resume the run: whyloop resume {agent_id[:8]} --agent package.module:name\n",
        "",
    )
    assert (decision(agent_id).verdict, decision(agent_id).by) == (Verdict.APPROVED, "ada")


def test_who_decides_may_be_said(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert run(capsys, "approve", agent_id, "call_2", "--by", "grace")[1].startswith("grace approved pay(")
    assert decision(agent_id).by == "grace"


def test_other_arguments_make_it_an_edit(capsys: Capsys) -> None:
    agent_id = asked(paying())
    code, out, _ = run(capsys, "approve", agent_id, "--args", '{"amount": 50, "to": "Bob"}')
    assert code == 0
    assert out.startswith('ada approved pay with other arguments:\n  {"amount": 50, "to": "Bob"}\n')
    assert decision(agent_id).verdict is Verdict.EDITED
    assert decision(agent_id).arguments == {"amount": 50, "to": "Bob"}


@pytest.mark.parametrize("words", [["too much"], ["call_2", "too much"], ["call_2", "expensive"]])
def test_a_denial_may_have_a_reason(capsys: Capsys, words: list[str]) -> None:
    agent_id = asked(paying())
    code, out, _ = run(capsys, "deny", agent_id, *words)
    assert (code, out.splitlines()[0]) == (0, f"ada denied pay(amount: 500, to: 'Bob'): {words[-1]}.")
    assert (decision(agent_id).verdict, decision(agent_id).reason) == (Verdict.DENIED, words[-1])


@pytest.mark.parametrize("words", [[], ["call_2"]])
def test_a_denial_needs_no_reason(capsys: Capsys, words: list[str]) -> None:
    agent_id = asked(paying())
    assert run(capsys, "deny", agent_id, *words)[1].startswith("ada denied pay(amount: 500, to: 'Bob').\n")
    assert decision(agent_id).reason is None


def test_a_call_that_was_mistyped_is_no_reason_to_deny_another(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert "there is no tool call 'call_9' to decide about" in refused(capsys, "deny", agent_id, "call_9")
    assert len(loaded(agent_id).pending_calls) == 1


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_of_several_calls_one_is_to_be_named(capsys: Capsys, command: str) -> None:
    agent_id = asked(paying_twice())
    assert refused(capsys, command, agent_id, code=2).splitlines() == [
        "several tool calls wait, so name one:",
        "  call_1  pay(amount: 500, to: 'Bob')",
        "  call_2  pay(amount: 700, to: 'Eve')",
    ]
    assert len(loaded(agent_id).pending_calls) == 2


def test_it_says_what_waits_still(capsys: Capsys) -> None:
    agent_id = asked(paying_twice())
    out = run(capsys, "approve", agent_id, "call_1")[1]
    assert "\n1 tool call waits for a person\n\n  call_2  pay(amount=700" in out
    assert run(capsys, "approve", agent_id)[1].startswith(
        "ada approved pay(amount: 700, to: 'Eve').\nResume the run: "
    )


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_nothing_is_decided_twice(capsys: Capsys, command: str) -> None:
    agent_id = asked(paying())
    run(capsys, "approve", agent_id, "--by", "grace")
    assert refused(capsys, command, agent_id) == "no tool call of this session waits for a decision"
    assert "was approved by grace at 20" in refused(capsys, command, agent_id, "call_2")
    assert "does not wait for a decision" in refused(capsys, command, agent_id, "call_1")


@pytest.mark.parametrize("command", ["approve", "deny"])
@pytest.mark.parametrize("call", [[], ["call_1"]])
def test_where_nothing_waits(capsys: Capsys, command: str, call: list[str]) -> None:
    words = refused(capsys, command, asked(greeting()), *call)
    assert words == "no tool call of this session waits for a decision"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "--args is no JSON: "),
        ("[1]", '--args is a JSON object, such as {"amount": 5}'),
        ("", "--args is no JSON: "),
    ],
)
def test_arguments_that_are_none(capsys: Capsys, text: str, words: str) -> None:
    agent_id = asked(paying())
    assert words in refused(capsys, "approve", agent_id, "--args", text, code=2)
    assert len(loaded(agent_id).pending_calls) == 1


def test_nobody_has_no_name(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert "--by names who decides" in refused(capsys, "approve", agent_id, "--by", " ", code=2)


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_nobody_decides_while_it_runs(capsys: Capsys, command: str) -> None:
    agent_id = asked(paying())
    run_by(agent_id, "worker:1")
    assert "is being run by worker:1" in refused(capsys, command, agent_id)


# stop


def test_a_session_that_waits_is_stopped_at_once(capsys: Capsys) -> None:
    agent_id = asked(paying())
    code, out, _ = run(capsys, "stop", agent_id[:8], "we moved on")
    assert code == 0
    assert out == (
        f"Stopped. To go on all the same: whyloop resume {agent_id[:8]} --agent package.module:name\n"
    )
    assert loaded(agent_id).status is AgentStatus.STOPPED
    assert "we moved on" in run(capsys, "why", agent_id)[1]


def test_a_stop_without_a_reason_says_who_it_was(capsys: Capsys) -> None:
    agent_id = asked(paying())
    run(capsys, "stop", agent_id)
    assert "ada asked for it with whyloop stop" in loaded(agent_id).explain()


def test_who_runs_it_is_asked_to_stop(capsys: Capsys) -> None:
    kept("abc")
    lease = in_store(lambda store: store.acquire("abc", "worker:1", 600))
    words = "worker:1 runs it, and was asked to stop at its next safe point.\n"
    assert run(capsys, "stop", "abc", "enough") == (0, words, "")
    assert in_store(lambda store: store.renew(lease)) == "enough"


def test_there_may_be_nothing_to_stop(capsys: Capsys) -> None:
    words = "There is nothing to stop: the session is completed.\n"
    assert run(capsys, "stop", asked(greeting())) == (0, words, "")
