"""`whyloop approve`, `deny` and `stop`: what people decide from the shell."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.cli.shop import (
    after_paying,
    asked,
    greeting,
    in_store,
    kept,
    loaded,
    paying,
    paying_twice,
    question_of,
    refused,
    run,
    run_by,
)
from whyloop import AgentState, AgentStatus, Approval, Session, Verdict
from whyloop.stores import Store
from whyloop.values.approval import Question

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


def decision(agent_id: str, index: int = 1) -> Approval:
    """Return what was decided about a call of the open step."""
    step = loaded(agent_id).open_step
    assert step is not None
    (approval,) = step.calls[index].approvals
    return approval


def with_questions(agent_id: str, *question_ids: str) -> AgentState:
    """Return a session whose open questions have these ids."""
    state = loaded(agent_id)
    step = state.open_step
    assert step is not None
    wanted = iter(question_ids)
    calls = tuple(
        replace(call, question=Question(next(wanted), "pay waits for approval")) if call.question else call
        for call in step.calls
    )
    return replace(state, agent_id="chosen", identity="chosen", open_step=replace(step, calls=calls))


def test_the_only_open_question_needs_no_id(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert run(capsys, "approve", agent_id[:8]) == (
        0,
        "ada approved pay(amount: 500, to: 'Bob').\n"
        f"Resume the run: whyloop resume {agent_id[:8]} --agent package.module:name\n",
        "",
    )
    assert (decision(agent_id).verdict, decision(agent_id).by) == (Verdict.APPROVED, "ada")


def test_a_worker_of_temporal_continues_its_sessions_itself(capsys: Capsys) -> None:
    agent_id = asked(paying())
    in_store(lambda store: store.record_workflow(agent_id, "temporal:default", "whyloop:pay"))
    continues = "A worker continues it, in workflow whyloop:pay.\n"
    assert run(capsys, "approve", agent_id)[1].endswith(f"'Bob').\n{continues}")
    assert run(capsys, "approve", agent_id)[1].endswith(continues)
    name = loaded(agent_id).agent
    assert f"--agent {name} --temporal ADDRESS" in run(capsys, "stop", agent_id)[1]


@pytest.mark.parametrize("length", [6, 32])
def test_a_question_is_named_by_its_id_or_the_beginning_of_it(capsys: Capsys, length: int) -> None:
    agent_id = asked(paying_twice())
    first, second = question_of(agent_id, 0), question_of(agent_id, 1)
    assert first[:6] != second[:6]
    run(capsys, "approve", agent_id, second[:length], "--by", "grace")
    assert decision(agent_id, 1).question_id == second
    assert decision(agent_id, 1).by == "grace"
    assert question_of(agent_id) == first


def test_the_id_of_a_call_is_not_the_id_of_its_question(capsys: Capsys) -> None:
    agent_id = asked(paying())
    error = refused(capsys, "approve", agent_id, "call_2")
    assert error.splitlines() == [
        "unknown question 'call_2': choose from",
        f"  {question_of(agent_id)[:8]}  pay(amount: 500, to: 'Bob')",
    ]


def test_a_beginning_that_several_questions_share_lists_them(capsys: Capsys) -> None:
    state = with_questions(asked(paying_twice()), "ab" + "1" * 30, "ab" + "2" * 30)
    in_store(lambda store: store.add(state))
    assert refused(capsys, "approve", "chosen", "ab").splitlines() == [
        "several questions begin with 'ab': choose from",
        "  ab111111  pay(amount: 500, to: 'Bob')",
        "  ab222222  pay(amount: 700, to: 'Eve')",
    ]
    assert len(loaded("chosen").pending_calls) == 2


def test_a_question_whose_id_begins_another_is_found_by_its_id(capsys: Capsys) -> None:
    state = with_questions(asked(paying_twice()), "ab", "abc")
    in_store(lambda store: store.add(state))
    run(capsys, "approve", "chosen", "ab")
    assert [call.id for call in loaded("chosen").pending_calls] == ["abc"]


def test_other_arguments_make_it_an_edit(capsys: Capsys) -> None:
    agent_id = asked(paying())
    code, out, _ = run(capsys, "approve", agent_id, "--args", '{"amount": 50, "to": "Bob"}')
    assert code == 0
    assert out.splitlines()[:2] == [
        "ada approved pay(amount: 500, to: 'Bob') with other arguments:",
        '  {"amount": 50, "to": "Bob"}',
    ]
    assert decision(agent_id).verdict is Verdict.EDITED
    assert decision(agent_id).arguments == {"amount": 50, "to": "Bob"}


@pytest.mark.parametrize("words", [["too much"], ["QUESTION", "too much"], ["QUESTION", "expensive"]])
def test_a_denial_may_have_a_reason(capsys: Capsys, words: list[str]) -> None:
    agent_id = asked(paying())
    question = question_of(agent_id)[:8]
    code, out, _ = run(capsys, "deny", agent_id, *(question if w == "QUESTION" else w for w in words))
    assert (code, out.splitlines()[0]) == (0, f"ada denied pay(amount: 500, to: 'Bob'): {words[-1]}.")
    assert (decision(agent_id).verdict, decision(agent_id).reason) == (Verdict.DENIED, words[-1])


def test_a_denial_needs_no_reason(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert run(capsys, "deny", agent_id)[1].startswith("ada denied pay(amount: 500, to: 'Bob').\n")
    assert decision(agent_id).reason is None


def test_a_mistyped_question_is_not_the_reason_to_deny_another(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert "unknown question 'zzz'" in refused(capsys, "deny", agent_id, "zzz")
    assert len(loaded(agent_id).pending_calls) == 1


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_one_of_several_questions_has_to_be_named(capsys: Capsys, command: str) -> None:
    agent_id = asked(paying_twice())
    assert refused(capsys, command, agent_id, code=2).splitlines() == [
        "several questions are open, name one:",
        f"  {question_of(agent_id, 0)[:8]}  pay(amount: 500, to: 'Bob')",
        f"  {question_of(agent_id, 1)[:8]}  pay(amount: 700, to: 'Eve')",
    ]
    assert len(loaded(agent_id).pending_calls) == 2


def test_the_questions_that_stay_open_are_shown(capsys: Capsys) -> None:
    agent_id = asked(paying_twice())
    first, second = question_of(agent_id, 0)[:8], question_of(agent_id, 1)[:8]
    out = run(capsys, "approve", agent_id, first)[1]
    assert f"\n1 question waits for a person\n\n  {second}  pay waits for approval\n" in out
    assert run(capsys, "approve", agent_id)[1].startswith(
        "ada approved pay(amount: 700, to: 'Eve').\nResume the run: "
    )


# Decisions that are repeated


@pytest.mark.parametrize("command", ["approve", "deny"])
@pytest.mark.parametrize("named", [True, False])
def test_repeating_a_decision_says_so_and_changes_nothing(capsys: Capsys, command: str, named: bool) -> None:
    agent_id = asked(paying())
    question = [question_of(agent_id)[:8]] if named else []
    run(capsys, command, agent_id, *question, "--by", "grace")
    before = loaded(agent_id)
    code, out, err = run(capsys, command, agent_id, *question)
    verdict = "approved" if command == "approve" else "denied"
    assert (code, err) == (0, "")
    assert out.startswith(f"Nothing changed: pay was {verdict} by grace, 20")
    assert loaded(agent_id) == before


def test_repeating_a_decision_after_the_run_has_ended_pays_nothing_twice(capsys: Capsys) -> None:
    agent_id = asked(paying())
    question = question_of(agent_id)
    run(capsys, "approve", agent_id, question)

    async def resume(store: Store) -> None:
        await (await Session.open(store, after_paying(), agent_id)).resume()

    in_store(resume)
    before = loaded(agent_id)
    out = run(capsys, "approve", agent_id, question)[1]
    assert out.startswith("Nothing changed: pay was approved by ada")
    assert loaded(agent_id) == before


def test_repeating_a_decision_never_reaches_another_question(capsys: Capsys) -> None:
    state = with_questions(asked(paying_twice()), "ab1", "ab2")
    in_store(lambda store: store.add(state))
    run(capsys, "approve", "chosen", "ab1")
    assert "several questions begin with 'ab'" in refused(capsys, "approve", "chosen", "ab")
    assert [call.id for call in loaded("chosen").pending_calls] == ["ab2"]


def test_another_decision_is_an_error_with_the_open_questions(capsys: Capsys) -> None:
    agent_id = asked(paying_twice())
    first, second = question_of(agent_id, 0)[:8], question_of(agent_id, 1)[:8]
    run(capsys, "approve", agent_id, first, "--by", "grace")
    error = refused(capsys, "deny", agent_id, first)
    assert error.startswith(f"question {first} is decided: pay was approved by grace, 20")
    assert error.endswith(f" UTC. Choose from\n  {second}  pay(amount: 700, to: 'Eve')")
    argv = ["approve", agent_id, first, "--args", '{"amount": 1, "to": "Bob"}']
    assert "is decided: pay was approved by grace" in refused(capsys, *argv)


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_a_session_without_questions(capsys: Capsys, command: str) -> None:
    agent_id = asked(greeting())
    assert refused(capsys, command, agent_id) == "no question of this session is open"
    assert refused(capsys, command, agent_id, "ab") == "unknown question 'ab': no question is open"


def test_a_question_about_the_run_itself_is_decided_like_any_other(capsys: Capsys) -> None:
    agent_id = asked(paying())
    question = Question("f" * 32, "The run was recovered 3 times without finishing a step. Continue?")
    state = loaded(agent_id)
    execution = replace(state.execution, question=question)
    state = replace(state, agent_id="chosen", identity="chosen", open_step=None, execution=execution)
    in_store(lambda store: store.add(state))
    out = run(capsys, "show", "chosen")[1]
    assert "  ffffffff  The run was recovered 3 times without finishing a step. Continue?\n    whyloop" in out
    assert run(capsys, "approve", "chosen", "ff")[1].startswith("ada approved the run.\n")
    assert loaded("chosen").pending_calls == ()


# What is refused


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "--args is not JSON: "),
        ("[1]", '--args is not a JSON object, such as {"amount": 5}'),
        ("", "--args is not JSON: "),
    ],
)
def test_arguments_that_are_not_an_object(capsys: Capsys, text: str, error: str) -> None:
    agent_id = asked(paying())
    assert error in refused(capsys, "approve", agent_id, "--args", text, code=2)
    assert len(loaded(agent_id).pending_calls) == 1


@pytest.mark.parametrize(
    "text", ['{"amount": "lots", "to": "Bob"}', '{"amount": 5}', '{"amount": 5, "to": "Bob", "cc": "Eve"}']
)
def test_arguments_that_do_not_fit_the_tool_are_not_recorded(capsys: Capsys, text: str) -> None:
    agent_id = asked(paying())
    error = refused(capsys, "approve", agent_id, "--args", text, code=2)
    assert error.startswith("invalid arguments for pay: ")
    assert len(loaded(agent_id).pending_calls) == 1


def test_a_decision_needs_a_name(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert "--by is empty: give the name of a person" in refused(
        capsys, "approve", agent_id, "--by", " ", code=2
    )


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_no_decision_while_a_session_runs(capsys: Capsys, command: str) -> None:
    agent_id = asked(paying())
    with run_by(agent_id, "worker:1"):
        assert "is being run by worker:1" in refused(capsys, command, agent_id)


# stop


def test_a_paused_session_is_stopped_at_once(capsys: Capsys) -> None:
    agent_id = asked(paying())
    code, out, _ = run(capsys, "stop", agent_id[:8], "we moved on")
    assert code == 0
    assert out == (
        f"Stopped. To continue anyway: whyloop resume {agent_id[:8]} --agent package.module:name\n"
    )
    assert loaded(agent_id).status is AgentStatus.STOPPED
    assert "we moved on" in run(capsys, "why", agent_id)[1]


def test_a_stop_without_a_reason_names_the_person(capsys: Capsys) -> None:
    agent_id = asked(paying())
    run(capsys, "stop", agent_id)
    assert "ada stopped it with whyloop stop" in loaded(agent_id).explain()


def test_the_runner_of_a_session_is_asked_to_stop(capsys: Capsys) -> None:
    kept("abc")
    with run_by("abc", "worker:1") as stop_request:
        text = "worker:1 runs it, and was asked to stop.\n"
        assert run(capsys, "stop", "abc", "enough") == (0, text, "")
        assert stop_request() == "enough"


def test_there_may_be_nothing_to_stop(capsys: Capsys) -> None:
    text = "There is nothing to stop: the session is completed.\n"
    assert run(capsys, "stop", asked(greeting())) == (0, text, "")
